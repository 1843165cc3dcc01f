package policy

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

// planState is what the ClusterPlan contributes.
type planState struct {
	// policy of the hub; nil for none. Under a refused plan it is the policy of the plan
	// that was acknowledged last.
	policy       *policy.Policy
	policySource string
	// accepted is the plan that the write of the ledger acknowledges; nil for none.
	accepted *v1alpha1.ClusterPlanSpec
	// absent: the kind is served, and there is no plan.
	absent  bool
	reason  string
	message string
}

// confirmedRefusal is a plan that a live read has confirmed to be refused after the plan
// that was acknowledged then.
type confirmedRefusal struct {
	resourceVersion string
	acknowledged    v1alpha1.PlanVersion
}

func (r *Reader) readPlan(ctx context.Context, status v1alpha1.SyncLedgerStatus) (planState, error) {
	key := types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}
	none := planState{
		reason:  v1alpha1.ReasonNoPlan,
		message: fmt.Sprintf("there is no ClusterPlan %s: the policy ConfigMap alone applies", key),
	}
	if !r.planServed.Load() {
		return none, nil
	}
	p, err := r.readCurrentPlan(ctx, key, status)
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
	verdict := plan.EvaluatePlan(p.Spec, own, status.Plan)
	verdict.Message = v1alpha1.SanitizeText(verdict.Message, maxMessageBytes)
	s := planState{reason: verdict.Reason, message: verdict.Message}
	if verdict.Accepted {
		s.accepted = &p.Spec
		s.policy, s.policySource = verdict.Policy, p.Spec.PolicySource
		return s, nil
	}
	if len(status.PlanPolicy) > 0 {
		if last, _, errs := policy.Parse(status.PlanPolicy); len(errs) == 0 {
			s.policy, s.policySource = &last, status.PlanPolicySource
		}
	}
	if c := findPlanCondition(status); c == nil || c.Message != verdict.Message {
		r.Events.Eventf(p, nil, corev1.EventTypeWarning, "PlanRefused", "ReadPlan", "%s: %s", verdict.Reason, verdict.Message)
	}
	return s, nil
}

// readCurrentPlan returns the plan that the cache shows; nil for none. It reads live where
// the cache may be older than the ledger: by an older plan, a budget that was lowered would
// rise again.
func (r *Reader) readCurrentPlan(ctx context.Context, key types.NamespacedName, status v1alpha1.SyncLedgerStatus) (*v1alpha1.ClusterPlan, error) {
	p := &v1alpha1.ClusterPlan{}
	err := r.Mailbox.Get(ctx, key, p)
	if cached := p.ResourceVersion; r.mayBeStale(p, err, status) {
		p = &v1alpha1.ClusterPlan{}
		if err = r.Live.Get(ctx, key, p); err == nil && p.ResourceVersion == cached {
			r.confirmedRefusal = confirmedRefusal{resourceVersion: cached, acknowledged: *status.Plan}
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

// mayBeStale: the ledger was written under a plan that the cache may not show yet.
func (r *Reader) mayBeStale(p *v1alpha1.ClusterPlan, err error, status v1alpha1.SyncLedgerStatus) bool {
	switch {
	case status.Plan == nil:
		return false
	case err == nil:
		return !plan.MayFollow(p.Spec.PlanVersion, status.Plan) && r.confirmedRefusal != confirmedRefusal{resourceVersion: p.ResourceVersion, acknowledged: *status.Plan}
	case apierrors.IsNotFound(err):
		c := findPlanCondition(status)
		return c == nil || c.Reason != v1alpha1.ReasonNoPlan || len(status.PlanPolicy) > 0
	default:
		return false
	}
}

// setStatus acknowledges an accepted plan. planPolicy stays while there is a plan, even a
// refused one: a hub that was restored from a backup reads it there. It is removed with the
// plan, since a hub that adopts the member again must not be held to it. The acknowledged
// version stays, so that a later plan has to be above it.
func (s planState) setStatus(status *v1alpha1.SyncLedgerStatus) {
	if s.absent {
		status.PlanPolicy, status.PlanPolicySource = nil, ""
	}
	if s.accepted == nil {
		return
	}
	version := s.accepted.PlanVersion
	status.Plan = &version
	status.PlanPolicy, status.PlanPolicySource = maps.Clone(s.accepted.Policy), s.accepted.PolicySource
}

func findPlanCondition(status v1alpha1.SyncLedgerStatus) *metav1.Condition {
	return meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionPlanAccepted)
}
