//go:build linux

package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// isRejectedWith reports whether a dry run of a create fails with a text.
func isRejectedWith(t *testing.T, o client.Object, text string) bool {
	t.Helper()
	err := env.Client().Create(t.Context(), o, client.DryRunAll)
	return err != nil && strings.Contains(err.Error(), text)
}

// newBlankDataVolume returns a DataVolume that CDI's own admission accepts.
func newBlankDataVolume(ns string) *cdiv1.DataVolume {
	dv := newDataVolume("probe")
	dv.Namespace = ns
	dv.Spec = cdiv1.DataVolumeSpec{
		Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
		Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		}},
	}
	return dv
}

// createQuota creates a quota and waits until it is enforced. Without a quota controller, the
// API server counts up from the status.
func createQuota(t *testing.T, ns string, hard corev1.ResourceList) *corev1.ResourceQuota {
	t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	env.Create(t, quota)
	quota.Status.Hard = hard
	quota.Status.Used = corev1.ResourceList{}
	for name := range hard {
		quota.Status.Used[name] = resource.MustParse("0")
	}
	require.NoError(t, env.Client().Status().Update(t.Context(), quota))
	require.True(t, testenv.AwaitCondition(t, func() bool { // the API server caches quotas
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}
		return isRejectedWith(t, newBlankDataVolume(ns), "exceeded quota") || isRejectedWith(t, claim, "exceeded quota")
	}), "the quota is not enforced")
	return quota
}

// TestQuotaExceeded has CDI exceed a quota that the agent does not check. Others give
// InsufficientStorage.
func TestQuotaExceeded(t *testing.T) {
	history := observeUnderPolicy(t, "concurrency", "1")
	ns := env.CreateHomeNamespace(t)
	quota := createQuota(t, ns, corev1.ResourceList{"count/persistentvolumeclaims": resource.MustParse("0")})
	img := env.NewImage(ns, "image", "/ok/200ms/a")
	env.Create(t, img)
	got := env.AwaitFailed(t, img, v1alpha1.ReasonQuotaExceeded)
	assert.Contains(t, got.Status.Message, "exceeded quota: quota")
	awaitNothingStored(t, ns)

	next := env.NewImage(env.CreateHomeNamespace(t), "next", "/ok/0s/a")
	env.Create(t, next)
	env.AwaitSucceeded(t, next)
	require.NoError(t, env.Client().Delete(t.Context(), quota))
	env.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
	env.AwaitSucceeded(t, img)
	assert.LessOrEqual(t, history().Attempts(img.UID), 3)
}

// awaitWaiting waits until an image waits in the queue until a person acts.
func awaitWaiting(t *testing.T, img *v1alpha1.VMDiskImage, reason v1alpha1.Reason, message string) {
	t.Helper()
	got := env.AwaitImage(t, img, testenv.HasReason(reason))
	assert.Equal(t, v1alpha1.PhaseQueued, got.Status.Phase)
	assert.Contains(t, got.Status.Message, message)
	assert.True(t, meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionStalled))
}

// requireWaitsWithoutSlot requires an image of a namespace in which refusal refuses imports to
// wait until a person acts, while another one is imported, and to go on by itself after that.
func requireWaitsWithoutSlot(t *testing.T, ns string, refusal client.Object, reason v1alpha1.Reason, message string) {
	t.Helper()
	history := observeUnderPolicy(t, "concurrency", "1", "retryLimit", "0")
	img := env.NewImage(ns, "image", "/ok/200ms/a")
	env.Create(t, img)
	awaitWaiting(t, img, reason, message)
	next := env.NewImage(env.CreateHomeNamespace(t), "next", "/ok/0s/a")
	env.Create(t, next)
	env.AwaitSucceeded(t, next)
	require.NoError(t, env.Client().Delete(t.Context(), refusal))
	env.AwaitSucceeded(t, img)
	h := history()
	assert.Equal(t, []types.UID{next.UID, img.UID}, h.StartOrder(), "it takes no slot while it waits")
	assert.Equal(t, 1, h.Attempts(img.UID))
}

// TestQuotaOfDataVolumes wants an image whose DataVolume a quota refuses to wait without a
// slot, and to go on by itself.
func TestQuotaOfDataVolumes(t *testing.T) {
	testenv.RunInTurn(t, 3)
	ns := env.CreateHomeNamespace(t)
	quota := createQuota(t, ns, corev1.ResourceList{"count/datavolumes.cdi.kubevirt.io": resource.MustParse("0")})
	requireWaitsWithoutSlot(t, ns, quota, v1alpha1.ReasonQuotaExceeded, "exceeded quota: quota")
}

// refuseImports refuses all DataVolumes of a namespace until the test ends.
func refuseImports(t *testing.T, ns string, validation admissionv1.Validation) *admissionv1.ValidatingAdmissionPolicyBinding {
	t.Helper()
	fail := admissionv1.Fail
	rule := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "no-imports-" + ns},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{"cdi.kubevirt.io"}, APIVersions: []string{"v1beta1"}, Resources: []string{"datavolumes"}},
			}}}},
			Validations: []admissionv1.Validation{validation},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: rule.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: rule.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}},
		},
	}
	createForTest(t, rule, binding)
	return binding
}

// TestDenialByForeignPolicyIsReported wants the message of another admission policy on the
// image, which waits without a slot and goes on by itself.
func TestDenialByForeignPolicyIsReported(t *testing.T) {
	testenv.RunInTurn(t, 2)
	ns := env.CreateHomeNamespace(t)
	binding := refuseImports(t, ns, admissionv1.Validation{Expression: "false", Message: "no imports on Sundays"})
	enforced := func() bool { return isRejectedWith(t, newBlankDataVolume(ns), "no imports on Sundays") }
	require.True(t, testenv.AwaitCondition(t, enforced))
	requireWaitsWithoutSlot(t, ns, binding, v1alpha1.ReasonDataVolumeRefused, "no imports on Sundays")
}

// TestLostRightUsesNoAttempt wants a missing right to use no attempt, and the import to begin
// as soon as the right is back.
func TestLostRightUsesNoAttempt(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1", "retryLimit", "0"))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "ot-agent"}}
	may := func(create bool) {
		env.Update(t, role, func() {
			i := slices.IndexFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "datavolumes") })
			role.Rules[i].Verbs = slices.DeleteFunc(role.Rules[i].Verbs, func(verb string) bool { return verb == "create" })
			if create {
				role.Rules[i].Verbs = append(role.Rules[i].Verbs, "create")
			}
		})
	}
	may(false)
	t.Cleanup(func() { may(true) })
	require.True(t, testenv.AwaitCondition(t, func() bool { // the API server caches roles
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + program.AgentNamespace + ":ot-agent",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: program.AgentNamespace, Verb: "create", Group: "cdi.kubevirt.io", Resource: "datavolumes"},
		}}
		require.NoError(t, env.Client().Create(t.Context(), review))
		return !review.Status.Allowed
	}), "the right is not lost")
	img := createImage(t, "/ok/200ms/a")
	env.AwaitLedgerCondition(t, v1alpha1.ConditionRightsComplete, metav1.ConditionFalse, "RightsMissing")
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
	assert.NotEqual(t, v1alpha1.PhaseFailed, img.Status.Phase, "%s", img.Status.Message)

	may(true)
	got := env.AwaitSucceeded(t, img)
	assert.EqualValues(t, 1, got.Status.Attempts)
	env.AwaitLedgerCondition(t, v1alpha1.ConditionRightsComplete, metav1.ConditionTrue, "RightsComplete")
}

// TestPreflightRejectsBadURLs wants a wrong URL to cost neither a slot nor egress, and a silent
// source to delay other images only briefly.
func TestPreflightRejectsBadURLs(t *testing.T) {
	t.Run("a definite answer", func(t *testing.T) {
		history := observeUnderPolicy(t)
		ns := env.CreateHomeNamespace(t)
		for path, reason := range map[string]v1alpha1.Reason{"gone": v1alpha1.ReasonNotFound, "removed": v1alpha1.ReasonNotFound, "denied": v1alpha1.ReasonForbidden} {
			img := env.NewImage(ns, path, "/"+path+"/"+ns)
			env.Create(t, img)
			got := env.AwaitFailed(t, img, reason)
			assert.Contains(t, got.Status.Message, "nothing was downloaded")
			assert.Positive(t, env.HeadRequests("/"+path+"/"+ns))
		}
		assert.Empty(t, history().Creations())
	})
	t.Run("a source that does not answer", func(t *testing.T) {
		history := observeUnderPolicy(t, "concurrency", "1")
		ns := env.CreateHomeNamespace(t)
		silent, next := env.NewImage(ns, "silent", "/silent/a"), env.NewImage(ns, "next", "/ok/0s/a")
		env.Create(t, silent, next)
		env.AwaitImage(t, silent, testenv.HasReason(v1alpha1.ReasonChecking))
		env.AwaitSucceeded(t, next)
		env.AwaitSucceeded(t, silent)
		assert.Equal(t, 1, history().Attempts(silent.UID), "CDI has to try it")
	})
	t.Run("switched off", func(t *testing.T) {
		env.SetPolicy(t, testenv.NewPolicy("preflight", "false"))
		requireImportedUnasked(t)
	})
}

// requireImportedUnasked imports an image that a preflight would find missing.
func requireImportedUnasked(t *testing.T) {
	t.Helper()
	history := env.ObserveTest(t)
	ns := env.CreateHomeNamespace(t)
	img := env.ImportImage(t, env.NewImage(ns, "image", "/gone/"+ns)) // the importer serves /gone/
	assert.Zero(t, env.HeadRequests("/gone/"+ns))
	assert.Equal(t, 1, history().Attempts(img.UID))
}
