package rollout

import (
	"fmt"
	"slices"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// evaluateRetry gives a failed cluster the token of spec.retry, and counts it as in progress
// until its agent has reported that token, or the one that it was started with: until then, it
// reports the failure from before.
//
// Invariant: a cluster that fails after the token was given to all that had failed by then is
// not started over, also by another leader: status.observedRetry is set once the plans of all
// of these have the token. The plan of an offline cluster cannot be written by a hub that has not
// read its report since it started, nor one that the API server refuses: status.pendingRetries has
// those. One that is refused stays failed until its plan can be written: no deadline of it begins.
func (e *evaluation) evaluateRetry(c *placedCluster) {
	if !c.started {
		return
	}
	c.retry = c.PlannedRetry
	c.pendingRetry = e.asksForRetry() && slices.Contains(e.Image.Status.PendingRetries, c.Name)
	failed := isFailed(c.state) || e.hasTimedOutOffline(c)
	isNew := failed && (e.isRetryNew() || c.pendingRetry) && e.canRetry(c) && !slices.Contains([]string{c.PlannedRetry, c.Report.Retry}, e.Image.Spec.Retry.Token)
	restarts := isNew && (c.OfflineReason != "" || !c.PlanRefused)
	switch {
	case !isNew && c.pendingRetry && c.isQuarantined(): // what it reported is not believed, and not forgotten
		e.unreachedRetries = append(e.unreachedRetries, c.Name)
	case isNew && (c.OfflineReason != "" || c.PlanRefused):
		c.retry = e.Image.Spec.Retry.Token
		e.unreachedRetries = append(e.unreachedRetries, c.Name)
	case isNew:
		c.retry = e.Image.Spec.Retry.Token
		e.unplannedRetries++
	}
	c.awaitsRetry = restarts || c.state == v1alpha1.ClusterFailed && c.KnowsRetry && c.PlannedRetry != "" && c.PlannedRetry != c.Report.Retry && c.Report.failedImport(c.effective.Revision)
	switch {
	case !c.awaitsRetry:
	case c.OfflineReason != "":
		c.state = v1alpha1.ClusterDeferred
	case restarts: // its deadline starts again
		c.state = v1alpha1.ClusterProgressing
		e.requeueAtDeadline()
	default:
		c.state = v1alpha1.ClusterProgressing
		e.checkProgressDeadline(c)
	}
}

// asksForRetry reports whether spec.retry is a request.
func (e *evaluation) asksForRetry() bool {
	r := e.Image.Spec.Retry
	return r != nil && r.Token != ""
}

// isRetryNew reports whether clusters that have failed get the token of spec.retry.
func (e *evaluation) isRetryNew() bool {
	return e.asksForRetry() && e.Image.Spec.Retry.Token != e.Image.Status.ObservedRetry
}

// hasTimedOutOffline reports whether a cluster has used up its deadline before it went offline: it
// counts as deferred, and as timed out when it is back.
func (e *evaluation) hasTimedOutOffline(c *placedCluster) bool {
	if c.state != v1alpha1.ClusterDeferred || c.isQuarantined() {
		return false
	}
	used, _ := c.recordedUse(e.Now)
	return e.exceedsDeadline(used)
}

// canRetry reports whether spec.retry reaches a cluster. One that an earlier request has not reached
// yet gets the token of the latest, whatever that selects. An item that the agent refuses is not
// helped by another attempt.
func (e *evaluation) canRetry(c *placedCluster) bool {
	return c.KnowsRetry && (c.pendingRetry || e.selectsForRetry(c)) && !c.Report.refusesRevision(c.effective.Revision)
}

func (e *evaluation) selectsForRetry(c *placedCluster) bool {
	r := e.Image.Spec.Retry
	return r != nil && (len(r.Clusters) == 0 || slices.Contains(r.Clusters, c.Name))
}

// observeRetry stores that all failed clusters have the token, and which of them it has yet to
// reach. While none is selected, it is not known which have failed.
func (e *evaluation) observeRetry() {
	switch {
	case !e.asksForRetry():
		e.status.PendingRetries = nil
	case len(e.placed) == 0:
	case !e.isRetryNew():
		e.status.PendingRetries = e.pendingRetries()
	case e.unplannedRetries == 0 && len(e.unreachedRetries) <= v1alpha1.MaxPendingRetries:
		e.status.ObservedRetry, e.status.PendingRetries = e.Image.Spec.Retry.Token, e.unreachedRetries
	}
}

// pendingRetries are those that cannot be reached still, or whose plans do not show the token yet.
func (e *evaluation) pendingRetries() (names []string) {
	for i := range e.placed {
		if c := &e.placed[i]; c.pendingRetry && (c.retry != c.PlannedRetry || slices.Contains(e.unreachedRetries, c.Name)) {
			names = append(names, c.Name)
		}
	}
	return names
}

// explainRetry says why spec.retry does not start a failed cluster over; empty where it does.
func (e *evaluation) explainRetry(c *placedCluster) string {
	if isFailed(c.state) && c.retry != c.PlannedRetry {
		return "spec.retry starts it over once its plan can be written: see " + v1alpha1.ConditionPolicyAcknowledged + " of its MemberCluster"
	}
	if !isFailed(c.state) || c.KnowsRetry || !e.selectsForRetry(c) || c.Report.refusesRevision(c.effective.Revision) {
		return ""
	}
	return fmt.Sprintf("its agent%s does not follow spec.retry: upgrade chart ot-agent there, or change annotation %s of the image in the cluster",
		parenthesize(c.AgentVersion), v1alpha1.AnnotationRetry)
}

func parenthesize(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}
