package admissionpolicy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// accountPolicies are the policies on the agent's account, each with a request that it alone
// refuses, unless the values protect namespace default.
var accountPolicies = map[string]func() client.Object{
	"ot-agent-own": func() client.Object {
		return &corev1.Secret{ObjectMeta: guardMeta(metav1.NamespaceDefault)}
	},
	"ot-agent-disks": func() client.Object {
		return &cdiv1.DataVolume{ObjectMeta: guardMeta(metav1.NamespaceDefault), Spec: cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			}},
		}}
	},
	"ot-agent-data-sources": func() client.Object {
		return &cdiv1.DataSource{ObjectMeta: guardMeta(metav1.NamespaceDefault)}
	},
	"ot-agent-snapshots": func() client.Object {
		return &snapshotv1.VolumeSnapshot{ObjectMeta: guardMeta(metav1.NamespaceDefault), Spec: snapshotv1.VolumeSnapshotSpec{
			Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("none")},
		}}
	},
	"ot-agent-protected-namespaces": func() client.Object {
		return &v1alpha1.VMDiskImage{ObjectMeta: guardMeta(metav1.NamespaceSystem), Spec: v1alpha1.VMDiskImageSpec{
			Name: "none", SourceType: v1alpha1.SourceBlank, DiskSize: resource.MustParse("1Mi"),
		}}
	},
}

func guardMeta(namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: "ot-agent-guard"}
}

// NewAccountGuardPoller returns a poller of condition AccountGuarded: whether the API server
// refuses what the agent never writes. notify is called after each change.
func NewAccountGuardPoller(c client.Client, notify func()) *trigger.ConditionPoller {
	return newGuardPoller(metav1.Condition{
		Type: v1alpha1.ConditionAccountGuarded, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotTried,
		Message: "the agent has not tried the admission policies on its account yet",
	}, func(ctx context.Context) (metav1.Condition, error) { return tryForbiddenWrites(ctx, c) }, notify)
}

// tryForbiddenWrites creates, as dry runs, one object for each policy. Kinds that are not
// served are skipped: nothing can be written of them.
func tryForbiddenWrites(ctx context.Context, c client.Client) (metav1.Condition, error) {
	var accepted, refusedByOthers []string
	for policy, object := range accountPolicies {
		err := c.Create(ctx, object(), client.DryRunAll)
		switch {
		case err == nil:
			accepted = append(accepted, policy)
		case meta.IsNoMatchError(err), isRefusalBy(policy, err):
		case isRefusalByAny(err):
			refusedByOthers = append(refusedByOthers, policy)
		default:
			return metav1.Condition{}, fmt.Errorf("the API server answered a request that %s has to refuse otherwise: %w", policy, err)
		}
	}
	return accountCondition(accepted, refusedByOthers, arePoliciesServed(c.RESTMapper())), nil
}

func isRefusalBy(policy string, err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+policy+"'")
}

func isRefusalByAny(err error) bool {
	for policy := range accountPolicies {
		if isRefusalBy(policy, err) {
			return true
		}
	}
	return false
}

func arePoliciesServed(mapper meta.RESTMapper) bool {
	_, err := mapper.RESTMapping(validatingPolicyKind, "v1")
	return !meta.IsNoMatchError(err)
}

// accountCondition returns condition AccountGuarded. accepted are the policies whose requests
// the API server accepted, refusedByOthers those whose requests another of them refused: the
// API server names only one of the policies that refuse.
func accountCondition(accepted, refusedByOthers []string, served bool) metav1.Condition {
	const consequence = "Until then a stolen token of the agent's account rules the cluster"
	c := metav1.Condition{Type: v1alpha1.ConditionAccountGuarded, Status: metav1.ConditionFalse}
	switch {
	case len(accepted) == 0:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonGuarded
		c.Message = "the API server refuses what the agent never writes"
		if len(refusedByOthers) > 0 {
			slices.Sort(refusedByOthers)
			c.Message += "; policy " + strings.Join(refusedByOthers, ", ") + " cannot be tried by itself while value protectedNamespaces has " + metav1.NamespaceDefault
		}
	case !served:
		c.Reason = v1alpha1.ReasonPoliciesNotServed
		c.Message = "this API server does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1 (served by default from Kubernetes 1.30). " + consequence
	default:
		slices.Sort(accepted)
		c.Reason = v1alpha1.ReasonPolicyNotInForce
		c.Message = "policy " + strings.Join(accepted, ", ") + " or its binding is missing (run `helm upgrade` of the agent's chart), " +
			"or admission plugin ValidatingAdmissionPolicy is disabled in the API server. " + consequence
	}
	return c
}
