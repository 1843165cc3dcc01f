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
// read its report since it started: status.pendingRetries has those.
func (e *evaluation) evaluateRetry(c *placedCluster) {
	if !c.started {
		return
	}
	c.retry = c.PlannedRetry
	pending := e.isRetryPending(c.Name)
	isNew := isFailed(c.state) && (e.isRetryNew() || pending) && e.canRetry(c) && !slices.Contains([]string{c.PlannedRetry, c.Report.Retry}, e.Image.Spec.Retry.Token)
	switch {
	case !isNew && pending && c.OfflineReason == v1alpha1.ReasonQuarantined: // what it reported is not believed, and not forgotten
		e.offlineRetries = append(e.offlineRetries, c.Name)
	case isNew && c.OfflineReason != "":
		c.retry = e.Image.Spec.Retry.Token
		e.offlineRetries = append(e.offlineRetries, c.Name)
	case isNew:
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

// isRetryPending reports whether a cluster had failed when the token of spec.retry was observed,
// and gets it now.
func (e *evaluation) isRetryPending(cluster string) bool {
	r := e.Image.Spec.Retry
	return r != nil && r.Token != "" && r.Token == e.Image.Status.ObservedRetry && slices.Contains(e.Image.Status.PendingRetries, cluster)
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

// observeRetry stores that all failed clusters have the token, and which of them have yet to come
// back. While none is selected, it is not known which have failed.
func (e *evaluation) observeRetry() {
	r := e.Image.Spec.Retry
	switch {
	case r == nil || r.Token == "":
		e.status.PendingRetries = nil
	case len(e.placed) == 0:
	case !e.isRetryNew():
		e.status.PendingRetries = e.pendingRetries()
	case e.unplannedRetries == 0 && len(e.offlineRetries) <= v1alpha1.MaxPendingRetries:
		e.status.ObservedRetry, e.status.PendingRetries = r.Token, e.offlineRetries
	}
}

// pendingRetries are those that are offline still, or whose plans do not show the token yet.
func (e *evaluation) pendingRetries() (names []string) {
	for i := range e.placed {
		if c := &e.placed[i]; e.isRetryPending(c.Name) && (c.retry != c.PlannedRetry || slices.Contains(e.offlineRetries, c.Name)) {
			names = append(names, c.Name)
		}
	}
	return names
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
