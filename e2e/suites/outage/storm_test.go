//go:build linux

package outage_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	flapEvery = 50 * time.Millisecond
	// flaps is how often the member changes at least.
	flaps = 120
	// Beside one write a second, some are allowed for conditions that change, and
	// for the beginning and the end.
	burst = 8
)

// TestFlappingMemberCausesNoWriteStorm shows that the status of a member whose images
// flap is written about once a second, and that its last state arrives.
func TestFlappingMemberCausesNoWriteStorm(t *testing.T) {
	m := shared.Fakes.List[1]
	t.Cleanup(func() { require.NoError(t, m.SetImages(context.Background(), "page", nil)) })
	shared.AwaitMember(t, m.Name, "healthy", isHealthy)
	image := v1alpha1.ReportedImage{Namespace: "default", Name: "flapping", Source: "http\nhttp://images.example.com/flapping\n"}
	set := func(phase v1alpha1.Phase) {
		image.Phase = phase
		require.NoError(t, m.SetImages(t.Context(), "page", []v1alpha1.ReportedImage{image}))
	}
	set(v1alpha1.PhaseQueued)
	shared.AwaitMember(t, m.Name, "one image", func(m *v1alpha1.MemberCluster) bool { return m.Status.Images != nil && m.Status.Images.Queued == 1 })

	// Every write of a MemberCluster is an event of a watch.
	var mu sync.Mutex
	versions := map[string]bool{}
	stop, err := controlplane.WatchObjects(t.Context(), shared, &v1alpha1.MemberClusterList{}, func(c controlplane.Change[*v1alpha1.MemberCluster]) {
		if c.Type == watch.Modified {
			mu.Lock()
			defer mu.Unlock()
			versions[c.Object.ResourceVersion] = true
		}
	}, client.MatchingFields{"metadata.name": m.Name})
	require.NoError(t, err)
	defer stop()

	begun := time.Now()
	ticker := time.NewTicker(flapEvery)
	defer ticker.Stop()
	changes := 0
	mayWrite := func() int { return int(time.Since(begun)/time.Second) + burst }
	// On a slow machine the member flaps on, until its changes are twice as many as may be written.
	for ; changes < flaps || changes < 2*mayWrite() && time.Since(begun) < testenv.Patience; changes++ {
		<-ticker.C
		set([]v1alpha1.Phase{v1alpha1.PhaseFailed, v1alpha1.PhaseSyncing}[changes%2])
	}
	set(v1alpha1.PhaseSucceeded)
	shared.AwaitMember(t, m.Name, "as it is in the end", hasImages(1), isHealthy)
	took, most := time.Since(begun), mayWrite()
	mu.Lock()
	writes := len(versions)
	mu.Unlock()
	t.Logf("%d changes in %s: %d writes", changes, took.Round(time.Millisecond), writes)
	if most > changes {
		t.Skipf("on this machine the member flapped %d times in %s, so slowly that its %d writes say nothing", changes, took, writes)
	}
	assert.LessOrEqual(t, writes, most)
	assert.Positive(t, writes)
}
