package rollout

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// isBlocked reports whether a member waits with a revision until a person acts there.
func (r *Report) isBlocked(revision string) bool {
	switch {
	case r.ItemState == v1alpha1.PlanItemWaiting:
		return r.ItemReason != "" && (r.ItemRevision == "" || r.ItemRevision == revision)
	case !r.Exists || r.Revision != revision:
		return false
	default:
		// Referenced: the image is to be deleted, and machines hold it.
		return r.Stalled || r.Reason.NeedsUserAction() || r.isPaused() || r.Reason == v1alpha1.ReasonReferenced
	}
}

// isPaused reports whether somebody has set the member's concurrency to 0: nothing is wrong
// there.
func (r *Report) isPaused() bool {
	return r.ItemState != v1alpha1.PlanItemWaiting && r.Reason == v1alpha1.ReasonPaused
}

// blockedGrace is how long no cluster must proceed before the rollout is stalled: a
// namespace or Secret often arrives seconds after the image.
const blockedGrace = time.Minute

// onlyBlockedProceed reports whether nothing starts before a blocked cluster proceeds, in
// one of which something is to be corrected. Other blockers name their own way on.
func (e *evaluation) onlyBlockedProceed(b blocker) bool {
	if isObstacle(b.reason) {
		return e.counts.blocked == e.counts.Progressing
	}
	waitsForClusters := b.reason == v1alpha1.ReasonAwaitingClusters || b.reason == v1alpha1.ReasonMaxConcurrency
	return waitsForClusters && e.counts.blocked > e.counts.paused && e.counts.blocked == e.counts.Progressing
}

// updateBlockedSince sets since when only blocked clusters could proceed, and reports
// whether that lasts for longer than blockedGrace.
func (e *evaluation) updateBlockedSince(b blocker) bool {
	if !e.onlyBlockedProceed(b) {
		return false
	}
	since := e.Image.Status.BlockedSince.DeepCopy()
	if e.versionChanged || since == nil || since.After(e.Now) {
		since = ptr.To(storedtime.Truncate(e.Now))
	}
	e.status.BlockedSince = since
	end := since.Add(blockedGrace)
	e.requeueAt(end)
	return !e.Now.Before(end)
}

// blockedClusters returns the first blocked clusters, by name.
func (e *evaluation) blockedClusters() []v1alpha1.ClusterSummary {
	return e.summarizeClusters(int(e.counts.blocked+e.counts.heldBack), v1alpha1.MaxBlockedClusters, func(c *placedCluster) bool { return c.blocked })
}

const (
	// maxListedMessage bounds what one cluster says in the status message.
	maxListedMessage = 160
	// maxListedVersion bounds a version, which the member chooses.
	maxListedVersion = 32
)

// blockedMessage says which clusters wait until a person acts, and for what.
func (e *evaluation) blockedMessage() string {
	n := int(e.counts.blocked + e.counts.heldBack)
	if n == 0 {
		return ""
	}
	listed := e.blockedClusters()
	listed = listed[:min(len(listed), maxListedNames)]
	names := make([]string, len(listed))
	for i, c := range listed {
		names[i] = fmt.Sprintf("%s (%s: %s)", c.Cluster, c.Reason, v1alpha1.SanitizeText(c.Message, maxListedMessage))
	}
	return fmt.Sprintf(". In %s a person has to act: %s. See status.blocked", pluralClusters(int32(n)), v1alpha1.JoinFirst(names, maxListedNames, n))
}

// unknownFieldsMessage says what a cluster does not take. Its agent may be new enough, and
// its CustomResourceDefinitions older.
func (c *placedCluster) unknownFieldsMessage() string {
	names := make([]string, 0, len(c.UnknownFields))
	for _, field := range c.UnknownFields {
		names = append(names, strings.Replace(field, "=", " ", 1))
	}
	agent := "its agent"
	if c.AgentVersion != "" {
		agent += " " + v1alpha1.SanitizeText(c.AgentVersion, maxListedVersion)
	}
	return fmt.Sprintf("%s, or a CustomResourceDefinition there, does not know spec.template's %s: upgrade chart ot-agent", agent, v1alpha1.JoinFirst(names, maxListedNames, len(names)))
}
