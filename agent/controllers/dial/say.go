package dial

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// publishedStatus is what was told last of the connection to the hub.
type publishedStatus struct {
	mu        sync.Mutex
	connected bool
	outcome   *outcome
}

// publishStatus tells people how the connection is: in a condition, which the ledger's
// controller writes with what else it has to say, in metrics, and in the log.
func (r *Reconciler) publishStatus(ctx context.Context, d decision) {
	connected, o := summarizeConnection(d, r.Syncer.connectionState())
	if o != nil {
		o.message = hubclient.TruncateText(o.message, maxConditionMessageBytes)
	}
	r.Metrics.SetConnected(connected)
	if d.activeCredential != nil {
		r.Metrics.SetCredentialExpiry(d.activeCredential.token.Expires)
	}
	r.published.mu.Lock()
	before := r.published.outcome
	same := (before == nil) == (o == nil) && (o == nil || *o == *before) && r.published.connected == connected
	r.published.connected, r.published.outcome = connected, o
	r.published.mu.Unlock()
	if same {
		return
	}
	if o != nil {
		log.FromContext(ctx).Info("The connection to the hub", "connected", connected, "reason", o.reason, "message", o.message)
	}
	r.OnChange()
}

// maxConditionMessageBytes of a condition: what is in a Secret may be longer than a ledger takes, and
// a ledger that cannot be written stops everything.
const maxConditionMessageBytes = 2048

// Condition is HubConnected for the ledger; nil where nothing was ever given to this
// agent to dial in with.
func (r *Reconciler) Condition() *metav1.Condition {
	r.published.mu.Lock()
	defer r.published.mu.Unlock()
	if r.published.outcome == nil {
		return nil
	}
	c := &metav1.Condition{
		Type: v1alpha1.ConditionHubConnected, Status: metav1.ConditionFalse,
		Reason: r.published.outcome.reason, Message: r.published.outcome.message,
	}
	if r.published.connected {
		c.Status = metav1.ConditionTrue
	}
	return c
}
