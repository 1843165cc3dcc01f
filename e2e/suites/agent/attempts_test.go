//go:build linux

package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestFailureReasons wants a reason of its own for every kind of failure, no more attempts
// than can help, and nothing left in the cluster. Each run takes its share of the kinds.
func TestFailureReasons(t *testing.T) {
	history := observeUnderPolicy(t, "concurrency", "10", "stallTimeout", "2m")
	ns := env.CreateHomeNamespace(t)
	type failure struct {
		path         string
		wantReason   v1alpha1.Reason
		wantAttempts int
		wantText     string
	}
	failures := testenv.TurnShare([]failure{
		{"notfound", v1alpha1.ReasonNotFound, 1, "Correct spec.url"},
		{"checksum", v1alpha1.ReasonChecksumMismatch, 1, "Correct spec.checksum"},
		{"toosmall", v1alpha1.ReasonDiskTooSmall, 1, "Enlarge spec.diskSize"},
		{"forbidden", v1alpha1.ReasonForbidden, 2, "credentials"},
		{"servererror", v1alpha1.ReasonImportFailed, 2, "500"},
		{"cut", v1alpha1.ReasonImportFailed, 2, "unexpected EOF"},
		{"crashloop", v1alpha1.ReasonImportFailed, 2, "exit code 2"},
		{"oom", v1alpha1.ReasonImportFailed, 2, "OOMKilled"},
		{"hang", v1alpha1.ReasonStalled, 2, "nothing moved for stallTimeout"},
	})
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, f := range failures {
		images[f.path] = env.NewImage(ns, f.path, "/"+f.path+"/100ms/a")
		env.Create(t, images[f.path])
	}
	for _, f := range failures {
		t.Run(f.path, func(t *testing.T) {
			if f.wantReason == v1alpha1.ReasonStalled { // last: on a busy machine the other imports take longer than this stallTimeout
				env.SetPolicy(t, testenv.NewPolicy("concurrency", "10", "stallTimeout", "3s"))
			}
			got := env.AwaitFailed(t, images[f.path], f.wantReason)
			assert.Contains(t, got.Status.Message, f.wantText)
			assert.EqualValues(t, f.wantAttempts, got.Status.Attempts)
			env.AwaitEvent(t, images[f.path], string(f.wantReason), "attempt")
		})
	}
	awaitNothingStored(t, ns)
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(env.Ledger(t).Status.Slots) == 0 }))
	h := history()
	for _, f := range failures {
		assert.Equal(t, f.wantAttempts, h.Attempts(images[f.path].UID), f.path)
	}
}

// TestAttemptTimeout sets no backoff: the image already waits for its next slot while that of
// its last attempt is freed, and no later event wakes it.
func TestAttemptTimeout(t *testing.T) {
	history := observeUnderPolicy(t, "attemptTimeout", "10s", "retryBackoffDuration", "0s", "maxRetryBackoff", "0s")
	img := createImage(t, "/hang/a")
	got := env.AwaitFailed(t, img, v1alpha1.ReasonTimeout)
	assert.Contains(t, got.Status.Message, "not done within attemptTimeout, 10s")
	assert.Equal(t, 2, history().Attempts(img.UID))
}

// TestRetryByAnnotationStartsOver wants attempts to be counted from zero after a person's request.
// Each run takes its share of the circumstances.
func TestRetryByAnnotationStartsOver(t *testing.T) {
	t.Run("by annotation", func(t *testing.T) {
		history := observeUnderPolicy(t, "retryLimit", "0")
		img := createImage(t, "/flaky/2/100ms/a")
		env.AwaitFailed(t, img, v1alpha1.ReasonImportFailed)
		env.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "once"} })
		env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.Phase == v1alpha1.PhaseFailed && img.Status.LastAttempt == 2
		})
		env.Update(t, img, func() { img.Annotations[v1alpha1.AnnotationRetry] = "twice" })
		env.AwaitSucceeded(t, img)
		assert.Equal(t, 3, history().Attempts(img.UID))
	})
	type circumstance struct {
		name, policyKey, policyValue, path string
		reason                             v1alpha1.Reason
		request                            func(*v1alpha1.VMDiskImage)
	}
	for _, test := range testenv.TurnShare([]circumstance{
		{"by annotation while it backs off", "retryBackoffDuration", "1h", "/flaky/1/100ms/a", v1alpha1.ReasonBackingOff, func(img *v1alpha1.VMDiskImage) {
			img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "now"}
		}},
		{"by an edit", "retryLimit", "0", "/notfound/100ms/a", v1alpha1.ReasonNotFound, func(img *v1alpha1.VMDiskImage) { img.Spec.URL = env.Source.URL + "/ok/100ms/a" }},
		{"by an edit that makes no revision", "retryLimit", "0", "/flaky/1/100ms/a", v1alpha1.ReasonImportFailed, func(img *v1alpha1.VMDiskImage) { img.Spec.Priority = 1 }},
	}) {
		t.Run(test.name, func(t *testing.T) {
			history := observeUnderPolicy(t, test.policyKey, test.policyValue)
			img := createImage(t, test.path)
			env.AwaitImage(t, img, testenv.HasReason(test.reason))
			env.Update(t, img, func() { test.request(img) })
			env.AwaitSucceeded(t, img)
			assert.Equal(t, 2, history().Attempts(img.UID))
		})
	}
}

// TestBackingOffImageIsPassed wants the queue to skip an image that backs off.
func TestBackingOffImageIsPassed(t *testing.T) {
	testenv.RunInTurn(t, 5)
	history := observeUnderPolicy(t, "concurrency", "1", "retryBackoffDuration", "45s")
	ns := env.CreateHomeNamespace(t)
	fails, passes := env.NewImage(ns, "fails", "/flaky/1/100ms/a"), env.NewImage(ns, "passes", "/ok/100ms/a")
	env.Create(t, fails, passes)
	env.AwaitImage(t, fails, testenv.HasReason(v1alpha1.ReasonBackingOff))
	env.AwaitSucceeded(t, passes)
	env.AwaitSucceeded(t, fails)
	var names []string
	for _, s := range history().Creations() {
		names = append(names, s.Name)
	}
	assert.Equal(t, []string{"fails", "passes", "fails"}, names)
}

// TestOneDownloadPerAttempt stops the agent while imports fail. CDI alone would restart them
// without bound; with the admission policy it creates one importer that starts, once. Which
// version of CDI does not matter.
func TestOneDownloadPerAttempt(t *testing.T) {
	testenv.RequireMutatingAdmission(t, env.ControlPlane.Config())
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "10", "retryLimit", "0"))
	env.AwaitLedgerCondition(t, v1alpha1.ConditionOneDownload, metav1.ConditionTrue, "InForce")
	ns := env.CreateHomeNamespace(t)
	protectSuccessors(t)
	starts := countImporterStarts(t, ns)
	images, outOfMemory := map[string]*v1alpha1.VMDiskImage{}, map[string]bool{}
	for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
		for _, behaviour := range []string{"servererror", "oom"} {
			name := behaviour + "-" + class
			images[name], outOfMemory[name] = env.NewImage(ns, name, "/"+behaviour+"/20s/a"), behaviour == "oom"
			images[name].Spec.StorageClass = class
			env.Create(t, images[name])
		}
	}
	// By the watch: an importer may have failed when its turn to be looked at comes.
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(starts()) == len(images) }), "not all images are imported: %v", env.DescribeImports(t.Context(), ns))
	env.WithoutAgent(t, func() {
		for name, img := range images {
			var pods corev1.PodList
			// None where the agent ended the attempt before it was stopped.
			require.True(t, testenv.AwaitCondition(t, func() bool {
				require.NoError(t, env.Client().List(t.Context(), &pods, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
				return !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
					if outOfMemory[name] {
						return len(pod.Spec.SchedulingGates) == 0
					}
					return pod.Status.Phase != corev1.PodFailed
				})
			}), "%s: the importer goes on, or CDI has not replaced it: %+v", name, pods.Items)
		}
		// CDI looks at each of them every two seconds meanwhile.
		later := newDataVolume("later")
		later.Namespace = ns
		later.Spec = cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: env.Source.URL + "/ok/10s/a"}},
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			}},
		}
		env.Create(t, later)
		require.True(t, testenv.AwaitCondition(t, func() bool {
			return env.Client().Get(t.Context(), client.ObjectKeyFromObject(later), later) == nil && later.Status.Phase == cdiv1.Succeeded
		}))
		require.NoError(t, env.Client().Delete(t.Context(), later))
		for name, img := range images {
			assert.Equal(t, 1, starts()[img.UID], name)
		}
	})
	for name, img := range images {
		got := env.AwaitFailed(t, img, v1alpha1.ReasonImportFailed)
		if outOfMemory[name] {
			assert.Contains(t, got.Status.Message, "OOMKilled", name)
		}
		assert.Equal(t, 1, starts()[img.UID], name)
	}
	awaitNothingStored(t, ns)
}

// protectSuccessors refuses the simulated kubelet the deletion of a Pod that nobody else has
// deleted: it deletes by name, and may hit the successor of the Pod that it means.
func protectSuccessors(t *testing.T) {
	named := metav1.ObjectMeta{Name: "successors"}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Delete},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}},
		Validations: []admissionv1.Validation{{
			Expression: "has(oldObject.metadata.deletionTimestamp) || has(request.options.preconditions) || request.userInfo.username.startsWith('system:')",
		}},
	}}
	createForTest(t, policy, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: named.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}})
}

// countImporterStarts counts how often importers of a namespace start from now on, by image.
func countImporterStarts(t *testing.T, ns string) func() map[types.UID]int {
	t.Helper()
	var mu sync.Mutex
	starts := map[types.UID]map[types.UID]int{}
	stop, err := controlplane.WatchObjects(t.Context(), env.Client(), &corev1.PodList{}, func(c controlplane.Change[*corev1.Pod]) {
		pod := c.Object
		if c.Preexisting || len(pod.Spec.SchedulingGates) > 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		image := types.UID(pod.Labels[v1alpha1.LabelImageUID])
		if starts[image] == nil {
			starts[image] = map[types.UID]int{}
		}
		starts[image][pod.UID] = max(starts[image][pod.UID], 1)
		for i := range pod.Status.ContainerStatuses {
			starts[image][pod.UID] = max(starts[image][pod.UID], 1+int(pod.Status.ContainerStatuses[i].RestartCount))
		}
	}, client.InNamespace(ns), client.MatchingLabels{"cdi.kubevirt.io": "importer"})
	require.NoError(t, err)
	t.Cleanup(stop)
	return func() map[types.UID]int {
		mu.Lock()
		defer mu.Unlock()
		all := map[types.UID]int{}
		for image, pods := range starts {
			for _, n := range pods {
				all[image] += n
			}
		}
		return all
	}
}

// TestLateImporterIsDeleted simulates a CDI with a late cache: it creates a second importer
// for a finished claim and handles neither again, so that Pod and claim keep each other. The
// agent deletes both.
func TestLateImporterIsDeleted(t *testing.T) {
	testenv.RunInTurn(t, 8)
	env.SetPolicy(t, testenv.NewPolicy())
	ns := env.CreateHomeNamespace(t)
	populated, direct := env.NewImage(ns, "populated", "/ok/10s/a"), env.NewImage(ns, "direct", "/ok/10s/a")
	populated.Spec.StorageClass, direct.Spec.StorageClass = simulator.ClassCSI, simulator.ClassLocal
	env.Create(t, populated)
	isPrime := func(claim *corev1.PersistentVolumeClaim) bool { return strings.HasPrefix(claim.Name, "prime-") }
	prime := createLateImporter(t, populated, isPrime)
	// Later versions than CDI 1.65.0 do not copy the image's labels to such a claim.
	unlabeled := env.NewImage(ns, "unlabeled", "/ok/10s/a")
	unlabeled.Spec.StorageClass = simulator.ClassCSI
	env.Create(t, unlabeled)
	unlabeledPrime := createLateImporter(t, unlabeled, isPrime)
	env.Update(t, unlabeledPrime, func() {
		for label := range image.AttemptLabels(v1alpha1.ImageKey{}, "", 0) {
			delete(unlabeledPrime.Labels, label)
		}
	})
	env.Create(t, direct)
	createLateImporter(t, direct, func(*corev1.PersistentVolumeClaim) bool { return true })

	env.AwaitSucceeded(t, populated)
	env.AwaitSucceeded(t, unlabeled)
	for _, claim := range []*corev1.PersistentVolumeClaim{prime, unlabeledPrime} {
		require.True(t, testenv.AwaitCondition(t, func() bool {
			return apierrors.IsNotFound(env.Client().Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
		}), "the prime claim still exists: %+v", claim.ObjectMeta)
	}
	env.AwaitSucceeded(t, direct)
	for _, img := range []*v1alpha1.VMDiskImage{populated, unlabeled, direct} {
		require.NoError(t, env.Client().Delete(t.Context(), img))
		env.AwaitGone(t, img)
	}
	awaitNothingStored(t, ns)
}

// createLateImporter creates a second importer, as CDI's, for a claim of an image that is
// being imported.
func createLateImporter(t *testing.T, img *v1alpha1.VMDiskImage, matches func(*corev1.PersistentVolumeClaim) bool) *corev1.PersistentVolumeClaim {
	t.Helper()
	env.AwaitImporting(t, img)
	var claims corev1.PersistentVolumeClaimList
	require.NoError(t, env.Client().List(t.Context(), &claims, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
	i := slices.IndexFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return matches(&c) })
	require.GreaterOrEqual(t, i, 0, "claims are %v", claims.Items)
	claim := &claims.Items[i]
	require.NoError(t, env.Client().Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: img.Namespace, Name: "late-" + img.Name, Labels: claim.Labels,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: simulator.NodeName, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "importer", Image: "cdi-importer"}},
			Volumes: []corev1.Volume{{Name: "cdi-data-vol", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}}},
		},
	}))
	return claim
}

// TestTakenDataVolumeNameIsSkipped has someone else create a DataVolume under the guessable
// name of the next attempt: the slot is freed and the foreign DataVolume is left alone.
func TestTakenDataVolumeNameIsSkipped(t *testing.T) {
	testenv.RunInTurn(t, 10)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1", "retryLimit", "1", "retryBackoffDuration", "15s"))
	ns := env.CreateHomeNamespace(t)
	img := env.NewImage(ns, "image", "/servererror/a")
	env.Create(t, img)
	waits := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonBackingOff))
	first := waits.Status.Revisions[0].DataVolume
	require.True(t, strings.HasSuffix(first, "-1"), first)
	foreign := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: strings.TrimSuffix(first, "1") + "2"},
		Spec: cdiv1.DataVolumeSpec{
			Source: &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			}},
		},
	}
	env.Create(t, foreign)
	got := env.AwaitFailed(t, img, v1alpha1.ReasonDataVolumeRefused)
	assert.Contains(t, got.Status.Message, "exists and is not the agent's")

	next := env.NewImage(ns, "next", "/ok/0s/a")
	env.Create(t, next)
	env.AwaitSucceeded(t, next)
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign))
	assert.Nil(t, foreign.DeletionTimestamp)
}

// TestPendingClaimIsWrittenOnce wants CDI's annotations of a pending claim to be written once
// only: repeated writes would make the binding controller lose every race.
func TestPendingClaimIsWrittenOnce(t *testing.T) {
	testenv.RunInTurn(t, 24)
	testenv.RequireMutatingAdmission(t, env.ControlPlane.Config())
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "2"))
	ns := env.CreateHomeNamespace(t)
	unserved := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "unserved"}, Provisioner: "example.com/unserved",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	env.Create(t, unserved)
	t.Cleanup(func() { require.NoError(t, env.Client().Delete(context.Background(), unserved)) })
	env.SetClaimProperties(t, unserved.Name)
	waits := env.NewImage(ns, "waits", "/ok/1s/waits")
	waits.Spec.StorageClass = unserved.Name
	env.Create(t, waits)
	var claims corev1.PersistentVolumeClaimList
	bound := func() map[string]string {
		require.NoError(t, env.Client().List(t.Context(), &claims, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(waits.UID)}))
		if len(claims.Items) != 1 {
			return nil
		}
		return claims.Items[0].Annotations
	}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return bound()["volume.kubernetes.io/selected-node"] != "" && bound()["cdi.kubevirt.io/storage.condition.bound.reason"] == "Pending"
	}), "%+v", &claims)

	changes, since := countClaimWrites(t, ns), time.Now()
	other := env.NewImage(ns, "other", "/ok/3s/other")
	env.Create(t, other)
	env.AwaitImage(t, other, testenv.InPhase(v1alpha1.PhaseSucceeded))
	// The binding controller tries again from time to time: a slower import sees more of it.
	assert.Less(t, changes(claims.Items[0].UID), max(20, int(20*time.Since(since)/(3*time.Second))), "writes of the claim while another image is imported for at least 3 s")
	assert.Equal(t, "Pending", bound()["cdi.kubevirt.io/storage.condition.bound.reason"], "the claim says why it waits")
}

// countClaimWrites counts the writes of the claims of a namespace from now on, by UID.
func countClaimWrites(t *testing.T, ns string) func(types.UID) int {
	t.Helper()
	var mu sync.Mutex
	changes := map[types.UID]int{}
	stop, err := controlplane.WatchObjects(t.Context(), env.Client(), &corev1.PersistentVolumeClaimList{}, func(c controlplane.Change[*corev1.PersistentVolumeClaim]) {
		if c.Preexisting {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		changes[c.Object.UID]++
	}, client.InNamespace(ns))
	require.NoError(t, err)
	t.Cleanup(stop)
	return func(uid types.UID) int {
		mu.Lock()
		defer mu.Unlock()
		return changes[uid]
	}
}
