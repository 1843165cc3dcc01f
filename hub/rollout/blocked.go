package rollout

import (
	"fmt"
	"strings"

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
		// Paused: somebody has set the member's concurrency to 0. Referenced: the image is to
		// be deleted, and machines hold it.
		return r.Reason.NeedsUserAction() || r.Reason == v1alpha1.ReasonPaused || r.Reason == v1alpha1.ReasonReferenced
	}
}

// onlyBlockedProceed reports whether nothing starts before a blocked cluster proceeds. Other
// blockers name their own way on.
func (e *evaluation) onlyBlockedProceed(b blocker) bool {
	waitsForClusters := b.reason == v1alpha1.ReasonAwaitingClusters || b.reason == v1alpha1.ReasonMaxConcurrency
	return waitsForClusters && e.counts.blocked > 0 && e.counts.blocked == e.counts.Progressing
}

// blockedClusters returns the first blocked clusters, by name.
func (e *evaluation) blockedClusters() []v1alpha1.ClusterSummary {
	return e.summarizeClusters(int(e.counts.blocked), v1alpha1.MaxBlockedClusters, func(c *placedCluster) bool { return c.blocked })
}

// maxListedMessage bounds what one cluster says in the status message.
const maxListedMessage = 160

// blockedMessage says which clusters wait until a person acts, and for what.
func (e *evaluation) blockedMessage() string {
	n := int(e.counts.blocked)
	if n == 0 {
		return ""
	}
	listed := e.blockedClusters()
	listed = listed[:min(len(listed), maxListedNames)]
	names := make([]string, len(listed))
	for i, c := range listed {
		names[i] = fmt.Sprintf("%s (%s: %s)", c.Cluster, c.Reason, v1alpha1.SanitizeText(c.Message, maxListedMessage))
	}
	text := strings.Join(names, ", ")
	if more := n - len(listed); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf(". In %s a person has to act: %s. See status.blocked", pluralClusters(int32(n)), text)
}
