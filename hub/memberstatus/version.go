package memberstatus

import (
	"strings"

	"github.com/pelotech/ot-fleet/api/compatibility"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// versionSupported compares the versions of agent and hub. Builds of no release are not
// judged. Until the agent is upgraded, kinds that are older than the hub are expected:
// the agent's chart brings them.
func (s *statusBuilder) versionSupported() conditionState {
	if s.Report == nil {
		return s.neverReportedState()
	}
	reported, missing := s.Report.AgentVersion, strings.Join(s.UnsupportedFields, ", ")
	distance := compatibility.DistanceOf(reported, s.HubVersion)
	released, supported := distance != compatibility.Unknown, distance == compatibility.Supported
	switch {
	case missing != "" && supported && compatibility.IsOlder(reported, s.HubVersion):
		return conditionTrue(v1alpha1.ReasonSupported, "agent %s and hub %s are at most one minor version apart; the member's CRDs lack %s until chart ot-agent is upgraded", reported, s.HubVersion, missing)
	case missing != "" && (supported || !released):
		return conditionFalse(v1alpha1.ReasonKindsOlder, "the member's CRDs are older than hub %s and agent %s and lack %s, which the plan loses: "+
			"apply the CRDs of the agent's release there, as `helm upgrade` of chart ot-agent does with crds.enabled=true, and restart the agent", s.HubVersion, reported, missing)
	case !released:
		return conditionUnknown(v1alpha1.ReasonVersionUnknown, "the agent has version %q and the hub %q: compatibility is known for releases only", reported, s.HubVersion)
	case supported:
		return conditionTrue(v1alpha1.ReasonSupported, "agent %s and hub %s are at most one minor version apart", reported, s.HubVersion)
	case distance == compatibility.TooOld:
		advice := "upgrade it with chart ot-agent, one minor version at a time"
		if s.Installed != nil {
			advice = "the hub upgrades it, see AgentInstalled"
		}
		return conditionFalse(v1alpha1.ReasonVersionTooOld, "agent %s is more than one minor version older than hub %s: %s. Until then it may ignore parts of its plan", reported, s.HubVersion, advice)
	default:
		return conditionFalse(v1alpha1.ReasonVersionTooNew, "agent %s is more than one minor version newer than hub %s: upgrade the hub. "+
			"Until then the hub may misread its report", reported, s.HubVersion)
	}
}
