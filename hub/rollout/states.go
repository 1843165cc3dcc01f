package rollout

import (
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// evaluateState sets the state of a cluster from what it reports.
func (e *evaluation) evaluateState(c *placedCluster) {
	r := &c.Report
	switch {
	// What it reported before is not to be believed, and counts neither as a failure nor
	// as a success.
	case c.isQuarantined():
		c.state = v1alpha1.ClusterDeferred
	case c.started && r.servesRevision(c.effective.Revision):
		c.state = v1alpha1.ClusterSucceeded
	// This comes before offline: the image may be what took the cluster offline.
	case c.started && r.failsRevision(c.effective.Revision):
		c.state = v1alpha1.ClusterFailed
	case c.OfflineReason != "":
		c.state = v1alpha1.ClusterDeferred
	case !c.started:
		c.state, c.blocked = v1alpha1.ClusterToApply, c.obstacle != ""
	default:
		c.state = v1alpha1.ClusterProgressing
		// What is used up of the deadline stays used up when the next window closes.
		if c.opensAt = c.windowOf(e.Now); c.waitsForWindow() && !e.isDeadlineUsedUp(c) {
			e.requeueAt(c.opensAt)
			if last := c.lastWindow(e.Now); !last.IsZero() {
				e.requeueAt(last.Add(time.Millisecond))
			}
			return
		}
		c.opensAt = time.Time{}
		e.checkProgressDeadline(c)
		c.blocked = c.state == v1alpha1.ClusterProgressing && r.isBlocked(c.effective.Revision)
	}
}

// explainState returns why a cluster is in its state, where that says more than the state.
func (e *evaluation) explainState(c *placedCluster) (reason, message string) {
	reason, message = e.explainReported(c)
	texts := []string{e.explainRetry(c), message, ""} // what to do comes before what may be truncated
	if c.keepsItem {
		texts[2] = "its plan keeps the former fields: " + c.unknownFieldsMessage()
	}
	return reason, strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), "; ")
}

func (e *evaluation) explainReported(c *placedCluster) (reason, message string) {
	r := &c.Report
	switch {
	case c.state == v1alpha1.ClusterSucceeded:
		return "", ""
	case c.state == v1alpha1.ClusterDeferred:
		return c.OfflineReason, ""
	case c.awaitsRetry && c.state == v1alpha1.ClusterProgressing:
		return "", "its agent has not reported yet that it starts the image over"
	case c.state == v1alpha1.ClusterToApply && c.obstacle != "":
		return c.obstacle, c.obstacleMessage()
	case c.state == v1alpha1.ClusterToApply && c.PlanFull:
		return v1alpha1.ReasonPlanFull, ""
	case c.state == v1alpha1.ClusterToApply, c.PlannedDigest != c.effective.Digest: // the latter starts now
		return "", ""
	case c.waitsForWindow():
		return v1alpha1.ReasonRolloutWaitingForWindow, "the window that it waits for opens at " + formatOpening(c.opensAt)
	case r.refusesRevision(c.effective.Revision), r.ItemState == v1alpha1.PlanItemWaiting && c.state != v1alpha1.ClusterFailed:
		if r.ItemState == v1alpha1.PlanItemWaiting && r.ItemReason != "" {
			return string(r.ItemReason), r.ItemMessage
		}
		return string(r.ItemState), r.ItemMessage
	case !r.Exists:
		return "", "planned; the member has not reported the image yet"
	default:
		return string(r.Reason), r.Message
	}
}

// failsRevision reports whether the member will not get a revision without help.
func (r *Report) failsRevision(revision string) bool {
	return r.refusesRevision(revision) || r.failedImport(revision)
}

func (r *Report) failedImport(revision string) bool {
	return r.Exists && r.Revision == revision && r.Phase == v1alpha1.PhaseFailed
}

// refusesRevision reports whether the agent cannot apply a revision of the plan. Results
// of other revisions do not count.
func (r *Report) refusesRevision(revision string) bool {
	return (r.ItemRevision == "" || r.ItemRevision == revision) &&
		(r.ItemState == v1alpha1.PlanItemNotOurs || r.ItemState == v1alpha1.PlanItemRejected)
}

// servesRevision reports whether the member has a revision as planned. A report may show
// a changed spec while the phase is still that of the former revision, which then serves.
func (r *Report) servesRevision(revision string) bool {
	return r.Exists && r.ItemState == v1alpha1.PlanItemApplied && r.Phase == v1alpha1.PhaseSucceeded &&
		r.Revision == revision && (r.ServingRevision == "" || r.ServingRevision == revision)
}

// isDeadlineUsedUp reports whether a cluster that waits for a window has timed out before.
func (e *evaluation) isDeadlineUsedUp(c *placedCluster) bool {
	return !c.countsFrom.IsZero() && e.exceedsDeadline(c.timeCounted(c.Open, c.Loss.open, e.Now))
}

// exceedsDeadline reports whether a time is longer than the progressDeadline. The millisecond makes
// the deadline passed, not reached, when its timer fires.
func (e *evaluation) exceedsDeadline(used time.Duration) bool {
	deadline := e.Image.Spec.Rollout.ProgressDeadline
	return deadline != nil && used >= deadline.Duration+time.Millisecond
}

// checkProgressDeadline times a cluster out that does not wait for a window.
//
// Invariant: only time counts in which it is online and may import by its windows, and all of it
// that is recorded, however often it is interrupted. What is not recorded, as by hubs of older
// versions, counts since the last interruption. The time in which the cluster had the image does not
// count, as far as this process has seen it lose the image.
func (e *evaluation) checkProgressDeadline(c *placedCluster) {
	deadline := e.Image.Spec.Rollout.ProgressDeadline
	if deadline == nil {
		return
	}
	for _, used := range c.usedTimes(e.Now) {
		if e.exceedsDeadline(used.time) {
			c.state = v1alpha1.ClusterTimedOut
			return
		}
		if used.runs {
			e.requeueAt(e.Now.Add(deadline.Duration + time.Millisecond - used.time))
		}
	}
}

// usedTime is a time that the progressDeadline has used at least. runs: it grows until the next
// event.
type usedTime struct {
	time time.Duration
	runs bool
}

func (c *placedCluster) usedTimes(now time.Time) (used []usedTime) {
	if since := storedtime.LaterOf(storedtime.LaterOf(c.countsFrom, c.watchedOnlineSince()), c.lastOpening(now)); !since.IsZero() {
		used = append(used, usedTime{now.Sub(since), true})
	}
	if c.countsFrom.IsZero() {
		return used
	}
	used = append(used, usedTime{c.onlineTime(now) - maxWindowWait, true})
	recorded, runs := c.recordedUse(now)
	return append(used, usedTime{recorded, runs})
}

// recordedUse returns what a deadline has used by what the MemberCluster records, and whether that
// goes on.
func (c *placedCluster) recordedUse(now time.Time) (used time.Duration, runs bool) {
	stretches, atLoss, opened := c.Open, c.Loss.open, time.Time{}
	if len(stretches) == 0 { // it was never found open, or that is not recorded
		stretches, atLoss, opened = c.Online, c.Loss.online, c.lastOpening(now)
	}
	if len(stretches) == 0 || c.countsFrom.IsZero() {
		return 0, false
	}
	if used = c.timeCounted(stretches, atLoss, now); opened.After(c.countsFrom) {
		used = v1alpha1.StretchTimeSince(stretches, opened, now)
	}
	return used, stretches[len(stretches)-1].Until == nil
}

// watchedOnlineSince returns since when a cluster is online and a hub has watched it. Conditions do not
// change while no hub runs; the record ends a stretch there, since no hub knows what the cluster did.
func (c *placedCluster) watchedOnlineSince() time.Time {
	if n := len(c.Online); n > 0 && c.Online[n-1].Until == nil {
		return storedtime.LaterOf(c.OnlineSince, c.Online[n-1].From.Time)
	}
	return c.OnlineSince
}

// onlineTime returns for how long a cluster has been online since it has its plan, as far as that is
// recorded.
func (c *placedCluster) onlineTime(now time.Time) time.Duration {
	return max(now.Sub(storedtime.LaterOf(c.countsFrom, c.watchedOnlineSince())), c.timeCounted(c.Online, c.Loss.online, now))
}

// timeCounted returns for how long stretches have lasted since countsFrom. atLoss is what they
// counted when the image was lost.
func (c *placedCluster) timeCounted(stretches []v1alpha1.MemberStretch, atLoss stretchCount, now time.Time) time.Duration {
	if atLoss.isKnown && c.countsFrom.Equal(c.Loss.At) {
		return max(0, v1alpha1.StretchTimeSince(stretches, c.PlannedAt, now)-atLoss.time)
	}
	return v1alpha1.StretchTimeSince(stretches, c.countsFrom, now)
}
