package mailbox

import (
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Outcome is the reason and message of condition HubConnected.
type Outcome struct{ Reason, Message string }

// ConnectionState is the state of the connection to the hub. The zero state: no attempt
// to connect has ended yet.
type ConnectionState struct {
	// Attempted is true once an attempt to connect has ended.
	Attempted bool
	Connected bool
	Outcome
}

func disconnected(o Outcome) ConnectionState { return ConnectionState{Attempted: true, Outcome: o} }

// ExplainError returns why the hub is not reached and what to do about it.
func ExplainError(err error) Outcome {
	kind, why := hubclient.ClassifyError(err)
	switch kind {
	case hubclient.CertificateFailure:
		return Outcome{v1alpha1.ReasonCertificateNotTrusted, "the hub: " + why +
			". Check this machine's clock first; otherwise have the hub make a new join token with the right authority and address (pull.apiURL and pull.apiCA of its chart)"}
	case hubclient.UnauthorizedFailure, hubclient.ForbiddenFailure:
		return Outcome{v1alpha1.ReasonUnauthorized, "the hub: " + why +
			". If the credential was revoked, or the member was deleted on the hub: have the hub make a join token (annotation " +
			v1alpha1.AnnotationJoinToken + " of the MemberCluster) and put it into Secret " + registration.JoinSecret}
	}
	if kind == hubclient.LimitFailure {
		return Outcome{v1alpha1.ReasonOverLimits, "the hub: " + why + ". Check which server answers at the hub's address (pull.apiURL of its chart); the last plan stays in force"}
	}
	return Outcome{v1alpha1.ReasonUnreachable, "the hub: " + why + ". The agent keeps retrying; the last plan stays in force"}
}
