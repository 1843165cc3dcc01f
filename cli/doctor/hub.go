package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// Reasons of images by which the hub learns that a check would fail in the member.
var (
	webhookReasons       = []v1alpha1.Reason{v1alpha1.ReasonCDIUnavailable}
	namespaceReasons     = []v1alpha1.Reason{v1alpha1.ReasonNamespaceMissing, v1alpha1.ReasonNamespaceTerminating}
	cdiReasons           = []v1alpha1.Reason{v1alpha1.ReasonCDIMissing}
	cdiVersionReasons    = []v1alpha1.Reason{v1alpha1.ReasonCDITooOld}
	storageClassReasons  = []v1alpha1.Reason{v1alpha1.ReasonStorageClassMissing}
	profileReasons       = []v1alpha1.Reason{v1alpha1.ReasonStorageProfileIncomplete}
	snapshotClassReasons = []v1alpha1.Reason{v1alpha1.ReasonSnapshotClassMissing, v1alpha1.ReasonSnapshotClassMismatch}
	capacityReasons      = []v1alpha1.Reason{v1alpha1.ReasonInsufficientStorage}
	snapshotReasons      = []v1alpha1.Reason{v1alpha1.ReasonSnapshotFailed}
	quotaReasons         = []v1alpha1.Reason{v1alpha1.ReasonQuotaExceeded}
	secretReasons        = []v1alpha1.Reason{v1alpha1.ReasonSecretMissing, v1alpha1.ReasonSecretForbidden, v1alpha1.ReasonSecretInvalid}
)

// reportedAs returns a check that fails where an image is reported with one of the reasons.
// That none is reported shows nothing.
func reportedAs(reasons []v1alpha1.Reason) func(*examiner) {
	return func(e *examiner) {
		if !e.hasRead(SourceMember, SourceHubReports) {
			return
		}
		byMessage := map[string][]string{}
		var messages []string
		for i := range e.Hub.ReportedImage {
			img := &e.Hub.ReportedImage[i]
			if !slices.Contains(reasons, img.reasonOfCheck()) {
				continue
			}
			message := string(img.Reason) + ": " + img.Message
			if byMessage[message] == nil {
				messages = append(messages, message)
			}
			byMessage[message] = append(byMessage[message], img.Namespace+"/"+img.Name)
		}
		if len(messages) == 0 {
			e.addSkip("no image reports it, which shows nothing: needs --live or --member-context")
		}
		slices.Sort(messages)
		for _, message := range messages {
			e.addFail("images "+joinFirst(byMessage[message]), message+e.asOf(), "", "")
		}
	}
}

// reasonOfCheck tells storage that is short from a quota or a LimitRange that is: an image has
// one reason for both, and names the object in its message.
func (p *ImageProblem) reasonOfCheck() v1alpha1.Reason {
	if p.Reason == v1alpha1.ReasonInsufficientStorage && (strings.Contains(p.Message, "ResourceQuota ") || strings.Contains(p.Message, "LimitRange ")) {
		return v1alpha1.ReasonQuotaExceeded
	}
	return p.Reason
}

// asOf says how old what a silent member reported is.
func (e *examiner) asOf() string {
	if e.Hub.SilentSince == nil {
		return ""
	}
	return fmt.Sprintf(" (as of %s, the member is silent)", e.Hub.SilentSince.UTC().Format("2006-01-02 15:04Z"))
}

// judgeMember takes over a condition of the MemberCluster.
func (e *examiner) judgeMember(kind string) {
	if !e.hasRead(SourceMember) {
		return
	}
	c := meta.FindStatusCondition(e.Hub.Conditions, kind)
	switch {
	case c == nil:
		e.addSkip("the hub has not written condition %s yet", kind)
	case c.Status == metav1.ConditionTrue:
		e.addPass("condition "+kind, "%s", cmp.Or(c.Message, c.Reason))
	case c.Status == metav1.ConditionFalse:
		e.addFail("condition "+kind, c.Reason+": "+c.Message, "True", "")
	default:
		e.addSkip("condition %s is Unknown: %s", kind, c.Message)
	}
}

func (e *examiner) memberReports() { e.judgeMember(v1alpha1.ConditionAgentHealthy) }

func (e *examiner) memberVersion() { e.judgeMember(v1alpha1.ConditionVersionSupported) }

func (e *examiner) memberPolicy() {
	if message := e.awaitedAcknowledgement(); message != "" {
		e.addSkip("in progress: %s", message)
	} else {
		e.judgeMember(v1alpha1.ConditionPolicyAcknowledged)
	}
	if c := meta.FindStatusCondition(e.reported(), v1alpha1.ConditionPolicyAccepted); c != nil && c.Status == metav1.ConditionFalse {
		e.addFail("condition "+c.Type, c.Reason+": "+strings.TrimSpace(c.Message)+e.asOf(), "True", "")
	}
}

// awaitedAcknowledgement returns what condition PolicyAcknowledged says while its plan is younger than
// the member may be silent: the acknowledgement is in its next report. It is empty where a report
// refuses the plan, or is late.
//
// The condition became False when the member last ran the newest plan, or first reported without one:
// where plans follow each other, the check may fail early, but never passes over a plan that waits.
func (e *examiner) awaitedAcknowledgement() string {
	if e.Hub == nil || e.Hub.SilentSince != nil || e.ServerTime.IsZero() {
		return ""
	}
	c := meta.FindStatusCondition(e.Hub.Conditions, v1alpha1.ConditionPolicyAcknowledged)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonNotAcknowledged {
		return ""
	}
	if accepted := meta.FindStatusCondition(e.reported(), v1alpha1.ConditionPlanAccepted); accepted != nil &&
		accepted.Status == metav1.ConditionFalse && accepted.Reason != v1alpha1.ReasonNoPlan {
		return ""
	}
	silence := memberstatus.SilenceTimeout(&v1alpha1.ReportRoot{HeartbeatSeconds: e.Hub.HeartbeatSeconds})
	if e.ServerTime.Sub(c.LastTransitionTime.Time).Abs() > silence { // a hub's clock may have been ahead
		return ""
	}
	return c.Message
}

// judgeReported takes over a condition of the SyncLedger, as the member reported it.
func (e *examiner) judgeReported(kind string, bad Status) {
	if !e.hasRead(SourceMember, SourceHubReports) {
		return
	}
	if e.Hub.SilentSince != nil {
		e.addSkip("the member is silent: see agent-running")
		return
	}
	e.judgeCondition(e.reported(), kind, bad)
}

func (e *examiner) reported() []metav1.Condition {
	if e.Hub == nil {
		return nil
	}
	return e.Hub.Reported
}

func (e *examiner) reportedRights() { e.judgeReported(v1alpha1.ConditionRightsComplete, Fail) }

func (e *examiner) reportedGuard() { e.judgeReported(v1alpha1.ConditionBudgetGuarded, Fail) }

func (e *examiner) reportedOneDownload() { e.judgeReported(v1alpha1.ConditionOneDownload, Warn) }
