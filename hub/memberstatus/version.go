package memberstatus

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxMinorSkew is how far the minor versions of hub and agent may be apart, whichever is
// the older: those that are tested together.
const maxMinorSkew = 1

// versionSupported judges the agent's version by the hub's. What is not known to be of a
// release, as what somebody built himself, is not judged. Kinds that are older than the
// hub are as they should be until the agent is upgraded, whose chart brings them.
func (s *statusBuilder) versionSupported() conditionState {
	if s.Report == nil {
		return s.neverReportedState()
	}
	told, dropped := s.Report.AgentVersion, strings.Join(s.UnsupportedFields, ", ")
	hub, hubErr := version.ParseGeneric(s.HubVersion)
	agent, agentErr := version.ParseGeneric(told)
	released := hubErr == nil && agentErr == nil
	supported := released && agent.Major() == hub.Major() && absDiff(agent.Minor(), hub.Minor()) <= maxMinorSkew
	switch {
	case dropped != "" && supported && agent.LessThan(hub):
		return conditionTrue(v1alpha1.ReasonSupported, "agent %s and hub %s are at most one minor version apart. The member's kinds are as old as its agent and do not have %s, "+
			"so nothing is done about that before chart ot-agent is upgraded, which brings newer kinds first", told, s.HubVersion, dropped)
	case dropped != "" && (supported || !released):
		return conditionFalse(v1alpha1.ReasonKindsOlder, "the member's kinds are older than hub %s and agent %s, and do not have %s: of what is planned that is lost. "+
			"Apply the CustomResourceDefinitions of the agent's release there, as `helm upgrade` of chart ot-agent does with crds.enabled=true, and restart the agent", s.HubVersion, told, dropped)
	case !released:
		return conditionUnknown(v1alpha1.ReasonVersionUnknown, "the agent is of version %q and the hub of %q: whether these work together can be told of releases only", told, s.HubVersion)
	case supported:
		return conditionTrue(v1alpha1.ReasonSupported, "agent %s and hub %s are at most one minor version apart", told, s.HubVersion)
	case agent.LessThan(hub):
		how := "upgrade it with chart ot-agent, one minor version at a time"
		if s.Installed != nil {
			how = "the hub installs it, see AgentInstalled"
		}
		return conditionFalse(v1alpha1.ReasonVersionTooOld, "agent %s is more than one minor version older than hub %s: %s. Until then it may not know what it is asked for", told, s.HubVersion, how)
	default:
		return conditionFalse(v1alpha1.ReasonVersionTooNew, "agent %s is more than one minor version newer than hub %s: upgrade the hub. "+
			"Until then what the agent reports may not be understood", told, s.HubVersion)
	}
}

func absDiff(a, b uint) uint { return max(a, b) - min(a, b) }
