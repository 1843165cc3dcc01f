//go:build linux

package crash

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestOrderOfArrivalSurvivesKills (S3) kills three agents while images arrive, each in the
// middle of its writes to them.
func TestOrderOfArrivalSurvivesKills(t *testing.T) {
	const perAgent, kills = 43, 3
	env.StorePolicy(t, newPolicy("0")) // nothing is downloaded
	ns := env.CreateNamespace(t)
	var images []*v1alpha1.VMDiskImage
	createSome := func() {
		for range perAgent {
			img := env.NewImage(ns, fmt.Sprintf("image-%03d", len(images)), "/ok/0s/a")
			env.Create(t, img)
			images = append(images, img)
		}
	}
	createSome() // before any agent
	for range kills {
		var writes atomic.Int32
		agent := faults.StartLeader(t, env, faults.WriteHooks{After: func(a *faults.FaultyAgent, w faults.Write) error {
			if strings.Contains(w.String(), "vmdiskimages") && writes.Add(1) == perAgent {
				a.Kill()
			}
			return nil
		}})
		createSome()
		<-agent.Done()
		createSome()
	}
	last := faults.StartLeader(t, env, faults.WriteHooks{})
	// Other tests would wait for the imports of these images. Nothing was made for them: an agent that
	// deletes them, and looks for what is left of each, takes most of the test's CPU time.
	t.Cleanup(func() {
		last.KillAndWait()
		for _, img := range images {
			assert.NoError(t, env.Client().Patch(context.Background(), img, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
		}
		assert.NoError(t, env.Client().DeleteAllOf(context.Background(), &v1alpha1.VMDiskImage{}, client.InNamespace(ns)))
		assert.NoError(t, env.Client().DeleteAllOf(context.Background(), &v1alpha1.ClusterReport{}, client.InNamespace(program.AgentNamespace)))
		assert.True(t, testenv.AwaitCondition(t, func() bool {
			left := &v1alpha1.VMDiskImageList{}
			return env.Client().List(context.Background(), left, client.InNamespace(ns)) == nil && len(left.Items) == 0
		}), "images are left")
	})
	var keys []v1alpha1.OrderingKey
	require.True(t, testenv.AwaitCondition(t, func() bool {
		keys = nil
		got := &v1alpha1.VMDiskImageList{}
		if env.Client().List(t.Context(), got, client.InNamespace(ns)) != nil {
			return false
		}
		for i := range got.Items { // by name, and so in the order of their creation
			if len(got.Items[i].Status.Revisions) == 0 {
				return false
			}
			keys = append(keys, got.Items[i].Status.Revisions[0].OrderingKey)
		}
		return len(keys) == len(images)
	}), "not all images are in the queue")
	for i := range keys[1:] {
		a, b := keys[i], keys[i+1]
		assert.Negative(t, cmp.Or(a.Time.Compare(b.Time.Time), cmp.Compare(a.Sequence, b.Sequence)), "image %d, %v, is behind its successor, %v", i, a, b)
	}
}
