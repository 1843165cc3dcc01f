package rollout

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What the MemberCluster records of its uptime decides, also in a hub that has just been elected, and
// when nothing else changes.
func TestDeadlineCountsStoredUptime(t *testing.T) {
	stored := storedImage(apitest.FleetDiskImage("ubuntu").WithProgressDeadline(time.Hour))
	f := newTestState(t, "bergen")
	f.SetImage(stored)
	f.Decide("ubuntu", now)
	f.applyPlans("bergen")
	later := now.Add(24 * time.Hour)
	back := onlineMember("bergen")
	back.Status.Conditions[1].LastTransitionTime = metav1.NewTime(later.Add(-time.Minute))
	f.SetMember(back)
	d, _, _ := f.Decide("ubuntu", later)
	assert.Equal(t, v1alpha1.ClusterProgressing, d.Placed[0].State, "nothing is recorded")

	until := metav1.NewTime(now.Add(2 * time.Hour))
	recorded := back.DeepCopy()
	recorded.Status.Uptime = &v1alpha1.MemberUptime{Online: []v1alpha1.MemberStretch{
		{From: metav1.NewTime(apitest.Epoch), Until: &until}, {From: metav1.NewTime(later.Add(-time.Minute)), SecondsBefore: int64(26 * 3600)},
	}}
	f.enqueued["ubuntu"] = 0
	f.SetMember(recorded)
	assert.Positive(t, f.enqueued["ubuntu"])
	d, _, _ = f.Decide("ubuntu", later)
	assert.Equal(t, v1alpha1.ClusterTimedOut, d.Placed[0].State)
}

// An image that a cluster had, and imports again, has the whole deadline again, also where members
// come and go, and the cluster itself.
func TestDeadlineStartsAgainForLostImage(t *testing.T) {
	fleetImage := apitest.FleetDiskImage("ubuntu").WithProgressDeadline(time.Hour)
	f := newTestState(t, "bergen")
	f.SetImage(storedImage(fleetImage))
	f.Decide("ubuntu", now)
	f.applyPlans("bergen")
	report := func(phase v1alpha1.Phase) {
		img := withRevisionOf(newReported("ubuntu-1.0.0", phase), fleetImage)
		f.reportImages("bergen", img)
	}
	stateAt := func(after time.Duration) v1alpha1.ClusterState {
		t.Helper()
		d, _, _ := f.Decide("ubuntu", now.Add(after))
		return d.Placed[0].State
	}
	report(v1alpha1.PhaseSucceeded)
	require.Equal(t, v1alpha1.ClusterSucceeded, stateAt(time.Minute))
	f.SetMember(onlineMember("oslo"))
	require.Equal(t, v1alpha1.ClusterSucceeded, stateAt(2*time.Minute))

	report(v1alpha1.PhaseSyncing)
	const lost = 30 * 24 * time.Hour
	assert.Equal(t, v1alpha1.ClusterProgressing, stateAt(lost))
	f.SetMember(onlineMember("lund"))
	report(v1alpha1.PhaseSyncing)
	assert.Equal(t, v1alpha1.ClusterProgressing, stateAt(lost+time.Hour))
	assert.Equal(t, v1alpha1.ClusterTimedOut, stateAt(lost+time.Hour+time.Second))
}

// The plan of a hub whose clock was ahead is written again, and the deadline counts from then.
func TestDeadlineOfPlanThatIsAhead(t *testing.T) {
	f := newTestState(t, "bergen")
	f.SetImage(storedImage(apitest.FleetDiskImage("ubuntu").WithProgressDeadline(time.Hour)))
	f.Decide("ubuntu", now.AddDate(1, 0, 0))
	f.applyPlans("bergen")
	f.replanned["bergen"] = 0
	f.SetPlan("bergen", f.members["bergen"].plan) // another hub has read it
	f.Decide("ubuntu", now)
	assert.Positive(t, f.replanned["bergen"])
	f.applyPlans("bergen")
	for after, want := range map[time.Duration]v1alpha1.ClusterState{time.Hour: v1alpha1.ClusterProgressing, time.Hour + time.Second: v1alpha1.ClusterTimedOut} {
		d, _, _ := f.Decide("ubuntu", now.Add(after))
		assert.Equal(t, want, d.Placed[0].State)
	}
}
