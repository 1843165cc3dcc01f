package image

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestReleasedImageIsDescribed: its status is the only thing that an agent still writes.
func TestReleasedImageIsDescribed(t *testing.T) {
	p := newPruneFixture(t)
	next := *p.cached.Prune
	next.UID = "next"
	p.cached.Prune = &next
	img := p.getImage()
	img.Status.Prune = nil
	require.NoError(t, p.Client.Status().Update(t.Context(), img))
	img.Finalizers = []string{"example.com/hold"}
	require.NoError(t, p.Update(t.Context(), img))
	require.NoError(t, p.Client.Delete(t.Context(), img, client.Preconditions{UID: &img.UID}))

	assert.Zero(t, p.mustReconcile())
	stored := p.getImage()
	assert.Equal(t, v1alpha1.PhaseDeleting, stored.Status.Phase)
	assert.Contains(t, stored.Status.Message, "example.com/hold")
	require.NotNil(t, stored.Status.Prune, "the plan is read of it")
	assert.Equal(t, v1alpha1.PruneWaiting, stored.Status.Prune.State)
	assert.Equal(t, []string{"example.com/hold"}, stored.Finalizers)
	assert.Contains(t, p.drainEvents(), "example.com/hold")

	p.mustReconcile()
	assert.Equal(t, stored.ResourceVersion, p.getImage().ResourceVersion, "it is stored once")
}
