//go:build linux

package crash

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faultyagent"
	"github.com/pelotech/ot-fleet/e2e/harness/proxy"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A leader dies before it stores a failure. The next one may come to that image
// before it has read the policy, and the defaults allow retries.
func TestNextLeaderJudgesFailuresByThePolicy(t *testing.T) {
	testScene.StorePolicy(t, map[string]string{"concurrency": "4", "retryLimit": "0"})
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	first := faultyagent.StartLeader(t, testScene, faultyagent.WriteHooks{Before: faultyagent.OnFirst(isOutcomeWrite(v1alpha1.OutcomeFailed), func(m *faultyagent.FaultyAgent, _ proxy.Write) error {
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
	require.True(t, testenv.Await(t, first.HasEnded), "no failure was stored")
	next := faultyagent.StartLeader(t, testScene, faultyagent.WriteHooks{})
	for _, img := range fail {
		testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseFailed))
	}
	h := requirePromisesKept(t, o)
	for _, img := range fail {
		assert.Equal(t, 1, h.Attempts(img.UID), "retryLimit + 1 DataVolumes of %s", img.Name)
	}
	requireDeleted(t, next, ns, fail...)
}
