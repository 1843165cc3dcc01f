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
func TestNextLeaderJudgesFailuresByThePolicy(t *testing.T) {
	testScene.StorePolicy(t, map[string]string{"concurrency": "4", "retryLimit": "0"})
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	first := mortal.StartLeader(t, testScene, mortal.WriteHooks{Before: mortal.OnFirst(isOutcomeWrite(v1alpha1.OutcomeFailed), func(m *mortal.FaultyAgent, _ proxy.Write) error {
		m.Kill()
		<-m.Done()
		return proxy.DropConnection()
	})})
	var fail []*v1alpha1.VMDiskImage
	for _, name := range []string{"a", "b", "c", "d"} {
		img := testScene.NewImage(ns, name, "/servererror/"+name+".qcow2")
		testScene.Create(t, img)
		fail = append(fail, img)
	}
	require.True(t, scene.Await(t, first.HasEnded), "no failure was stored")
	next := mortal.StartLeader(t, testScene, mortal.WriteHooks{})
	for _, img := range fail {
		testScene.AwaitImage(t, img, scene.InPhase(v1alpha1.PhaseFailed))
	}
	h := requirePromisesKept(t, o)
	for _, img := range fail {
		assert.Equal(t, 1, h.Attempts(img.UID), "retryLimit + 1 DataVolumes of %s", img.Name)
	}
	requireDeleted(t, next, ns, fail...)
}
