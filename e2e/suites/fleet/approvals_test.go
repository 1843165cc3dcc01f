//go:build linux

package fleet_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
)

// TestUncheckedApprovalsAreReported shows that the hub reports approvals that the API
// server did not check when it prunes or rolls out by them, and stops reporting once they
// are checked again.
func TestUncheckedApprovalsAreReported(t *testing.T) {
	img := &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: "approved"},
		Spec: v1alpha1.FleetDiskImageSpec{
			Version: "1", TargetNamespace: "default",
			Template: v1alpha1.VMDiskImageSpec{
				Name: "approved", SourceType: v1alpha1.SourceHTTP, URL: "http://images.example.com/approved", DiskSize: resource.MustParse("1Gi"),
			},
			Placement: v1alpha1.Placement{ClusterNames: []string{"nowhere"}},
			Rollout:   v1alpha1.Rollout{Waves: []v1alpha1.Wave{{Name: "all", RequireApproval: true}}},
		},
	}
	shared.CreateForTest(t, img)
	// It goes by no report, and ends at once.
	inOtherName := func(name string) *v1alpha1.ImagePrune {
		return &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ImagePruneSpec{
			ReportRef: v1alpha1.PruneReportRef{Name: "none", Digest: fmt.Sprintf("%032d", 0)}, ApprovedBy: "somebody-else",
		}}
	}
	for _, p := range []admissionpolicy.Policy{admissionpolicy.WavesPolicy, admissionpolicy.PrunesPolicy} {
		shared.awaitMetric(t, fmt.Sprintf(`ot_hub_approvals_guarded{policy=%q}`, p.Name), 1)
	}
	awaitPolicyCondition(t, img, metav1.ConditionTrue, v1alpha1.ReasonGuarded)

	forged := inOtherName("forged")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return apierrors.IsForbidden(shared.Create(t.Context(), inOtherName("refused"), client.DryRunAll))
	}))
	restore := []func(){removeBinding(t, admissionpolicy.WavesPolicy), removeBinding(t, admissionpolicy.PrunesPolicy)}
	for _, p := range []admissionpolicy.Policy{admissionpolicy.WavesPolicy, admissionpolicy.PrunesPolicy} {
		shared.awaitMetric(t, fmt.Sprintf(`ot_hub_approvals_guarded{policy=%q}`, p.Name), 0)
	}
	c := awaitPolicyCondition(t, img, metav1.ConditionFalse, v1alpha1.ReasonPolicyNotInForce)
	assert.Contains(t, c.Message, "ValidatingAdmissionPolicyBinding ot-hub-approvals does not exist: `helm upgrade` of the hub")
	assert.Contains(t, c.Message, "review spec.approvals")
	require.True(t, testenv.AwaitCondition(t, func() bool { return shared.Create(t.Context(), forged) == nil }))
	t.Cleanup(func() { assert.NoError(t, client.IgnoreNotFound(shared.Delete(context.Background(), forged))) })
	c = awaitPolicyCondition(t, forged, metav1.ConditionFalse, v1alpha1.ReasonPolicyNotInForce)
	assert.Contains(t, c.Message, "ValidatingAdmissionPolicyBinding ot-hub-prunes does not exist: `helm upgrade` of the hub")
	assert.Contains(t, c.Message, "set spec.undo")

	for _, do := range restore {
		do()
	}
	for _, p := range []admissionpolicy.Policy{admissionpolicy.WavesPolicy, admissionpolicy.PrunesPolicy} {
		shared.awaitMetric(t, fmt.Sprintf(`ot_hub_approvals_guarded{policy=%q}`, p.Name), 1)
	}
	awaitPolicyCondition(t, img, metav1.ConditionTrue, v1alpha1.ReasonGuarded)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return apierrors.IsForbidden(shared.Create(t.Context(), inOtherName("refused"), client.DryRunAll))
	}))
	checked := inOtherName("checked")
	checked.Spec.ApprovedBy = "admin"
	shared.CreateForTest(t, checked)
	awaitPolicyCondition(t, checked, metav1.ConditionTrue, v1alpha1.ReasonGuarded)
	awaitPolicyCondition(t, forged, metav1.ConditionFalse, v1alpha1.ReasonPolicyNotInForce)
}

// removeBinding deletes the binding of a policy until restore or the end of the test.
func removeBinding(t *testing.T, p admissionpolicy.Policy) (restore func()) {
	t.Helper()
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Name: p.Name}, binding))
	require.NoError(t, shared.Delete(t.Context(), binding))
	restore = func() {
		again := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: binding.Labels}, Spec: binding.Spec}
		require.NoError(t, client.IgnoreAlreadyExists(shared.Create(context.Background(), again)))
	}
	t.Cleanup(restore)
	return restore
}

// awaitPolicyCondition waits until ApprovalGuarded of a FleetDiskImage or ImagePrune has a
// status and a reason.
func awaitPolicyCondition(t *testing.T, o client.Object, status metav1.ConditionStatus, reason string) metav1.Condition {
	t.Helper()
	var c *metav1.Condition
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(o), o))
		var conditions []metav1.Condition
		switch o := o.(type) {
		case *v1alpha1.FleetDiskImage:
			conditions = o.Status.Conditions
		case *v1alpha1.ImagePrune:
			conditions = o.Status.Conditions
		}
		c = meta.FindStatusCondition(conditions, v1alpha1.ConditionApprovalGuarded)
		return c != nil && c.Status == status && c.Reason == reason
	}), "%s: want %s for %s, there is %+v", o.GetName(), status, reason, c)
	return *c
}
