package image

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/pelotech/ot-fleet/agent/cachebounds"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestFinalizersBeyondTheCacheStay: the cache has a part of them, and a patch replaces the list.
func TestFinalizersBeyondTheCacheStay(t *testing.T) {
	p := newPruneFixture(t)
	stored := p.getImage()
	var others []string
	for i := range cachebounds.MaxFinalizers + 3 {
		others = append(others, fmt.Sprintf("example.com/%d", i))
	}
	stored.Finalizers = slices.Concat(others, []string{v1alpha1.FinalizerImage})
	require.NoError(t, p.Update(t.Context(), stored))
	cached := func() *v1alpha1.VMDiskImage {
		trimmed, err := cachebounds.Trim(p.getImage())
		require.NoError(t, err)
		return trimmed.(*v1alpha1.VMDiskImage)
	}
	require.Less(t, len(cached().Finalizers), len(stored.Finalizers))
	assert.Contains(t, cached().Finalizers, v1alpha1.FinalizerImage, "or it would be set at each visit")
	require.NoError(t, p.patchFinalizer(t.Context(), cached(), controllerutil.RemoveFinalizer))
	assert.Equal(t, others, p.getImage().Finalizers)
	require.NoError(t, p.patchFinalizer(t.Context(), cached(), controllerutil.AddFinalizer))
	assert.ElementsMatch(t, append(others, v1alpha1.FinalizerImage), p.getImage().Finalizers)

	changed := cached()
	require.NoError(t, p.Patch(t.Context(), p.getImage(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`))))
	require.ErrorIs(t, p.patchFinalizer(t.Context(), changed, controllerutil.RemoveFinalizer), errImageChanged)
}
