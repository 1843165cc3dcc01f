package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// An idle hub writes the status once.
func TestUptimeBeginsOnce(t *testing.T) {
	v := healthyInput()
	v = withStoredStatus(v)
	first := v.Member.Status.Uptime
	require.Equal(t, &v1alpha1.MemberUptime{Online: []v1alpha1.MemberStretch{{From: metav1.NewTime(now)}}, Open: []v1alpha1.MemberStretch{{From: metav1.NewTime(now)}}}, first)
	v.Now = now.Add(10 * time.Second)
	assert.Equal(t, first, withStoredStatus(v).Member.Status.Uptime)
}

// The first window that closes leaves a record, also one of the member's own policy: what has timed
// out before stays so.
func TestFirstClosingIsRecorded(t *testing.T) {
	closes := now.Add(2 * time.Hour)
	later := metav1.NewTime(closes.Add(time.Hour))
	for name, closeWindow := range map[string]func(*memberstatus.Input){
		"of the hub":    func(v *memberstatus.Input) { v.WindowOpensAt = later.Time },
		"of the member": func(v *memberstatus.Input) { v.Report.InForce = &v1alpha1.InForceConcurrency{OpensAt: &later} },
		"for some imports": func(v *memberstatus.Input) {
			v.Report.InForce = &v1alpha1.InForceConcurrency{Concurrency: 1, OpensAt: &later}
		},
		"and it is offline": func(v *memberstatus.Input) { v.ReceivedAt = &now },
	} {
		v := withStoredStatus(healthyInput())
		v.Now, v.ReceivedAt = closes, &closes
		closeWindow(&v)
		open := withStoredStatus(v).Member.Status.Uptime.Open
		assert.Equal(t, 90*time.Minute, v1alpha1.StretchTimeSince(open, now.Add(30*time.Minute), closes.Add(time.Hour)), name)
	}
}

// A cluster that was rebuilt has none of the time of the former one.
func TestUptimeOfRebuiltCluster(t *testing.T) {
	v := withStoredStatus(healthyInput())
	v.Now = now.Add(30 * 24 * time.Hour)
	rebuilt := v.Now.Add(-5 * time.Second)
	v.ReceivedAt, v.ReportClusterUID = &rebuilt, "rebuilt"
	v = withStoredStatus(v)
	assert.NotNil(t, v.Member.Status.Uptime.Online[0].Until, "it is not accepted yet")

	v.Now = v.Now.Add(10 * time.Second)
	v.Member.Annotations = map[string]string{v1alpha1.AnnotationAcceptCluster: "rebuilt"}
	online := withStoredStatus(v).Member.Status.Uptime.Online
	assert.LessOrEqual(t, v1alpha1.StretchTimeSince(online, now, v.Now), 10*time.Second, online)
}

// While no hub runs, a window may close, or the member go offline.
func TestUptimeIsNotRecordedWithoutHub(t *testing.T) {
	for down, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, 12 * time.Hour: 0} {
		v := withStoredStatus(healthyInput())
		v.Now = now.Add(down)
		v.ReceivedAt, v.WatchedSince = nil, v.Now.Add(-time.Second)
		for range 3 { // its report has not changed since the start; then it has
			v = withStoredStatus(v)
			v.Now = v.Now.Add(time.Second)
		}
		received := v.Now
		v.ReceivedAt = &received
		v = withStoredStatus(v)
		for name, list := range map[string][]v1alpha1.MemberStretch{"online": v.Member.Status.Uptime.Online, "open": v.Member.Status.Uptime.Open} {
			counted := v1alpha1.StretchTimeSince(list, now, v.Now)
			assert.Equal(t, want+3*time.Second, counted, "%s, down for %s: %v", name, down, list)
		}
	}
}

// Time that a hub has recorded whose clock was ahead does not count, also where stretches have ended
// and begun ahead.
func TestTimeAheadDoesNotCount(t *testing.T) {
	for _, steps := range []int{1, 2, 4} { // it goes offline, is back, and so again
		w := &uptimeWorld{input: healthyInput(), planned: map[int]bool{}}
		w.input.Now = now
		planned := metav1.NewTime(now)
		w.input.Plan.Images = []v1alpha1.PlannedImage{{Namespace: "images", Name: "ubuntu", PlannedAt: &planned}}
		w.step()
		w.input.Now = now.Add(6 * time.Hour)
		for range steps {
			w.silent = !w.silent
			w.step()
		}
		w.input.Now = now.Add(10 * time.Minute)
		w.silent = false
		w.step()
		w.input.Now = now.Add(time.Hour)
		for name, list := range map[string][]v1alpha1.MemberStretch{"online": w.step().Online, "open": w.step().Open} {
			assert.LessOrEqual(t, v1alpha1.StretchTimeSince(list, now, now.Add(time.Hour)), time.Hour, "%s after %d: %v", name, steps, list)
		}
	}
}
