//go:build linux

package report

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestManyImagesAtOnce creates 150 images at once (500 with OT_FLEET_LONG), most of which
// wait. CDI is simulated: the real one imports about one image a second on a small machine. It comes
// last: it leaves storage behind.
func TestManyImagesAtOnce(t *testing.T) {
	budget, n := 30, 150
	if os.Getenv("OT_FLEET_LONG") != "" {
		budget, n = 50, 500
	}
	require.NoError(t, env.StartAgent())
	t.Cleanup(env.Agent.Kill)
	env.InstantImporter().AllowFinishes(n + 1)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", strconv.Itoa(budget)))
	ns := env.CreateNamespace(t)
	newImage := func(name string) *v1alpha1.VMDiskImage {
		img := env.NewImage(ns, name, "")
		img.Spec.SourceType, img.Spec.URL, img.Spec.StorageClass = v1alpha1.SourceBlank, "", simulator.ClassLocal
		return img
	}
	// Images that exist before the agent watches are queued by their creation times, which are
	// not the order of arrival of those that are created at once.
	first := newImage("first")
	require.NoError(t, env.Client().Create(t.Context(), first))
	env.AwaitSucceeded(t, first)
	o := env.StartObserver(t)
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			return env.Client().Create(t.Context(), newImage(fmt.Sprintf("image-%03d", i)))
		})
	}
	require.NoError(t, group.Wait())
	created := time.Since(began)

	var list v1alpha1.VMDiskImageList
	phases := map[v1alpha1.Phase]int{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		list = v1alpha1.VMDiskImageList{}
		phases = map[v1alpha1.Phase]int{}
		require.NoError(t, env.Client().List(t.Context(), &list, client.InNamespace(ns)))
		for i := range list.Items {
			phases[list.Items[i].Status.Phase]++
		}
		return phases[v1alpha1.PhaseSucceeded] == n+1
	}), "%v", phases)
	t.Logf("%d images created in %s, succeeded %s after the first", n, created.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))

	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Empty(t, h.ReusedNames())
	starts := h.Creations()
	require.Len(t, starts, n, "one download each")
	assert.Empty(t, h.OrderViolations(), "first in, first out")
}
