package ledger

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// planReading is what was made of the ClusterPlan.
type planReading struct {
	// policy of the hub that holds; nil for none. Where a plan is refused, it is
	// the policy of the one that was acknowledged last.
	policy *policy.Policy
	source string
	// accepted is acknowledged by the write of the ledger; nil where no plan is
	// gone by.
	accepted *v1alpha1.ClusterPlanSpec
	// gone: there is no plan, as a live read has told.
	gone    bool
	reason  string
	message string
}

// settledPlan is a plan that is not to be gone by, as a live read has confirmed:
// the version of its object, and the plan that had been acknowledged then.
type settledPlan struct {
	object       string
	acknowledged v1alpha1.PlanVersion
}

// readPlan reads the ClusterPlan.
func (r *Reconciler) readPlan(ctx context.Context, ledger *v1alpha1.SyncLedger) (planReading, error) {
	key := types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}
	none := planReading{
		reason:  v1alpha1.ReasonNoPlan,
		message: fmt.Sprintf("there is no ClusterPlan %s: the policy ConfigMap alone holds", key),
	}
	if !r.planServed.Load() {
		return none, nil
	}
	st := statusOf(ledger)
	p, err := r.currentPlan(ctx, key, st)
	if err != nil {
		return planReading{}, err
	}
	if p == nil {
		none.gone = true
		return none, nil
	}
	own, err := r.Cluster.UID(ctx)
	if err != nil {
		return planReading{}, err
	}
	verdict := plan.Judge(p.Spec, own, st.Plan)
	reading := planReading{reason: verdict.Reason, message: verdict.Message}
	if verdict.Accepted {
		reading.accepted = &p.Spec
		reading.policy, reading.source = verdict.Policy, p.Spec.PolicySource
		return reading, nil
	}
	if len(st.PlanPolicy) > 0 {
		if last, _, errs := policy.Parse(st.PlanPolicy); len(errs) == 0 {
			reading.policy, reading.source = &last, st.PlanPolicySource
		}
	}
	if c := planCondition(st); c == nil || c.Message != verdict.Message {
		r.Events.Eventf(p, nil, corev1.EventTypeWarning, "PlanRefused", "ReadPlan", "%s: %s", verdict.Reason, verdict.Message)
	}
	return reading, nil
}

// currentPlan is the plan as the cache shows it, nil where there is none. One
// that is gone while the ledger still has something of it, or that does not follow what the ledger was written under, be it that another
// leader has acknowledged a newer one, is read live: going by it would raise a
// budget again that was lowered.
func (r *Reconciler) currentPlan(ctx context.Context, key types.NamespacedName, st v1alpha1.SyncLedgerStatus) (*v1alpha1.ClusterPlan, error) {
	p := &v1alpha1.ClusterPlan{}
	err := r.Mailbox.Get(ctx, key, p)
	if cached := p.ResourceVersion; r.mayBeOld(p, err, st) {
		p = &v1alpha1.ClusterPlan{}
		if err = r.Live.Get(ctx, key, p); err == nil && p.ResourceVersion == cached {
			r.settled = settledPlan{object: cached, acknowledged: *st.Plan}
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ClusterPlan %s: %w", key, err)
	}
	return p, nil
}

// mayBeOld tells that the cache's answer is from before what the ledger says.
func (r *Reconciler) mayBeOld(p *v1alpha1.ClusterPlan, err error, st v1alpha1.SyncLedgerStatus) bool {
	switch {
	case st.Plan == nil:
		return false
	case err == nil:
		return !plan.Follows(p.Spec.PlanVersion, st.Plan) && r.settled != settledPlan{object: p.ResourceVersion, acknowledged: *st.Plan}
	case apierrors.IsNotFound(err):
		c := planCondition(st)
		return c == nil || c.Reason != v1alpha1.ReasonNoPlan || len(st.PlanPolicy) > 0
	default:
		return false
	}
}

// acknowledge writes what was made of the plan into the ledger. planPolicy stays
// while a plan is there, one that is refused included: a hub that was restored
// from a backup reads there what it has forgotten. With the plan it goes: the
// hub let go of the member, and one that takes it back is not to be held to it.
// What was acknowledged stays, so that a later plan is above it.
func (p planReading) acknowledge(st *v1alpha1.SyncLedgerStatus) {
	if p.gone {
		st.PlanPolicy, st.PlanPolicySource = nil, ""
	}
	if p.accepted == nil {
		return
	}
	version := p.accepted.PlanVersion
	st.Plan = &version
	st.PlanPolicy, st.PlanPolicySource = maps.Clone(p.accepted.Policy), p.accepted.PolicySource
}

// ownPolicy is a valid policy ConfigMap.
type ownPolicy struct {
	version     string
	concurrency int32
}

// underPlan is what holds of the member's own policy and of the plan's.
func (r *Reconciler) underPlan(own reading, p planReading, st v1alpha1.SyncLedgerStatus) reading {
	if own.accepted {
		r.own = ownPolicy{version: own.version, concurrency: own.policy.Concurrency}
	}
	own.plan = p
	if p.policy == nil {
		own.policy = policy.Combine(own.policy, nil)
		return own
	}
	text := "the hub's policy is in force"
	if p.source != "" {
		text += " (" + p.source + ")"
	}
	switch own.reason {
	case reasonAccepted:
		if own.policy.Concurrency < p.policy.Concurrency {
			text += fmt.Sprintf(", with the smaller concurrency of ConfigMap %s, %d", r.PolicyKey, own.policy.Concurrency)
		}
		own.policy, own.message = policy.Combine(own.policy, p.policy), text+own.ignored
	case reasonMissing:
		own.accepted, own.reason = true, reasonAccepted
		own.policy, own.message = policy.Combine(nil, p.policy), text
	case reasonInvalid:
		last, known := r.lastOwn(st)
		own.policy = policy.Combine(nil, p.policy)
		if known {
			own.policy.Concurrency = min(own.policy.Concurrency, last)
		}
		own.message = fmt.Sprintf("%s %s, concurrency %d", own.fault, text, own.policy.Concurrency)
	}
	own.store = true
	return own
}

// lastOwn is the concurrency of the last valid ConfigMap that the ledger was
// written under: it goes on to be a limit while the ConfigMap is wrong. An agent
// that has not read it itself takes the concurrency in force, which was no
// higher.
func (r *Reconciler) lastOwn(st v1alpha1.SyncLedgerStatus) (concurrency int32, known bool) {
	if st.PolicyVersion == "" {
		return 0, false
	}
	if r.own.version == st.PolicyVersion {
		return r.own.concurrency, true
	}
	p, _, errs := policy.Parse(st.Policy)
	return p.Concurrency, len(errs) == 0
}

func planCondition(st v1alpha1.SyncLedgerStatus) *metav1.Condition {
	return meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionPlanAccepted)
}

func statusOf(ledger *v1alpha1.SyncLedger) v1alpha1.SyncLedgerStatus {
	if ledger.Status == nil {
		return v1alpha1.SyncLedgerStatus{}
	}
	return *ledger.Status
}
