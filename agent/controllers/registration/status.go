package registration

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/controllers/mailbox"
	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// outcome is the reason and message of condition HubConnected.
type outcome = mailbox.Outcome

// maxConditionMessageBytes bounds the message: what is in a Secret may be longer than a
// SyncLedger may hold, and a ledger that cannot be written stops everything.
const maxConditionMessageBytes = 2048

// publishedStatus is what publishStatus published last.
type publishedStatus struct {
	mu        sync.Mutex
	connected bool
	outcome   *outcome
}

// summarizeConnection returns what condition HubConnected says; nil for no condition. A
// registration that waits is appended to a connection that works, and replaces one that
// does not.
func summarizeConnection(d decision, state mailbox.ConnectionState) (connected bool, o *outcome) {
	switch {
	case d.active == nil && d.credentialProblem != "":
		return false, &outcome{Reason: v1alpha1.ReasonCredentialNotStored, Message: d.credentialProblem}
	case d.active == nil && d.joinStatus == nil:
		return false, nil
	case d.active == nil:
		return false, d.joinStatus
	case !state.Attempted:
		o = &outcome{Reason: v1alpha1.ReasonConnecting, Message: "connecting to the hub at " + d.active.Access.Server}
	default:
		o = &outcome{Reason: state.Reason, Message: state.Message}
	}
	switch {
	case d.joinStatus == nil:
	case state.Connected:
		o.Message += "; Secret " + registration.JoinSecret + " is not used: " + d.joinStatus.Message
	default:
		joinStatus := *d.joinStatus
		o = &joinStatus
	}
	if d.credentialProblem != "" {
		o.Message += "; " + d.credentialProblem
	}
	return state.Connected, o
}

// publishStatus publishes the state of registration and connection in metrics, in the log,
// and through Condition, which the ledger's controller writes.
func (r *Reconciler) publishStatus(ctx context.Context, d decision) {
	connected, o := summarizeConnection(d, r.Syncer.State())
	if o != nil {
		o.Message = v1alpha1.SanitizeText(o.Message, maxConditionMessageBytes)
	}
	r.Metrics.SetConnected(connected)
	if d.active != nil {
		r.Metrics.SetCredentialExpiry(d.active.Claims.Expires)
	}
	r.published.mu.Lock()
	before := r.published.outcome
	unchanged := (before == nil) == (o == nil) && (o == nil || *o == *before) && r.published.connected == connected
	r.published.connected, r.published.outcome = connected, o
	r.published.mu.Unlock()
	if unchanged {
		return
	}
	if o != nil {
		log.FromContext(ctx).Info("Hub connection changed", "connected", connected, "reason", o.Reason, "message", o.Message)
	}
	r.OnConditionChange()
}

// Condition returns condition HubConnected for the SyncLedger; nil where this agent never
// got anything to connect with.
func (r *Reconciler) Condition() *metav1.Condition {
	r.published.mu.Lock()
	defer r.published.mu.Unlock()
	if r.published.outcome == nil {
		return nil
	}
	return &metav1.Condition{
		Type: v1alpha1.ConditionHubConnected, Status: kstatus.StatusOf(r.published.connected),
		Reason: r.published.outcome.Reason, Message: r.published.outcome.Message,
	}
}
