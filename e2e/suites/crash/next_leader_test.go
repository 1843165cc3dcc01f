//go:build linux

package crash

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// A leader dies before it stores a failure. The next one may come to that image
// before it has read the policy, and the defaults allow retries.
func TestNextLeaderJudgesFailuresByThePolicy(t *testing.T) {
	testScene.StorePolicy(t, map[string]string{"concurrency": "4", "retryLimit": "0"})
	ns, o := testScene.CreateNamespace(t), testScene.StartObserver(t)
	first := faults.StartLeader(t, testScene, faults.WriteHooks{Before: faults.OnFirst(isOutcomeWrite(v1alpha1.OutcomeFailed), func(m *faults.FaultyAgent, _ faults.Write) error {
		m.Kill()
		<-m.Done()
		return faults.DropConnection()
	})})
	var fail []*v1alpha1.VMDiskImage
	for _, name := range []string{"a", "b", "c", "d"} {
		img := testScene.NewImage(ns, name, "/servererror/"+name+".qcow2")
		testScene.Create(t, img)
		fail = append(fail, img)
	}
	require.True(t, testenv.Await(t, first.HasEnded), "no failure was stored")
	next := faults.StartLeader(t, testScene, faults.WriteHooks{})
	for _, img := range fail {
		testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseFailed))
	}
	h := requirePromisesKept(t, o)
	for _, img := range fail {
		assert.Equal(t, 1, h.Attempts(img.UID), "retryLimit + 1 DataVolumes of %s", img.Name)
	}
	requireDeleted(t, next, ns, fail...)
}
