//go:build linux

package faults

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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// refused tells whether the API server would not take an object, for a reason.
func refused(t *testing.T, o client.Object, why string) bool {
	t.Helper()
	err := place.Client().Create(t.Context(), o, client.DryRunAll)
	return err != nil && strings.Contains(err.Error(), why)
}

// blank is a DataVolume that CDI's own admission takes.
func blank(ns string) *cdiv1.DataVolume {
	dv := dataVolume("probe")
	dv.Namespace = ns
	dv.Spec = cdiv1.DataVolumeSpec{
		Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
		Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		}},
	}
	return dv
}

// limit gives a namespace a quota. There is no quota controller here: the API
// server itself counts on from what the status says.
func limit(t *testing.T, ns string, hard corev1.ResourceList) *corev1.ResourceQuota {
	t.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	place.Create(t, quota)
	quota.Status.Hard = hard
	quota.Status.Used = corev1.ResourceList{}
	for name := range hard {
		quota.Status.Used[name] = resource.MustParse("0")
	}
	require.NoError(t, place.Client().Status().Update(t.Context(), quota))
	require.True(t, scene.Await(t, func() bool { // the API server's own view of quotas is a cache
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}
		return refused(t, blank(ns), "exceeded quota") || refused(t, claim, "exceeded quota")
	}), "the quota is not enforced")
	return quota
}

func TestQuotaExceeded(t *testing.T) {
	// What the agent does not look for before; the rest is InsufficientStorage.
	for _, name := range []corev1.ResourceName{"count/persistentvolumeclaims", "count/datavolumes.cdi.kubevirt.io"} {
		t.Run(string(name), func(t *testing.T) {
			place.SetPolicy(t, policy("concurrency", "1"))
			history := observed(t)
			ns := home(t)
			quota := limit(t, ns, corev1.ResourceList{name: resource.MustParse("0")})
			img := place.Image(ns, "image", "/ok/200ms/a")
			place.Create(t, img)
			got := failed(t, img, v1alpha1.ReasonQuotaExceeded)
			assert.Contains(t, got.Status.Message, "exceeded quota: quota")
			wantNothingStored(t, ns)

			next := place.Image(home(t), "next", "/ok/0s/a")
			place.Create(t, next)
			succeeded(t, next)
			require.NoError(t, place.Client().Delete(t.Context(), quota))
			place.Change(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
			succeeded(t, img)
			assert.LessOrEqual(t, history().Attempts(img.UID), 3)
		})
	}
}

// TestRefusedByAnotherPolicy wants a farm's own rules told, and no slot kept by
// what they refuse.
func TestRefusedByAnotherPolicy(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1"))
	history := observed(t)
	ns := home(t)
	fail := admissionv1.Fail
	rule := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "no-imports-" + ns},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{"cdi.kubevirt.io"}, APIVersions: []string{"v1beta1"}, Resources: []string{"datavolumes"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "no imports on Sundays"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: rule.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: rule.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}},
		},
	}
	makeForNow(t, rule, binding)
	enforced := func() bool { return refused(t, blank(ns), "no imports on Sundays") }
	require.True(t, scene.Await(t, enforced))

	img := place.Image(ns, "image", "/ok/200ms/a")
	place.Create(t, img)
	got := failed(t, img, v1alpha1.ReasonDataVolumeRefused)
	assert.Contains(t, got.Status.Message, "no imports on Sundays")
	assert.EqualValues(t, 2, got.Status.Attempts)
	next := place.Image(home(t), "next", "/ok/0s/a")
	place.Create(t, next)
	succeeded(t, next)
	assert.Zero(t, history().Attempts(img.UID))

	require.NoError(t, place.Client().Delete(t.Context(), binding))
	require.True(t, scene.Await(t, func() bool { return !enforced() }))
	place.Change(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "1"} })
	succeeded(t, img)
	assert.Equal(t, 1, history().Attempts(img.UID))
}

// TestRightToImportLost wants no attempt used up by what is not the image's fault, and
// the import begun as soon as the right is back.
func TestRightToImportLost(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1", "retryLimit", "0"))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "ot-agent"}}
	may := func(create bool) {
		place.Change(t, role, func() {
			i := slices.IndexFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "datavolumes") })
			role.Rules[i].Verbs = []string{"delete", "get", "list", "watch"}
			if create {
				role.Rules[i].Verbs = append(role.Rules[i].Verbs, "create")
			}
		})
	}
	may(false)
	t.Cleanup(func() { may(true) })
	require.True(t, scene.Await(t, func() bool { // the API server's own view of roles is a cache
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + agent.Namespace + ":ot-agent",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: agent.Namespace, Verb: "create", Group: "cdi.kubevirt.io", Resource: "datavolumes"},
		}}
		require.NoError(t, place.Client().Create(t.Context(), review))
		return !review.Status.Allowed
	}), "the right is not lost")
	img := place.Image(home(t), "image", "/ok/200ms/a")
	place.Create(t, img)
	place.LedgerCondition(t, v1alpha1.ConditionRightsComplete, metav1.ConditionFalse, "RightsMissing")
	require.NoError(t, place.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
	assert.NotEqual(t, v1alpha1.PhaseFailed, img.Status.Phase, "%s", img.Status.Message)

	may(true)
	got := succeeded(t, img)
	assert.EqualValues(t, 1, got.Status.Attempts)
	place.LedgerCondition(t, v1alpha1.ConditionRightsComplete, metav1.ConditionTrue, "RightsComplete")
}

// TestPreflight wants a wrong URL to cost neither slot nor egress, and a source
// that does not answer to hold nobody up for long.
func TestPreflight(t *testing.T) {
	t.Run("a definite answer", func(t *testing.T) {
		place.SetPolicy(t, policy())
		history := observed(t)
		ns := home(t)
		for path, reason := range map[string]v1alpha1.Reason{"gone": v1alpha1.ReasonNotFound, "removed": v1alpha1.ReasonNotFound, "denied": v1alpha1.ReasonForbidden} {
			img := place.Image(ns, path, "/"+path+"/"+ns)
			place.Create(t, img)
			got := failed(t, img, reason)
			assert.Contains(t, got.Status.Message, "nothing was downloaded")
			assert.Positive(t, place.Heads("/"+path+"/"+ns))
		}
		assert.Empty(t, history().Starts())
	})
	t.Run("a source that does not answer", func(t *testing.T) {
		place.SetPolicy(t, policy("concurrency", "1"))
		history := observed(t)
		ns := home(t)
		silent, next := place.Image(ns, "silent", "/silent/a"), place.Image(ns, "next", "/ok/0s/a")
		place.Create(t, silent, next)
		place.Eventually(t, silent, scene.Because(v1alpha1.ReasonChecking))
		succeeded(t, next)
		succeeded(t, silent)
		assert.Equal(t, 1, history().Attempts(silent.UID), "it is left to CDI")
	})
	t.Run("switched off", func(t *testing.T) {
		place.SetPolicy(t, policy("preflight", "false"))
		history := observed(t)
		ns := home(t)
		img := place.Image(ns, "image", "/gone/"+ns)
		place.Create(t, img)
		succeeded(t, img) // by the importer's word: it knows no /gone/
		assert.Zero(t, place.Heads("/gone/"+ns))
		assert.Equal(t, 1, history().Attempts(img.UID))
	})
}
