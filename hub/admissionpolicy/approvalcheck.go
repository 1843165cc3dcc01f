// Package admissionpolicy checks whether the API server guards approvals: of the waves of
// FleetDiskImages, and of what ImagePrunes delete. Two admission policies of chart ot-hub
// do that. The hub reads them by name: trying them with a request that they have to
// refuse would need the right to create FleetDiskImages and ImagePrunes.
package admissionpolicy

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,resourceNames=ot-hub-approvals;ot-hub-prunes;ot-hub-account,verbs=get

const checkInterval = 10 * time.Second

// ApprovalCheck reads the policies.
type ApprovalCheck struct {
	Live client.Reader
	// Enforced: the chart installs the policies. Otherwise none is read.
	Enforced bool
}

// CheckPolicy reads a policy now and returns condition ApprovalGuarded.
func (c *ApprovalCheck) CheckPolicy(ctx context.Context, p Policy) (metav1.Condition, error) {
	if !c.Enforced {
		return notEnforcedCondition(), nil
	}
	state := PolicyState{Policy: &admissionv1.ValidatingAdmissionPolicy{}, Binding: &admissionv1.ValidatingAdmissionPolicyBinding{}}
	err := c.Live.Get(ctx, client.ObjectKey{Name: p.Name}, state.Policy)
	switch {
	case meta.IsNoMatchError(err):
		return ApprovalCondition(p, PolicyState{}), nil
	case apierrors.IsNotFound(err):
		state.Policy = nil
	case err != nil:
		return metav1.Condition{}, fmt.Errorf("reading ValidatingAdmissionPolicy %s: %w", p.Name, err)
	}
	state.PoliciesServed = true
	if err := c.Live.Get(ctx, client.ObjectKey{Name: p.Name}, state.Binding); apierrors.IsNotFound(err) {
		state.Binding = nil
	} else if err != nil {
		return metav1.Condition{}, fmt.Errorf("reading ValidatingAdmissionPolicyBinding %s: %w", p.Name, err)
	}
	return ApprovalCondition(p, state), nil
}

// NewPoller returns a poller of a policy's condition, which sets the metric of the policy.
// notify is called with each new condition.
func (c *ApprovalCheck) NewPoller(p Policy, m *metrics.Approvals, notify func(metav1.Condition)) *trigger.ConditionPoller {
	return &trigger.ConditionPoller{
		Evaluate: func(ctx context.Context) (metav1.Condition, error) { return c.CheckPolicy(ctx, p) },
		Delay:    func(metav1.Condition, error) time.Duration { return checkInterval },
		OnChange: func(ctx context.Context, condition metav1.Condition) {
			if c.Enforced {
				m.SetGuarded(p.Name, condition.Status == metav1.ConditionTrue)
			}
			if condition.Status != metav1.ConditionTrue {
				log.FromContext(ctx).Info("An admission policy of the chart is not in force", "policy", p.Name, "reason", condition.Reason, "message", condition.Message)
			}
			notify(condition)
		},
		OnError: func(ctx context.Context, err error) {
			log.FromContext(ctx).Error(err, "Failed to check whether the API server guards approvals; retrying", "policy", p.Name)
		},
	}
}
