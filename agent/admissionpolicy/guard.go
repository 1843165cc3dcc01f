// Package admissionpolicy tells whether the API server refuses imports that are in no slot of the
// SyncLedger. The agent keeps to the ledger by itself; that what a paused agent has sent
// arrives too late, only the API server can tell. A cluster may not serve admission
// policies, may not go by them, or may have lost the chart's: the agent tries.
package admissionpolicy

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// DataVolumePolicy is how the API server names the policy that refuses (charts/ot-agent).
const DataVolumePolicy = "ValidatingAdmissionPolicy 'ot-agent-datavolumes'"

// validatingPolicyKind is what the policy is.
var validatingPolicyKind = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}

const (
	// guardedRecheckInterval is how long an answer counts.
	guardedRecheckInterval = time.Minute
	// guardRetryInterval is the wait where there was none, or none that is good.
	guardRetryInterval = 10 * time.Second
)

// BudgetGuardCheck asks, where the agent leads. It is a Runnable of a manager.
type BudgetGuardCheck struct {
	Client client.Client
	// Namespace of the agent.
	Namespace string
	// Changed is called when something else is told.
	Changed func()

	condition atomic.Pointer[metav1.Condition]
}

// NeedLeaderElection is true: the ledger, which tells of it, is the leader's.
func (g *BudgetGuardCheck) NeedLeaderElection() bool { return true }

// Start asks until ctx ends.
func (g *BudgetGuardCheck) Start(ctx context.Context) error {
	for {
		wait := guardRetryInterval
		if c := g.tryUnlistedImport(ctx); c != nil {
			g.publishCondition(ctx, c)
			if c.Status == metav1.ConditionTrue {
				wait = guardedRecheckInterval
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Condition is what is known.
func (g *BudgetGuardCheck) Condition() metav1.Condition {
	if c := g.condition.Load(); c != nil {
		return *c
	}
	return metav1.Condition{Type: v1alpha1.ConditionBudgetGuarded, Status: metav1.ConditionUnknown, Reason: "NotTried", Message: "it is tried as soon as CDI is there"}
}

// tryUnlistedImport has the API server judge a DataVolume that is in no slot, and keep nothing of it.
// It returns nil where that was not judged.
func (g *BudgetGuardCheck) tryUnlistedImport(ctx context.Context) *metav1.Condition {
	unlisted := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.Namespace, Name: "ot-agent-guard", Labels: map[string]string{v1alpha1.LabelImageUID: "none"},
		},
		Spec: cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			}},
		},
	}
	err := g.Client.Create(ctx, unlisted, client.DryRunAll)
	switch {
	case err == nil:
		return g.notGuardedCondition()
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && strings.Contains(err.Error(), DataVolumePolicy):
		return &metav1.Condition{
			Type: v1alpha1.ConditionBudgetGuarded, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonGuarded,
			Message: "the API server refuses imports that are in no slot",
		}
	default:
		return nil
	}
}

func (g *BudgetGuardCheck) notGuardedCondition() *metav1.Condition {
	c := &metav1.Condition{Type: v1alpha1.ConditionBudgetGuarded, Status: metav1.ConditionFalse}
	const kept = "The agent keeps the budget by itself; an import that it has sent too late, after a pause, is not refused"
	if _, err := g.Client.RESTMapper().RESTMapping(validatingPolicyKind, "v1"); meta.IsNoMatchError(err) {
		c.Reason = v1alpha1.ReasonPoliciesNotServed
		c.Message = "this API server does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1 (it does by default from Kubernetes 1.30 on). " + kept
		return c
	}
	c.Reason = v1alpha1.ReasonPolicyNotInForce
	c.Message = "an import that is in no slot is not refused: policy ot-agent-datavolumes or its binding is gone, which `helm upgrade` of the agent brings back, " +
		"or the API server runs without admission plugin ValidatingAdmissionPolicy. " + kept
	return c
}

func (g *BudgetGuardCheck) publishCondition(ctx context.Context, c *metav1.Condition) {
	before := g.condition.Swap(c)
	if before != nil && before.Reason == c.Reason {
		return
	}
	if c.Status != metav1.ConditionTrue {
		log.FromContext(ctx).Info("The API server does not guard the budget", "because", c.Message)
	}
	g.Changed()
}
