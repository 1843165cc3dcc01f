package admissionpolicy

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// DataVolumePolicy names the ValidatingAdmissionPolicy that refuses imports without a slot of
// the SyncLedger. Its binding has the same name.
const DataVolumePolicy = "ot-agent-datavolumes"

// dataVolumeRefusal is how the API server names that policy in its refusals.
const dataVolumeRefusal = "ValidatingAdmissionPolicy '" + DataVolumePolicy + "'"

var validatingPolicyKind = schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}

const (
	// guardedRecheckInterval is the wait after the API server has refused an import
	// without a slot, guardRetryInterval after any other answer.
	guardedRecheckInterval = time.Minute
	guardRetryInterval     = 10 * time.Second
)

// errUndecided: the API server refused the import for another reason, such as CDI
// that is not installed.
var errUndecided = errors.New("the API server refused a DataVolume for a reason other than its missing slot")

// NewBudgetGuardPoller returns a poller of condition BudgetGuarded: whether the API
// server refuses imports without a slot. Only the API server can stop a request that a
// paused agent has sent and that arrives too late. The policy may be unsupported, off or
// deleted, so it is tried. namespace is the agent's; notify is called after each
// change.
func NewBudgetGuardPoller(c client.Client, namespace string, notify func()) *trigger.ConditionPoller {
	return newGuardPoller(metav1.Condition{
		Type: v1alpha1.ConditionBudgetGuarded, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotTried,
		Message: "the agent tries the admission policy once CDI is installed",
	}, func(ctx context.Context) (metav1.Condition, error) { return tryUnlistedImport(ctx, c, namespace) }, notify)
}

// newGuardPoller returns a poller of a condition that is True while the API server refuses
// what it has to.
func newGuardPoller(initial metav1.Condition, try func(context.Context) (metav1.Condition, error), notify func()) *trigger.ConditionPoller {
	return &trigger.ConditionPoller{
		Initial:  initial,
		Evaluate: try,
		Delay: func(c metav1.Condition, err error) time.Duration {
			if err == nil && c.Status == metav1.ConditionTrue {
				return guardedRecheckInterval
			}
			return guardRetryInterval
		},
		OnChange: func(ctx context.Context, c metav1.Condition) {
			if c.Status != metav1.ConditionTrue {
				log.FromContext(ctx).Info("An admission policy of the agent is not in force", "condition", c.Type, "reason", c.Reason, "message", c.Message)
			}
			notify()
		},
		OnError: func(ctx context.Context, err error) {
			log.FromContext(ctx).V(1).Info("Failed to try an admission policy of the agent; retrying", "condition", initial.Type, "error", err.Error())
		},
	}
}

// unlistedImportName is of an image's claim: ot-agent-disks refuses others.
const unlistedImportName = "ot-agent-guard-000000000-0"

// tryUnlistedImport creates, as a dry run, a DataVolume that has no slot.
func tryUnlistedImport(ctx context.Context, c client.Client, namespace string) (metav1.Condition, error) {
	unlisted := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: unlistedImportName, Labels: map[string]string{v1alpha1.LabelImageUID: "none"},
		},
		Spec: cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			}},
		},
	}
	err := c.Create(ctx, unlisted, client.DryRunAll)
	switch {
	case err == nil:
		return notGuardedCondition(c.RESTMapper()), nil
	case IsUnlistedRefusal(err):
		return metav1.Condition{
			Type: v1alpha1.ConditionBudgetGuarded, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonGuarded,
			Message: "the API server refuses imports without a slot",
		}, nil
	default:
		return metav1.Condition{}, fmt.Errorf("%w: %w", errUndecided, err)
	}
}

// IsUnlistedRefusal reports whether the policy refused a DataVolume because it found no
// slot for it, or no SyncLedger. The policy reads the SyncLedger from a cache, so this is
// never a failed attempt: the same DataVolume may be admitted later.
func IsUnlistedRefusal(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && strings.Contains(err.Error(), dataVolumeRefusal)
}

func notGuardedCondition(mapper meta.RESTMapper) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionBudgetGuarded, Status: metav1.ConditionFalse}
	const consequence = "The agent keeps the budget by itself; an import that it sends too late, after a pause, is not refused"
	if !arePoliciesServed(mapper) {
		c.Reason = v1alpha1.ReasonPoliciesNotServed
		c.Message = "this API server does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1 (served by default from Kubernetes 1.30). " + consequence
		return c
	}
	c.Reason = v1alpha1.ReasonPolicyNotInForce
	c.Message = "imports without a slot are not refused: policy ot-agent-datavolumes or its binding is missing (run `helm upgrade` of the agent's chart), " +
		"or admission plugin ValidatingAdmissionPolicy is disabled in the API server. " + consequence
	return c
}
