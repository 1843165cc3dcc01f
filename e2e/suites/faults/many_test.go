//go:build linux

package faults

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestManyImagesAtOnce has 150 images arrive at once, 500 with OT_FLEET_LONG: in both
// cases most of them wait behind as many as run.
// CDI is played here: the real one, at about one import a second on a
// small machine, is what such a test would measure.
func TestManyImagesAtOnce(t *testing.T) {
	budget, n := 30, 150
	if os.Getenv("OT_FLEET_LONG") != "" {
		budget, n = 50, 500
	}
	s, err := testenv.Start(context.Background(), member.Options{Name: "many", InstantImporter: true, LogDir: os.Getenv("OT_FLEET_LOG_DIR")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Stop()) })
	require.NoError(t, s.StartAgent())
	t.Cleanup(s.Agent.Kill)
	s.InstantImporter().AllowFinishes(n)
	s.SetPolicy(t, newPolicy("concurrency", strconv.Itoa(budget)))
	o := s.StartObserver(t)
	ns := s.CreateNamespace(t)
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			img := s.NewImage(ns, fmt.Sprintf("image-%03d", i), "")
			img.Spec.SourceType, img.Spec.URL, img.Spec.StorageClass = v1alpha1.SourceBlank, "", simulator.ClassLocal
			return s.Client().Create(t.Context(), img)
		})
	}
	require.NoError(t, group.Wait())
	created := time.Since(began)

	var list v1alpha1.VMDiskImageList
	phases := map[v1alpha1.Phase]int{}
	require.True(t, testenv.Await(t, func() bool {
		list = v1alpha1.VMDiskImageList{}
		phases = map[v1alpha1.Phase]int{}
		require.NoError(t, s.Client().List(t.Context(), &list, client.InNamespace(ns)))
		for i := range list.Items {
			phases[list.Items[i].Status.Phase]++
		}
		return phases[v1alpha1.PhaseSucceeded] == n
	}), "%v", phases)
	t.Logf("%d images created in %s, succeeded %s after the first", n, created.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))

	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())
	assert.Empty(t, h.ReusedNames())
	starts := h.Creations()
	require.Len(t, starts, n, "one download each")
	mine := map[types.UID]bool{}
	for i := range list.Items {
		mine[list.Items[i].UID] = true
	}
	var arrived []types.UID
	for _, uid := range h.ArrivalOrder() {
		if mine[uid] {
			arrived = append(arrived, uid)
		}
	}
	assert.Equal(t, arrived, h.StartOrder(), "first in, first out")
}
