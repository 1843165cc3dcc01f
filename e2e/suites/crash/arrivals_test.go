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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
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
	faults.StartLeader(t, env, faults.WriteHooks{})
	// Other tests would wait for the imports of these images.
	t.Cleanup(func() {
		assert.NoError(t, env.Client().DeleteAllOf(context.Background(), &v1alpha1.VMDiskImage{}, client.InNamespace(ns)))
		assert.True(t, testenv.AwaitCondition(t, func() bool {
			left := &v1alpha1.VMDiskImageList{}
			return env.Client().List(context.Background(), left, client.InNamespace(ns)) == nil && len(left.Items) == 0
		}), "images are left")
	})
	keys := make([]v1alpha1.OrderingKey, len(images))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		for i, img := range images {
			got := &v1alpha1.VMDiskImage{}
			if env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got) != nil || len(got.Status.Revisions) == 0 {
				return false
			}
			keys[i] = got.Status.Revisions[0].OrderingKey
		}
		return true
	}), "not all images are in the queue")
	for i := range keys[1:] {
		a, b := keys[i], keys[i+1]
		assert.Negative(t, cmp.Or(a.Time.Compare(b.Time.Time), cmp.Compare(a.Sequence, b.Sequence)), "image %d, %v, is behind its successor, %v", i, a, b)
	}
}
