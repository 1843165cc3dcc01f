package fleet

import (
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// minorsApart is how far the minor versions of hub and agent may be apart, whichever is
// the older: those that are tested together.
const minorsApart = 1

// versionSupported judges the agent's version by the hub's. What is not known to be of a
// release, as what somebody built himself, is not judged.
func (s *memberStep) versionSupported() verdict {
	if s.Report == nil {
		return s.neverReported()
	}
	told := s.Report.AgentVersion
	hub, hubErr := version.ParseGeneric(s.HubVersion)
	agent, agentErr := version.ParseGeneric(told)
	switch {
	case hubErr != nil || agentErr != nil:
		return unknown(v1alpha1.ReasonVersionUnknown, "the agent is of version %q and the hub of %q: whether these work together can be told of releases only", told, s.HubVersion)
	case agent.Major() == hub.Major() && apart(agent.Minor(), hub.Minor()) <= minorsApart:
		return holds(v1alpha1.ReasonSupported, "agent %s and hub %s are at most one minor version apart", told, s.HubVersion)
	case agent.LessThan(hub):
		how := "upgrade it with chart ot-agent, one minor version at a time"
		if s.Installed != nil {
			how = "the hub installs it, see AgentInstalled"
		}
		return fails(v1alpha1.ReasonVersionTooOld, "agent %s is more than one minor version older than hub %s: %s. Until then it may not know what it is asked for", told, s.HubVersion, how)
	default:
		return fails(v1alpha1.ReasonVersionTooNew, "agent %s is more than one minor version newer than hub %s: upgrade the hub. "+
			"Until then what the agent reports may not be understood", told, s.HubVersion)
	}
}

func apart(a, b uint) uint { return max(a, b) - min(a, b) }
