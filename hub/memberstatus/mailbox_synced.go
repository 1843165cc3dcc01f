package memberstatus

import (
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func (s *statusBuilder) mailboxSynced() conditionState {
	switch {
	case s.Connection.SpecChanged:
		return conditionUnknown(v1alpha1.ReasonConnectionChanged, "the spec changed, and nothing was copied by the new one yet (see %s)", v1alpha1.ConditionReachable)
	case s.SyncError != "":
		return conditionFalse(v1alpha1.ReasonSyncFailed, "%s", s.SyncError)
	case s.ReportOlder:
		return conditionFalse(v1alpha1.ReasonSyncFailed, "the report in the member is older than the hub's copy and is not copied: the member was restored from a backup, or its clock was set back; "+
			"if that lasts, delete ClusterReport %s in namespace %s of the hub", v1alpha1.MailboxName, s.status.Namespace)
	case s.Connection.Known && s.Connection.ReportPending:
		return conditionUnknown(v1alpha1.ReasonConnectionChanged, "the spec changed, and no report was read by the new connection yet: check that ot-agent runs in namespace %s of the member", s.Member.Spec.AgentNamespace)
	case !s.Connection.Reachable || s.Report == nil:
		return conditionUnknown(v1alpha1.ReasonUnknown, "nothing is copied at present (see %s and %s)", v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy)
	}
	return conditionTrue(v1alpha1.ReasonSynced, "plan and report are copied")
}

// maxClockSkew is how far a member's clock may differ from the hub's before its status says
// so.
const maxClockSkew = 5 * time.Minute

// clockNote says that the times of a report are not those of the hub; empty if they are.
func (s *statusBuilder) clockNote() string {
	if s.ReceivedAt == nil {
		return ""
	}
	switch ahead := s.Report.ObservedAt.Sub(*s.ReceivedAt); {
	case ahead > maxClockSkew:
		return fmt.Sprintf("; its clock is more than %s ahead of the hub's: correct it, since times of images are by that clock", maxClockSkew)
	case ahead < -maxClockSkew:
		return fmt.Sprintf("; its clock is more than %s behind the hub's: correct it, since times of images are by that clock", maxClockSkew)
	}
	return ""
}
