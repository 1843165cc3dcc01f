package memberstatus

import (
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Connection is the state of the connection to a member's API server. Known: it has been
// tried. Reason is one of v1alpha1, Message says what to do. PullMode: the agent connects
// to the hub, and its reports show whether it does.
type Connection struct {
	PullMode         bool
	Known, Reachable bool
	Reason, Message  string
	// SpecChanged: what is known is about an earlier spec. Nothing else is set then.
	SpecChanged bool
	// ReportPending: no report was read by this connection yet.
	ReportPending bool
}

// NewConnection returns what a MemberLink says about the connection that the spec asks for;
// the link is nil for none. Carriers of older versions do not say which spec they connected
// for: what they say counts, unless they sync in the other mode.
func NewConnection(member *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) Connection {
	c := Connection{PullMode: member.Spec.Connection.Pull != nil}
	if link == nil || !link.Status.Known {
		return c
	}
	status, id := &link.Status, member.ConnectionID()
	byAgent := strings.HasPrefix(status.Carrier, v1alpha1.CarrierAgentPrefix)
	switch {
	case (link.Spec.Mode == v1alpha1.LinkPull) != c.PullMode,
		status.Carrier != "" && byAgent != c.PullMode,
		status.Connection != "" && status.Connection != id:
		c.SpecChanged = true
		return c
	}
	c.Known, c.Reachable, c.Reason, c.Message = true, status.Reachable, status.Reason, status.Message
	c.ReportPending = status.ReportConnection != "" && status.ReportConnection != id
	return c
}
