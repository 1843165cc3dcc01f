package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
)

// TestAgentWithClockBehindRetriesClones: it waits from when it has seen the clone, and not until its clock gets
// to the creation of the clone.
func TestAgentWithClockBehindRetriesClones(t *testing.T) {
	for name, tt := range map[string]struct {
		created, seenFor, wantLeft time.Duration
	}{
		"a clock that is right":         {-59 * time.Second, 59 * time.Second, time.Second},
		"seen late":                     {-time.Minute, 0, 0},
		"an hour behind":                {time.Hour, 59 * time.Second, time.Second},
		"an hour behind, for a minute":  {time.Hour, time.Minute, 0},
		"an hour behind, seen just now": {time.Hour, 0, time.Minute},
		"a clock that is an hour ahead": {-time.Hour, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Failed)
			w.DataVolume.CreationTimestamp = metav1.NewTime(w.Now.Add(tt.created))
			w.SeenFor = tt.seenFor
			d := w.decide()
			assert.Equal(t, tt.wantLeft == 0, len(d.DeleteDisks) > 0)
			assert.LessOrEqual(t, d.RequeueAfter, time.Minute)
			if tt.wantLeft > 0 {
				assert.Equal(t, tt.wantLeft, d.RequeueAfter)
			}
		})
	}
}

// TestStuckCloneIsReportedWithClockBehind: what holds a clone up is said once it lasts.
func TestStuckCloneIsReportedWithClockBehind(t *testing.T) {
	stuck := func(seenFor time.Duration) vm.Decision {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.PhaseUnset)
		w.DataVolume.CreationTimestamp = metav1.NewTime(w.Now.Add(time.Hour))
		w.SeenFor = seenFor
		return w.decide()
	}
	assert.NotContains(t, stuck(29*time.Second).Status.Message, "CDI has not processed")
	assert.Contains(t, stuck(30*time.Second).Status.Message, "CDI has not processed")
}
