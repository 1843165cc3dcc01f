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

// planState is what was made of the ClusterPlan.
type planState struct {
	// policy of the hub that holds; nil for none. Where a plan is refused, it is
	// the policy of the one that was acknowledged last.
	policy       *policy.Policy
	policySource string
	// acceptedPlan is acknowledged by the write of the ledger; nil where no plan is
	// gone by.
	acceptedPlan *v1alpha1.ClusterPlanSpec
	// gone: there is no plan, as a live read has told.
	absent  bool
	reason  string
	message string
}

// confirmedRefusal is a plan that is not to be gone by, as a live read has confirmed:
// the version of its object, and the plan that had been acknowledged then.
type confirmedRefusal struct {
	resourceVersion string
	acknowledged    v1alpha1.PlanVersion
}

// readPlan reads the ClusterPlan.
func (r *Reconciler) readPlan(ctx context.Context, ledger *v1alpha1.SyncLedger) (planState, error) {
	key := types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}
	none := planState{
		reason:  v1alpha1.ReasonNoPlan,
		message: fmt.Sprintf("there is no ClusterPlan %s: the policy ConfigMap alone holds", key),
	}
	if !r.planServed.Load() {
		return none, nil
	}
	st := ledgerStatus(ledger)
	p, err := r.readCurrentPlan(ctx, key, st)
	if err != nil {
		return planState{}, err
	}
	if p == nil {
		none.absent = true
		return none, nil
	}
	own, err := r.Cluster.UID(ctx)
	if err != nil {
		return planState{}, err
	}
	verdict := plan.EvaluatePlan(p.Spec, own, st.Plan)
	reading := planState{reason: verdict.Reason, message: verdict.Message}
	if verdict.Accepted {
		reading.acceptedPlan = &p.Spec
		reading.policy, reading.policySource = verdict.Policy, p.Spec.PolicySource
		return reading, nil
	}
	if len(st.PlanPolicy) > 0 {
		if last, _, errs := policy.Parse(st.PlanPolicy); len(errs) == 0 {
			reading.policy, reading.policySource = &last, st.PlanPolicySource
		}
	}
	if c := findPlanCondition(st); c == nil || c.Message != verdict.Message {
		r.Events.Eventf(p, nil, corev1.EventTypeWarning, "PlanRefused", "ReadPlan", "%s: %s", verdict.Reason, verdict.Message)
	}
	return reading, nil
}

// readCurrentPlan is the plan as the cache shows it, nil where there is none. One
// that is gone while the ledger still has something of it, or that does not follow what the ledger was written under, be it that another
// leader has acknowledged a newer one, is read live: going by it would raise a
// budget again that was lowered.
func (r *Reconciler) readCurrentPlan(ctx context.Context, key types.NamespacedName, st v1alpha1.SyncLedgerStatus) (*v1alpha1.ClusterPlan, error) {
	p := &v1alpha1.ClusterPlan{}
	err := r.Mailbox.Get(ctx, key, p)
	if cached := p.ResourceVersion; r.mayBeStale(p, err, st) {
		p = &v1alpha1.ClusterPlan{}
		if err = r.Live.Get(ctx, key, p); err == nil && p.ResourceVersion == cached {
			r.confirmedRefusal = confirmedRefusal{resourceVersion: cached, acknowledged: *st.Plan}
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

// mayBeStale tells that the cache's answer is from before what the ledger says.
func (r *Reconciler) mayBeStale(p *v1alpha1.ClusterPlan, err error, st v1alpha1.SyncLedgerStatus) bool {
	switch {
	case st.Plan == nil:
		return false
	case err == nil:
		return !plan.MayFollow(p.Spec.PlanVersion, st.Plan) && r.confirmedRefusal != confirmedRefusal{resourceVersion: p.ResourceVersion, acknowledged: *st.Plan}
	case apierrors.IsNotFound(err):
		c := findPlanCondition(st)
		return c == nil || c.Reason != v1alpha1.ReasonNoPlan || len(st.PlanPolicy) > 0
	default:
		return false
	}
}

// writeStatus writes what was made of the plan into the ledger. planPolicy stays
// while a plan is there, one that is refused included: a hub that was restored
// from a backup reads there what it has forgotten. With the plan it goes: the
// hub let go of the member, and one that takes it back is not to be held to it.
// What was acknowledged stays, so that a later plan is above it.
func (p planState) writeStatus(st *v1alpha1.SyncLedgerStatus) {
	if p.absent {
		st.PlanPolicy, st.PlanPolicySource = nil, ""
	}
	if p.acceptedPlan == nil {
		return
	}
	version := p.acceptedPlan.PlanVersion
	st.Plan = &version
	st.PlanPolicy, st.PlanPolicySource = maps.Clone(p.acceptedPlan.Policy), p.acceptedPlan.PolicySource
}

// ownPolicy is a valid policy ConfigMap.
type ownPolicy struct {
	version     string
	concurrency int32
}

// combineWithPlan is what holds of the member's own policy and of the plan's.
func (r *Reconciler) combineWithPlan(own policyState, p planState, st v1alpha1.SyncLedgerStatus) policyState {
	if own.accepted {
		r.lastOwnPolicy = ownPolicy{version: own.configMapVersion, concurrency: own.policy.Concurrency}
	}
	own.plan = p
	if p.policy == nil {
		own.policy = policy.Combine(own.policy, nil)
		return own
	}
	text := "the hub's policy is in force"
	if p.policySource != "" {
		text += " (" + p.policySource + ")"
	}
	switch own.reason {
	case reasonAccepted:
		if own.policy.Concurrency < p.policy.Concurrency {
			text += fmt.Sprintf(", with the smaller concurrency of ConfigMap %s, %d", r.PolicyKey, own.policy.Concurrency)
		}
		own.policy, own.message = policy.Combine(own.policy, p.policy), text+own.ignoredKeys
	case reasonMissing:
		own.accepted, own.reason = true, reasonAccepted
		own.policy, own.message = policy.Combine(nil, p.policy), text
	case reasonInvalid:
		last, known := r.lastOwnConcurrency(st)
		own.policy = policy.Combine(nil, p.policy)
		if known {
			own.policy.Concurrency = min(own.policy.Concurrency, last)
		}
		own.message = fmt.Sprintf("%s %s, concurrency %d", own.fault, text, own.policy.Concurrency)
	}
	own.storePolicy = true
	return own
}

// lastOwnConcurrency is the concurrency of the last valid ConfigMap that the ledger was
// written under: it goes on to be a limit while the ConfigMap is wrong. An agent
// that has not read it itself takes the concurrency in force, which was no
// higher.
func (r *Reconciler) lastOwnConcurrency(st v1alpha1.SyncLedgerStatus) (concurrency int32, known bool) {
	if st.PolicyVersion == "" {
		return 0, false
	}
	if r.lastOwnPolicy.version == st.PolicyVersion {
		return r.lastOwnPolicy.concurrency, true
	}
	p, _, errs := policy.Parse(st.Policy)
	return p.Concurrency, len(errs) == 0
}

func findPlanCondition(st v1alpha1.SyncLedgerStatus) *metav1.Condition {
	return meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionPlanAccepted)
}

func ledgerStatus(ledger *v1alpha1.SyncLedger) v1alpha1.SyncLedgerStatus {
	if ledger.Status == nil {
		return v1alpha1.SyncLedgerStatus{}
	}
	return *ledger.Status
}
