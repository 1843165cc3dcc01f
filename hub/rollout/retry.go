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
// of these have the token.
func (e *evaluation) evaluateRetry(c *placedCluster) {
	if !c.started {
		return
	}
	c.retry = c.PlannedRetry
	isNew := isFailed(c.state) && e.isRetryNew() && e.canRetry(c) && !slices.Contains([]string{c.PlannedRetry, c.Report.Retry}, e.Image.Spec.Retry.Token)
	if isNew {
		c.retry = e.Image.Spec.Retry.Token
		e.unplannedRetries++
	}
	c.awaitsRetry = isNew || c.state == v1alpha1.ClusterFailed && c.KnowsRetry && c.retry != "" && c.retry != c.Report.Retry && c.Report.failedImport(c.effective.Revision)
	switch {
	case !c.awaitsRetry:
	case c.OfflineReason != "":
		c.state = v1alpha1.ClusterDeferred
	case isNew: // its deadline starts again
		c.state = v1alpha1.ClusterProgressing
		e.requeueAtDeadline()
	default:
		c.state = v1alpha1.ClusterProgressing
		e.checkProgressDeadline(c)
	}
}

// isRetryNew reports whether clusters that have failed get the token of spec.retry.
func (e *evaluation) isRetryNew() bool {
	r := e.Image.Spec.Retry
	return r != nil && r.Token != "" && r.Token != e.Image.Status.ObservedRetry
}

// canRetry reports whether spec.retry reaches a cluster. An item that the agent refuses is not
// helped by another attempt.
func (e *evaluation) canRetry(c *placedCluster) bool {
	return c.KnowsRetry && e.selectsForRetry(c) && !c.Report.refusesRevision(c.effective.Revision)
}

func (e *evaluation) selectsForRetry(c *placedCluster) bool {
	r := e.Image.Spec.Retry
	return r != nil && (len(r.Clusters) == 0 || slices.Contains(r.Clusters, c.Name))
}

// observeRetry stores that all failed clusters have the token. While none is selected, it is not known
// which have failed.
func (e *evaluation) observeRetry() {
	if e.isRetryNew() && e.unplannedRetries == 0 && len(e.placed) > 0 {
		e.status.ObservedRetry = e.Image.Spec.Retry.Token
	}
}

// explainRetry says how a failed cluster has to be started over whose agent does not follow
// spec.retry; empty for any other.
func (e *evaluation) explainRetry(c *placedCluster) string {
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
