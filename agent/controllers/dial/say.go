package dial

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// said is what was told last of the connection to the hub.
type said struct {
	mu        sync.Mutex
	connected bool
	outcome   *outcome
}

// say tells people how the connection is: in a condition, which the ledger's
// controller writes with what else it has to say, in metrics, and in the log.
func (r *Reconciler) say(ctx context.Context, d decision) {
	connected, o := tell(d, r.Carrier.state())
	if o != nil {
		o.message = dial.Cut(o.message, mostMessage)
	}
	r.Metrics.Connected(connected)
	if d.carry != nil {
		r.Metrics.Expires(d.carry.token.Expires)
	}
	r.said.mu.Lock()
	before := r.said.outcome
	same := (before == nil) == (o == nil) && (o == nil || *o == *before) && r.said.connected == connected
	r.said.connected, r.said.outcome = connected, o
	r.said.mu.Unlock()
	if same {
		return
	}
	if o != nil {
		log.FromContext(ctx).Info("The connection to the hub", "connected", connected, "reason", o.reason, "message", o.message)
	}
	r.Changed()
}

// mostMessage of a condition: what is in a Secret may be longer than a ledger takes, and
// a ledger that cannot be written stops everything.
const mostMessage = 2048

// Condition is HubConnected for the ledger; nil where nothing was ever given to this
// agent to dial in with.
func (r *Reconciler) Condition() *metav1.Condition {
	r.said.mu.Lock()
	defer r.said.mu.Unlock()
	if r.said.outcome == nil {
		return nil
	}
	c := &metav1.Condition{
		Type: v1alpha1.ConditionHubConnected, Status: metav1.ConditionFalse,
		Reason: r.said.outcome.reason, Message: r.said.outcome.message,
	}
	if r.said.connected {
		c.Status = metav1.ConditionTrue
	}
	return c
}
