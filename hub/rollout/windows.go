package rollout

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// windowOf returns when the window opens that a cluster in progress waits for; zero where it
// waits for none. Invariant: a time that has passed is none, whatever an old report says, so that
// the progressDeadline counts from then. Agents that know no windows call it a pause, and one of
// the fleet-wide budget is the hub's alone.
func (c *placedCluster) windowOf(now time.Time) time.Time {
	if last := c.lastWindow(now); !c.reportsWindow() || !last.IsZero() && now.After(last) {
		return time.Time{}
	}
	if at := storedtime.LaterOf(c.reportedOpening(), c.WindowOpensAt); at.After(now) {
		return at
	}
	return time.Time{}
}

// reportsWindow reports whether the image waits for a window, as the member says.
func (c *placedCluster) reportsWindow() bool {
	r := &c.Report
	waits := r.Reason == v1alpha1.ReasonWaitingForWindow ||
		!c.WindowOpensAt.IsZero() && (r.Reason == v1alpha1.ReasonPaused || r.Reason == v1alpha1.ReasonWaitingForFleet || r.Reason == v1alpha1.ReasonWaitingForSource)
	return r.Exists && r.Revision == c.effective.Revision && r.ItemState != v1alpha1.PlanItemWaiting && waits
}

// maxWindowWait bounds for how long a cluster that has its plan, and is online, waits for windows: one
// that always names a later one, or says again and again that one has opened, would hold its wave
// without end.
const maxWindowWait = 31 * 24 * time.Hour

// nextOpening returns when the window opens that the cluster waits for, or would; zero or a time that has
// passed for none. Invariant: it is at most as late as the cluster waits for windows, whatever it reports.
func (c *placedCluster) nextOpening(now time.Time) time.Time {
	opens, latest := storedtime.LaterOf(c.opensAt, c.WindowOpensAt), c.latestOpening(now)
	if opens.After(latest) {
		return latest
	}
	return opens
}

// latestOpening returns until when the cluster waits for windows, or would.
func (c *placedCluster) latestOpening(now time.Time) time.Time {
	if c.PlannedDigest == c.effective.Digest && !c.countsFrom.IsZero() { // else it starts now, or later
		return c.lastWindow(now)
	}
	return now.Add(maxWindowWait)
}

// believedActivity returns what the member imports and queues, without openings that the cluster does not wait for.
func (c *placedCluster) believedActivity(now time.Time) *v1alpha1.ReportedActivity {
	if c.Activity == nil {
		return nil
	}
	latest := c.memberTime(c.latestOpening(now))
	isLater := func(q v1alpha1.QueuedImport) bool { return q.OpensAt != nil && q.OpensAt.After(latest.Time) }
	if !slices.ContainsFunc(c.Activity.Head, isLater) {
		return c.Activity
	}
	a := *c.Activity
	a.Head = slices.Clone(a.Head)
	for i := range a.Head {
		if isLater(a.Head[i]) {
			a.Head[i].OpensAt = &latest
		}
	}
	return &a
}

// memberTime returns a time as the clock of the member's activity will show it.
func (c *placedCluster) memberTime(at time.Time) metav1.Time {
	return metav1.NewTime(at.Add(c.Activity.ObservedAt.Sub(c.ActivityAt)))
}

// lastWindow returns until when the cluster waits for windows, if it stays online; zero for without
// end. Invariant: being away does not begin the wait again.
func (c *placedCluster) lastWindow(now time.Time) time.Time {
	if c.countsFrom.IsZero() {
		return time.Time{}
	}
	return now.Add(maxWindowWait - c.onlineTime(now))
}

// reportedOpening returns when the window opens, or has just opened, that the member says the image
// waits for; zero for none.
func (c *placedCluster) reportedOpening() time.Time {
	if !c.reportsWindow() {
		return time.Time{}
	}
	return c.Report.OpensAt
}

// lastOpening returns since when a cluster may import by its windows; zero for long.
func (c *placedCluster) lastOpening(now time.Time) (since time.Time) {
	// The MemberCluster's status says a moment later what has just opened.
	for _, opened := range []time.Time{c.WindowOpenedAt, c.reportedOpening(), c.WindowOpensAt} {
		if !opened.After(now) && opened.After(since) {
			since = opened
		}
	}
	if last := c.lastWindow(now); !last.IsZero() && since.After(last) {
		return last
	}
	return since
}

// waitsForWindow reports whether a cluster in progress waits for a window.
func (c *placedCluster) waitsForWindow() bool { return !c.opensAt.IsZero() }

// countClosed counts the clusters in progress of the current wave that wait for a window.
func (e *evaluation) countClosed() (n int) {
	for i := range e.placed {
		if c := &e.placed[i]; int(c.wave) == e.currentWave && c.state == v1alpha1.ClusterProgressing && c.waitsForWindow() {
			n++
		}
	}
	return n
}

// onlyWindowsRemain reports whether every cluster in progress waits for a window or until a
// person acts, and at least one for a window.
func (e *evaluation) onlyWindowsRemain() bool {
	return e.counts.windowed > 0 && e.counts.windowed+e.counts.blocked == e.counts.Progressing
}

// firstOpening returns when the first window opens that a cluster waits for.
func (e *evaluation) firstOpening() (at time.Time) {
	for i := range e.placed {
		if c := &e.placed[i]; c.waitsForWindow() && (at.IsZero() || c.opensAt.Before(at)) {
			at = c.opensAt
		}
	}
	return at
}

// windowsMessage says which clusters wait for a window; empty for none.
func (e *evaluation) windowsMessage() string {
	if e.counts.windowed == 0 {
		return ""
	}
	wait := "wait"
	if e.counts.windowed == 1 {
		wait = "waits"
	}
	return fmt.Sprintf("%s %s for a window of the policy (%s); the first one opens at %s",
		pluralClusters(e.counts.windowed), wait, e.clusterNames((*placedCluster).waitsForWindow), formatOpening(e.firstOpening()))
}

func formatOpening(at time.Time) string { return at.UTC().Format(time.RFC3339) }
