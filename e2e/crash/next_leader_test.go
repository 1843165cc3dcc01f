//go:build linux

package crash

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/mortal"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// A leader dies before it stores a failure. The next one may come to that image
// before it has read the policy, and the defaults allow retries.
func TestNextLeaderJudgesAFailureByThePolicy(t *testing.T) {
	place.StorePolicy(t, map[string]string{"concurrency": "4", "retryLimit": "0"})
	ns, o := place.Namespace(t), place.Observe(t)
	first := mortal.StartLeading(t, place, mortal.Hooks{Before: mortal.Once(storesOutcome(v1alpha1.OutcomeFailed), func(m *mortal.Agent, _ proxy.Write) error {
		m.Kill()
		<-m.Done()
		return proxy.Lose()
	})})
	var fail []*v1alpha1.VMDiskImage
	for _, name := range []string{"a", "b", "c", "d"} {
		img := place.Image(ns, name, "/servererror/"+name+".qcow2")
		place.Create(t, img)
		fail = append(fail, img)
	}
	require.True(t, scene.Await(t, first.Gone), "no failure was stored")
	next := mortal.StartLeading(t, place, mortal.Hooks{})
	for _, img := range fail {
		place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseFailed))
	}
	h := wantPromisesKept(t, o)
	for _, img := range fail {
		assert.Equal(t, 1, h.Attempts(img.UID), "retryLimit + 1 DataVolumes of %s", img.Name)
	}
	wantDeleted(t, next, ns, fail...)
}
