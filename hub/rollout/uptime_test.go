package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// flap returns stretches of some minutes each, with as many minutes between them, the last of which
// lasts at a time.
func flap(n int, minutes time.Duration, now time.Time) (list []v1alpha1.MemberStretch) {
	for i := n - 1; i >= 0; i-- {
		from := now.Add(-time.Duration(2*i+1) * minutes * time.Minute)
		s := v1alpha1.MemberStretch{From: *toStoredTime(from), SecondsBefore: int64(time.Duration(len(list)) * minutes * time.Minute / time.Second)}
		if i > 0 {
			s.Until = toStoredTime(from.Add(minutes * time.Minute))
		}
		list = append(list, s)
	}
	return list
}

// The deadline stands still while a cluster is offline: it is an hour, and those that come and go
// every ten minutes use it up.
func TestDeadlineStandsStillWhileOffline(t *testing.T) {
	for name, tt := range map[string]struct {
		planned time.Duration // ago
		list    []v1alpha1.MemberStretch
		want    string
	}{
		"not recorded":                       {24 * time.Hour, nil, "P"},
		"6 times":                            {24 * time.Hour, flap(6, 10, now), "P"},
		"7 times":                            {24 * time.Hour, flap(7, 10, now), "T"},
		"7 times, planned in between":        {85 * time.Minute, flap(7, 10, now), "P"},
		"planned while it was offline":       {115 * time.Minute, flap(7, 10, now), "P"},
		"one time more since it was planned": {125 * time.Minute, flap(7, 10, now), "T"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(newUbuntu(), "canary=P")
			c := &v.Clusters[0]
			c.PlannedAt, c.OnlineSince, c.Online = now.Add(-tt.planned), now.Add(-10*time.Minute), tt.list
			d := decideAndCheck(t, v)
			assert.Equal(t, "canary="+tt.want, formatStates(d))
			if tt.want == "P" && tt.list != nil {
				v.Now = now.Add(d.RequeueAfter)
				assert.Equal(t, "canary=T", formatStates(decideAndCheck(t, v)), "it is decided again in time")
			}
		})
	}
}

// Windows that close use up nothing, and give nothing back, not even to what has timed out.
func TestDeadlineStandsStillWhileWindowIsClosed(t *testing.T) {
	open := flap(7, 10, now.Add(-10*time.Minute))
	for name, tt := range map[string]struct {
		closed  bool
		planned time.Duration
		want    string
	}{
		"opened again, not used up": {false, 100 * time.Minute, "P"},
		"opened again, used up":     {false, 24 * time.Hour, "T"},
		"closed again, not used up": {true, 100 * time.Minute, "P"},
		"closed again, used up":     {true, 24 * time.Hour, "T"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(newUbuntu(), "canary=P")
			c := &v.Clusters[0]
			c.Open = open
			c.WindowOpenedAt = now.Add(-20 * time.Minute)
			if tt.closed {
				v = waitForWindow(v, now.Add(time.Hour), "canary-0")
				c.WindowOpensAt, c.Open[len(open)-1].Until = now.Add(time.Hour), toStoredTime(now.Add(-10*time.Minute))
			}
			c.PlannedAt = now.Add(-tt.planned)
			d := decideAndCheck(t, v)
			assert.Equal(t, "canary="+tt.want, formatStates(d))
			assert.Equal(t, tt.closed && tt.want == "P", d.Status.Reason == v1alpha1.ReasonRolloutWaitingForWindow)
		})
	}
}

// Coming and going does not begin the month again for which windows are waited for.
func TestWindowsOfClusterThatComesAndGoes(t *testing.T) {
	for days, want := range map[time.Duration]string{29: "P", 32: "T"} {
		v := waitForWindow(newView(newUbuntu(), "canary=P eu=."), now.Add(time.Hour), "canary-0")
		c := &v.Clusters[0]
		c.PlannedAt, c.OnlineSince = now.Add(-365*24*time.Hour), now.Add(-24*time.Hour)
		c.Online = flap(int(days), 24*60, now)
		assert.Contains(t, formatStates(decideAndCheck(t, v)), "canary="+want, days)
	}
}

// A lost image has the whole deadline again, and no more: also where the stretch in which it was lost
// is dropped from the record.
func TestDeadlineOfLostImageStandsStill(t *testing.T) {
	for returns, want := range map[int]string{5: "P", 6: "T"} {
		v := newView(newUbuntu(), "canary=P")
		c := &v.Clusters[0]
		lost := now.Add(-24 * time.Hour)
		c.PlannedAt = lost.Add(-30 * 24 * time.Hour)
		first := v1alpha1.MemberStretch{From: *toStoredTime(c.PlannedAt.Add(-time.Hour)), Until: toStoredTime(c.PlannedAt.Add(time.Minute))}
		secondsBefore := int64(first.Length(now) / time.Second)
		c.Open = []v1alpha1.MemberStretch{first, {From: *toStoredTime(lost.Add(-10 * time.Minute)), SecondsBefore: secondsBefore}}
		c.RecordLoss(lost)
		// Ten minutes of the stretch in which it was lost, and ten of each further one.
		secondsBefore += int64(20 * time.Minute / time.Second)
		later := flap(returns, 10, now)
		for i := range later {
			later[i].SecondsBefore += secondsBefore
		}
		c.Open = append([]v1alpha1.MemberStretch{first}, later[len(later)-2:]...)
		c.OnlineSince = now.Add(-10 * time.Minute)
		assert.Equal(t, "canary="+want, formatStates(decideAndCheck(t, v)), "%d returns", returns)
	}
}

// A plan that a hub wrote whose clock was ahead delays no deadline: the time is stored anew.
func TestDeadlineOfPlanThatIsAhead(t *testing.T) {
	v := newView(newUbuntu(), "canary=P")
	c := &v.Clusters[0]
	ahead := now.AddDate(1, 0, 0)
	c.PlannedAt, c.OnlineSince = ahead, now.Add(-24*time.Hour)
	d := decideAndCheck(t, v)
	assert.Equal(t, "canary=P", formatStates(d))
	assert.LessOrEqual(t, d.RequeueAfter, deadline+time.Millisecond)

	img := v.Image.DeepCopy()
	img.Status = d.Status
	item := v1alpha1.PlannedImage{Namespace: "images", Name: "ubuntu-1.0.0", Spec: img.Spec.Template, PlannedAt: toStoredTime(ahead)}
	for _, keeps := range []bool{false, true} {
		progress := rollout.ClusterProgress{Placed: true, Started: true, KeepsItem: keeps}
		got := rollout.ComputeDesiredImages(img, progress, &item, now).Images[0]
		assert.Equal(t, now, got.PlannedAt.UTC())
		again := rollout.ComputeDesiredImages(img, progress, &got, now.Add(time.Hour)).Images[0]
		assert.Equal(t, now, again.PlannedAt.UTC(), "it stays from then on")
	}
}

// Time in which no hub ran is not used up: the record ends a stretch there, and no condition changed.
func TestDeadlineStandsStillWhileNoHubRuns(t *testing.T) {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for planned, want := range map[time.Duration]string{3 * time.Hour: "P", 4 * time.Hour: "T"} {
		v := newView(newUbuntu(), "canary=P")
		c := &v.Clusters[0]
		c.PlannedAt, c.OnlineSince = ago(planned), ago(48*time.Hour)
		until := ago(170 * time.Minute)
		c.Online = []v1alpha1.MemberStretch{
			{From: *toStoredTime(c.OnlineSince), Until: toStoredTime(until)},
			{From: *toStoredTime(ago(5 * time.Minute)), SecondsBefore: int64(until.Sub(c.OnlineSince) / time.Second)},
		}
		assert.Equal(t, "canary="+want, formatStates(decideAndCheck(t, v)), planned)
	}
}
