//go:build linux

package doctor_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const defaultClass = "storageclass.kubernetes.io/is-default-class"

// A healthy cluster passes every check, but for what cannot be known of it: builds of no
// release, and a probe that nobody asked for.
func TestHealthyClusterPasses(t *testing.T) {
	createFarm(t)
	env.AwaitLedgerCondition(t, v1alpha1.ConditionRightsComplete, metav1.ConditionTrue, "RightsComplete")
	env.AwaitLedgerCondition(t, v1alpha1.ConditionBudgetGuarded, metav1.ConditionTrue, v1alpha1.ReasonGuarded)
	r, code := runDoctor(t, newPlugin(t, env.ControlPlane.Config()))
	assert.Equal(t, 0, code, r.describe())
	for _, f := range r.Findings {
		want := "Pass"
		if f.ID == "agent-version-skew" || f.ID == "source-head" {
			want = "Skip"
		}
		assert.Equal(t, want, f.Status, "%+v", f)
	}
}

// fault is made in a healthy cluster. make undoes it when the test ends.
type fault struct {
	id, want string
	make     func(t *testing.T, namespace string)
	args     []string
	found    string
}

func TestFaultsAreFound(t *testing.T) {
	namespace := createFarm(t)
	p := newPlugin(t, env.ControlPlane.Config())
	for name, f := range map[string]fault{
		"no default class":            {"default-sc", "Fail", withoutDefaultClass, nil, "no StorageClass is the default"},
		"a class without modes":       {"storage-profile-complete", "Fail", nothing, []string{"--storage-class", simulator.ClassUnknown}, simulator.ClassUnknown},
		"snapshots of another driver": {"snapshot-class-driver", "Fail", anotherDriver, nil, "is of driver nfs.example.com"},
		"clones are copies":           {"clone-strategy", "Warn", copyingClones, nil, "copy"},
		"no room":                     {"csi-capacity", "Fail", largeImage, nil, "needs a volume of"},
		"a small quota":               {"quota-three-claims", "Fail", smallQuota, nil, "requests.storage"},
		"a missing namespace":         {"namespace-exists", "Fail", nothing, []string{"--namespace", "not-there"}, "does not exist"},
		"a refused policy":            {"policy-accepted", "Fail", refusedPolicy, nil, "never"},
		"rights are taken":            {"agent-rights", "Fail", takenRights, nil, "lacks permissions"},
		"a binding is removed":        {"budget-guarded", "Fail", removedBinding, nil, "its binding does not exist"},
		"the other binding":           {"one-download", "Warn", removedMutatingBinding, nil, "MutatingAdmissionPolicyBinding"},
		"a missing Secret":            {"secret-keys", "Fail", missingSecret, nil, "does not exist"},
		"a proxy that is no URL":      {"cdi-importproxy", "Fail", brokenProxy, nil, "a scheme that no importer knows"},
		"an unknown CDI":              {"cdi-version-known", "Warn", unknownCDI, nil, "v1.99.0"},
		"a webhook of nobody":         {"webhook-timeouts", "Warn", webhookOfNobody, nil, "nowhere/nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			healthy, _ := runDoctor(t, p)
			before := healthy.worst(t, f.id)
			require.Equal(t, "Pass", before.Status, "%+v", before)
			f.make(t, namespace)
			r, code := runDoctor(t, p, f.args...)
			found := r.worst(t, f.id)
			assert.Equal(t, f.want, found.Status, "%+v", found)
			assert.Contains(t, found.Subject+" "+found.Found, f.found)
			assert.NotEmpty(t, found.Why)
			assert.NotEmpty(t, found.Mend)
			if f.want == "Fail" {
				assert.Equal(t, 1, code)
			}
		})
	}
}

func nothing(*testing.T, string) {}

func withoutDefaultClass(t *testing.T, _ string) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: simulator.ClassCSI}}
	env.Update(t, class, func() { delete(class.Annotations, defaultClass) })
	cleanUp(t, func(context.Context) error {
		env.Update(t, class, func() { class.Annotations = map[string]string{defaultClass: "true"} })
		return nil
	})
}

// createUntilEnd creates objects and deletes them when the test ends.
func createUntilEnd(t *testing.T, objects ...client.Object) {
	t.Helper()
	env.Create(t, objects...)
	cleanUp(t, func(ctx context.Context) error {
		for _, o := range objects {
			if err := env.Client().Delete(ctx, o); err != nil {
				return err
			}
			awaitGone(ctx, t, o)
		}
		return nil
	})
}

func anotherDriver(t *testing.T, namespace string) {
	img := env.NewImage(namespace, "another-driver", "/ok/a.qcow2")
	img.Spec.SnapshotClass = "nfs"
	createUntilEnd(t, img, &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "nfs"}, Driver: "nfs.example.com", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete})
}

func copyingClones(t *testing.T, _ string) {
	profile := &cdiv1.StorageProfile{ObjectMeta: metav1.ObjectMeta{Name: simulator.ClassCSI}}
	set := func(strategy *cdiv1.CDICloneStrategy) {
		env.Update(t, profile, func() { profile.Spec.CloneStrategy = strategy })
		require.True(t, testenv.AwaitCondition(t, func() bool {
			err := env.Client().Get(context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(profile), profile)
			isCopy := ptr.Deref(profile.Status.CloneStrategy, "") == cdiv1.CloneStrategyHostAssisted
			return err == nil && isCopy == (strategy != nil)
		}))
	}
	set(ptr.To(cdiv1.CloneStrategyHostAssisted))
	cleanUp(t, func(context.Context) error { set(nil); return nil })
}

func largeImage(t *testing.T, namespace string) {
	img := env.NewImage(namespace, "large", "/ok/large.qcow2")
	img.Spec.DiskSize = resource.MustParse("20Ti")
	createUntilEnd(t, img)
}

func smallQuota(t *testing.T, namespace string) {
	createUntilEnd(t, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("2Gi")},
	}})
}

func refusedPolicy(t *testing.T, _ string) {
	before := env.PolicyConfigMap()
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(before), before))
	testenv.AdmitInvalidPolicy(t, env.Client())
	policy := env.PolicyConfigMap()
	env.Update(t, policy, func() { policy.Data = map[string]string{"stallTimeout": "never"} })
	cleanUp(t, func(context.Context) error {
		env.Update(t, policy, func() { policy.Data = before.Data })
		return nil
	})
}

func takenRights(t *testing.T, _ string) {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "ot-agent"}}
	var rules []rbacv1.PolicyRule
	env.Update(t, role, func() {
		rules, role.Rules = role.Rules, nil
		for _, rule := range rules {
			if len(rule.APIGroups) != 1 || rule.APIGroups[0] != admissionv1.GroupName {
				role.Rules = append(role.Rules, rule)
			}
		}
	})
	require.Less(t, len(role.Rules), len(rules))
	cleanUp(t, func(ctx context.Context) error {
		env.Update(t, role, func() { role.Rules = rules })
		ledger := &v1alpha1.SyncLedger{}
		assert.True(t, testenv.AwaitCondition(t, func() bool {
			err := env.Client().Get(ctx, client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, ledger)
			return err == nil && meta.IsStatusConditionTrue(ledger.Status.Conditions, v1alpha1.ConditionRightsComplete)
		}))
		return nil
	})
	env.AwaitLedgerCondition(t, v1alpha1.ConditionRightsComplete, metav1.ConditionFalse, "RightsMissing")
}

// removeUntilEnd deletes an object and creates it again when the test ends.
func removeUntilEnd(t *testing.T, apiVersion, kind, name string) {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetName(name)
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o))
	require.NoError(t, env.Client().Delete(t.Context(), o))
	cleanUp(t, func(ctx context.Context) error {
		o.SetResourceVersion("")
		o.SetUID("")
		return env.Client().Create(ctx, o)
	})
}

func removedBinding(t *testing.T, _ string) {
	removeUntilEnd(t, "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "ot-agent-datavolumes")
}

func removedMutatingBinding(t *testing.T, _ string) {
	testenv.RequireMutatingAdmission(t, env.ControlPlane.Config())
	removeUntilEnd(t, testenv.MutatingAdmissionAPI(t, env.ControlPlane.Config()), "MutatingAdmissionPolicyBinding", "ot-agent-importers")
}

func missingSecret(t *testing.T, namespace string) {
	img := env.NewImage(namespace, "without-secret", "/ok/b.qcow2")
	img.Spec.SecretRef = "not-there"
	createUntilEnd(t, img)
}

// brokenProxy is set in the CDI object, whose config is the authority.
func brokenProxy(t *testing.T, _ string) {
	installed := &cdiv1.CDI{ObjectMeta: metav1.ObjectMeta{Name: "cdi"}}
	config := &cdiv1.CDIConfig{ObjectMeta: metav1.ObjectMeta{Name: "config"}}
	set := func(spec *cdiv1.CDIConfigSpec, shows string) {
		env.Update(t, installed, func() { installed.Spec.Config = spec })
		shown := ""
		assert.True(t, testenv.AwaitCondition(t, func() bool {
			err := env.Client().Get(context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(config), config)
			shown = ""
			if config.Status.ImportProxy != nil {
				shown = ptr.Deref(config.Status.ImportProxy.HTTPProxy, "")
			}
			return err == nil && shown == shows
		}), "CDI shows the proxy %q", shown)
	}
	before := (*cdiv1.CDIConfigSpec)(nil)
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(installed), installed))
	if installed.Spec.Config != nil {
		before = installed.Spec.Config.DeepCopy()
	}
	set(&cdiv1.CDIConfigSpec{ImportProxy: &cdiv1.ImportProxy{HTTPProxy: ptr.To("ftp://proxy.example.com:3128")}}, "ftp://proxy.example.com:3128")
	cleanUp(t, func(context.Context) error { set(before, ""); return nil })
}

func unknownCDI(t *testing.T, _ string) {
	installed := &cdiv1.CDI{ObjectMeta: metav1.ObjectMeta{Name: "cdi"}}
	version := ""
	env.Update(t, installed, func() { version, installed.Status.ObservedVersion = installed.Status.ObservedVersion, "v1.99.0" })
	cleanUp(t, func(context.Context) error {
		env.Update(t, installed, func() { installed.Status.ObservedVersion = version })
		return nil
	})
}

func webhookOfNobody(t *testing.T, _ string) {
	createUntilEnd(t, &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "nobody"}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "nobody.example.com", FailurePolicy: ptr.To(admissionv1.Ignore), SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](1),
		ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "nowhere", Name: "nobody"}},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{"snapshot.storage.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"volumesnapshots"}},
		}},
	}}})
}

// Whoever may read little learns which rights are lacking: nothing fails, and the exit code is 2.
func TestRightsThatAreLackingAreNamed(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stranger"}}
	createUntilEnd(t, account)
	config, err := env.ControlPlane.ServiceAccountConfig(t.Context(), account.Namespace, account.Name)
	require.NoError(t, err)
	r, code := runDoctor(t, newPlugin(t, config))
	assert.Equal(t, 2, code, r.describe())
	quotas := r.worst(t, "quota-three-claims")
	assert.True(t, quotas.Unread)
	assert.Contains(t, quotas.Found, "needs the right to list resourcequotas")
	assert.Equal(t, "Pass", r.worst(t, "k8s-version").Status)
}

// The Job of --probe is deleted, also when doctor is interrupted while it runs.
func TestProbeIsCleanedUp(t *testing.T) {
	p := newPlugin(t, env.ControlPlane.Config())
	path, err := plugin.Build()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, "doctor", "--probe", env.Source.URL+"/ok/a.qcow2")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig)
	require.NoError(t, cmd.Start())
	list := func() (jobs batchv1.JobList) {
		require.NoError(t, env.Client().List(context.WithoutCancel(t.Context()), &jobs, client.InNamespace(program.AgentNamespace)))
		return jobs
	}
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(list().Items) == 1 }), "no Job was made")
	spec := list().Items[0].Spec
	assert.NotNil(t, spec.TTLSecondsAfterFinished, "the cluster itself removes it")
	assert.NotNil(t, spec.ActiveDeadlineSeconds)
	assert.False(t, *spec.Template.Spec.AutomountServiceAccountToken)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	assert.Equal(t, 130, cmd.ProcessState.ExitCode())
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(list().Items) == 0 }), "the Job is still there")
}
