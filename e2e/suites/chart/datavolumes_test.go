//go:build linux

package chart_test

import (
	"context"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// noSlotDenial is the message by which the agent recognizes the denial.
	noSlotDenial = "ValidatingAdmissionPolicy 'ot-agent-datavolumes' with binding 'ot-agent-datavolumes' denied request: DataVolume is not in a slot of the SyncLedger"
	// noLedgerDenial is the API server's message without a ledger.
	noLedgerDenial = "ValidatingAdmissionPolicy 'ot-agent-datavolumes' with binding 'ot-agent-datavolumes' denied request: failed to configure binding: no params found"

	// policyPropagationTimeout bounds how long the API server may take to enforce a new
	// policy, or to see a new parameter.
	policyPropagationTimeout = testenv.Patience
)

// awaitDenied waits until a create is denied: the API server caches policies and parameters.
func awaitDenied(t *testing.T, object client.Object, says string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := adminClient.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll)
		assert.ErrorContains(c, err, says)
		assert.True(c, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%v", err)
	}, policyPropagationTimeout, 20*time.Millisecond)
}

func awaitCreated(t *testing.T, object client.Object) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NoError(c, adminClient.Create(t.Context(), object))
	}, policyPropagationTimeout, 20*time.Millisecond)
	t.Cleanup(func() {
		assert.NoError(t, client.IgnoreNotFound(adminClient.Delete(context.Background(), object)))
	})
}

func newMergePatch(patch string) client.Patch {
	return client.RawPatch(types.MergePatchType, []byte(patch))
}

func TestDataVolumesAreDeniedWithoutALedger(t *testing.T) {
	awaitDenied(t, newDataVolume(imageNamespace, "dv-1", "uid-1"), noLedgerDenial)
	require.NoError(t, adminClient.Create(t.Context(), newDataVolume(imageNamespace, "foreign", ""), client.DryRunAll),
		"a missing ledger must not stop other people's DataVolumes")
}

func TestDataVolumeRequiresASlot(t *testing.T) {
	createLedger(t, 2, "dv-1")
	awaitDenied(t, newDataVolume(imageNamespace, "dv-2", "uid-1"), noSlotDenial)
	awaitCreated(t, newDataVolume(imageNamespace, "dv-1", "uid-1"))
	for name, object := range map[string]client.Object{
		"another name":      newDataVolume(imageNamespace, "dv-2", "uid-1"),
		"another namespace": newDataVolume(agentNamespace, "dv-1", "uid-1"),
		"another image":     newDataVolume(imageNamespace, "dv-1", "uid-2"),
	} {
		t.Run(name, func(t *testing.T) {
			err := adminClient.Create(t.Context(), object, client.DryRunAll)
			require.ErrorContains(t, err, noSlotDenial)
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
		})
	}
	assert.NoError(t, adminClient.Create(t.Context(), newDataVolume(imageNamespace, "foreign", ""), client.DryRunAll))
}

func TestDataVolumeOfFreedSlotIsDenied(t *testing.T) {
	ledger := createLedger(t, 2, "dv-1", "dv-2")
	awaitCreated(t, newDataVolume(imageNamespace, "dv-1", "uid-1"))
	ledger.Status.Slots = slotsFor("dv-1")
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	awaitDenied(t, newDataVolume(imageNamespace, "dv-2", "uid-1"), noSlotDenial)
}

func TestDataVolumeOfEndedAttemptIsDenied(t *testing.T) {
	ledger := createLedger(t, 2, "dv-1", "dv-2")
	awaitCreated(t, newDataVolume(imageNamespace, "dv-2", "uid-1"))
	require.NoError(t, adminClient.Create(t.Context(), newDataVolume(imageNamespace, "dv-1", "uid-1"), client.DryRunAll))
	ledger.Status.Slots[0].Ended = true
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	awaitDenied(t, newDataVolume(imageNamespace, "dv-1", "uid-1"), noSlotDenial)
}

func TestDataVolumeImageLabelIsImmutable(t *testing.T) {
	ledger := createLedger(t, 1, "dv-1")
	ours := newDataVolume(imageNamespace, "dv-1", "uid-1")
	ours.SetFinalizers([]string{"example.com/keep"})
	awaitCreated(t, ours)
	foreign := newDataVolume(imageNamespace, "foreign", "")
	awaitCreated(t, foreign)

	const says = "ValidatingAdmissionPolicy 'ot-agent-datavolume-label' with binding 'ot-agent-datavolume-label' denied request: label pelotech.ot/image-uid"
	for name, test := range map[string]struct {
		object client.Object
		patch  string
	}{
		"add":               {foreign, `{"metadata":{"labels":{"pelotech.ot/image-uid":"uid-1"}}}`},
		"change":            {ours, `{"metadata":{"labels":{"pelotech.ot/image-uid":"uid-2"}}}`},
		"remove":            {ours, `{"metadata":{"labels":{"pelotech.ot/image-uid":null}}}`},
		"remove all labels": {ours, `{"metadata":{"labels":null}}`},
	} {
		t.Run(name, func(t *testing.T) {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				object := test.object.DeepCopyObject().(client.Object)
				err := adminClient.Patch(t.Context(), object, newMergePatch(test.patch), client.DryRunAll)
				assert.ErrorContains(c, err, says)
				assert.True(c, apierrors.IsForbidden(err), "%v", err)
			}, policyPropagationTimeout, 20*time.Millisecond)
		})
	}

	t.Run("other changes pass, without a ledger too", func(t *testing.T) {
		ledger.Status.Slots = nil
		require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
		require.NoError(t, adminClient.Delete(t.Context(), ledger))
		awaitDenied(t, newDataVolume(imageNamespace, "dv-2", "uid-1"), noLedgerDenial)
		assert.NoError(t, adminClient.Patch(t.Context(), ours, newMergePatch(`{"metadata":{"finalizers":null,"labels":{"a":"b"}}}`)))
	})
}

func TestLedgerWithSlotsCannotBeDeleted(t *testing.T) {
	ledger := createLedger(t, 2, "dv-1", "dv-2")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := adminClient.Delete(t.Context(), ledger, client.DryRunAll)
		assert.ErrorContains(c, err, "SyncLedger ot-system/default lists 2 running imports")
	}, policyPropagationTimeout, 20*time.Millisecond)

	err := adminClient.Delete(t.Context(), ledger, client.GracePeriodSeconds(0))
	require.ErrorContains(t, err, `Set concurrency to "0" in the policy ConfigMap sync-operator/sync-operator-policy`)
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, adminClient.DeleteAllOf(t.Context(), &v1alpha1.SyncLedger{}, client.InNamespace(agentNamespace)), "running imports")

	ledger.Status.Slots = nil
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	require.NoError(t, adminClient.Delete(t.Context(), ledger))
}

func TestLedgerBeyondItsBudgetIsRejected(t *testing.T) {
	for name, test := range map[string]struct {
		before, after v1alpha1.SyncLedgerStatus
		refused       bool
	}{
		"the first write fits":         {after: v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a")}},
		"the first write is overfull":  {after: v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "b")}, refused: true},
		"one more than the budget":     {v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "b")}, true},
		"a slot with the budget at 0":  {v1alpha1.SyncLedgerStatus{Budget: 1}, v1alpha1.SyncLedgerStatus{Slots: slotsFor("a")}, true},
		"several fit at once":          {v1alpha1.SyncLedgerStatus{Budget: 3}, v1alpha1.SyncLedgerStatus{Budget: 3, Slots: slotsFor("a", "b", "c")}, false},
		"the budget falls":             {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slotsFor("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "b")}, false},
		"one ends over budget":         {v1alpha1.SyncLedgerStatus{Budget: 3, Slots: slotsFor("a", "b", "c")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "c")}, false},
		"one is swapped over budget":   {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slotsFor("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 1, Slots: slotsFor("a", "c")}, true},
		"one is swapped within budget": {v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slotsFor("a", "b")}, v1alpha1.SyncLedgerStatus{Budget: 2, Slots: slotsFor("a", "c")}, false},
		"the budget is negative":       {after: v1alpha1.SyncLedgerStatus{Budget: -1}, refused: true},
		"the budget is too large":      {after: v1alpha1.SyncLedgerStatus{Budget: v1alpha1.MaxSlots + 1}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := createLedger(t, 0)
			if test.before.Budget > 0 {
				for _, status := range []v1alpha1.SyncLedgerStatus{{Budget: v1alpha1.MaxSlots, Slots: test.before.Slots}, test.before} {
					ledger.Status = status.DeepCopy()
					require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
				}
			}
			ledger.Status = test.after.DeepCopy()
			err := adminClient.Status().Update(t.Context(), ledger)
			if test.refused {
				require.True(t, apierrors.IsInvalid(err), "%v", err)
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestOnlyOneLedgerIsAccepted(t *testing.T) {
	second := &v1alpha1.SyncLedger{}
	second.SetNamespace(agentNamespace)
	second.SetName("another")
	require.ErrorContains(t, adminClient.Create(t.Context(), second), "the SyncLedger must be named default")
}

const (
	cdiAccount              = "system:serviceaccount:cdi:cdi-sa"
	podPhaseAnnotation      = "cdi.kubevirt.io/storage.pod.phase"
	runningReasonAnnotation = "cdi.kubevirt.io/storage.condition.running.reason"
	directIOAnnotation      = "cdi.kubevirt.io/storage.import.requiresDirectIo"
	fatalErrorAnnotation    = "cdi.kubevirt.io/storage.import.fatalError"
)

func TestOneDownloadPoliciesNeedMutatingAdmission(t *testing.T) {
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	const (
		old    = "--api-versions=v1/Pod,admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
		served = old + ",admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
	)
	for name, test := range map[string]struct {
		args      []string
		want      bool
		wantError string
	}{
		"asked, and served":                   {[]string{"--kube-version=1.36.0", served}, true, ""},
		"asked, and not":                      {[]string{"--kube-version=1.36.0", old}, false, ""},
		"not asked, of a version that has it": {[]string{"--kube-version=1.36.0"}, true, ""},
		"not asked, of one that has not":      {[]string{"--kube-version=1.35.9"}, false, ""},
		"not wanted":                          {[]string{"--kube-version=1.36.0", served, "--set=oneDownload.policies=Never"}, false, ""},
		"wanted, and not served":              {[]string{"--kube-version=1.36.0", old, "--set=oneDownload.policies=Required"}, false, "oneDownload.policies is Required, and this cluster does not serve MutatingAdmissionPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			output, err := exec.CommandContext(t.Context(), programs[binaries.Helm], append([]string{"template", "agent", chartPath(t, agentChart)}, test.args...)...).CombinedOutput()
			if test.wantError != "" {
				require.Error(t, err)
				assert.Contains(t, string(output), test.wantError)
				return
			}
			require.NoError(t, err, "%s", output)
			count := 0
			if test.want {
				count = 2 // policy and binding
			}
			for _, name := range admissionpolicy.OneDownloadPolicies {
				assert.Equal(t, count, strings.Count(string(output), "name: "+name+"\n"), name)
			}
			assert.Equal(t, test.want, strings.Contains(string(output), "kind: MutatingAdmissionPolicy"), "nor any other")
		})
	}
}

func TestOneDownloadUsesTheConfiguredCDIAccount(t *testing.T) {
	objects, err := chart.Render(t.Context(), agentChart, "agent", agentNamespace, map[string]any{
		"cdi": map[string]any{"serviceAccount": "system:serviceaccount:openshift-cnv:cdi-sa"}, "oneDownload": map[string]any{"cdiVersions": []any{"1.65", "4.20"}},
	})
	require.NoError(t, err)
	found := 0
	for _, object := range objects {
		if object.GetKind() == "MutatingAdmissionPolicy" {
			if slices.Contains(admissionpolicy.OneDownloadPolicies, object.GetName()) {
				found++
				assert.Equal(t, "1.65,4.20", object.GetAnnotations()["pelotech.ot/cdi-versions"])
			}
			assert.Equal(t, "request.userInfo.username == 'system:serviceaccount:openshift-cnv:cdi-sa'", valueAt(t, object, "spec", "matchConditions", "0", "expression"))
			version := valueAt(t, object, "spec", "matchConditions").([]any)[1].(map[string]any)
			assert.Contains(t, version["expression"], "matches('^v?(1[.]65|4[.]20)[.]')")
			assert.Equal(t, "Ignore", valueAt(t, object, "spec", "failurePolicy"), "the policies must never reject an import")
		}
	}
	assert.Equal(t, 2, found)
}

// TestOneDownloadPolicies writes as CDI does, against the installed policies.
func TestOneDownloadPolicies(t *testing.T) {
	testenv.RequireMutatingAdmission(t, serverConfig)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "imports-"}}
	require.NoError(t, adminClient.Create(t.Context(), ns))
	require.NoError(t, adminClient.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "default"}}))
	cdi, other := clientAsUser(t, cdiAccount), clientAsUser(t, "system:serviceaccount:others:cdi-sa")

	importer := func(labels map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "importer", Labels: labels},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyOnFailure,
				Containers:    []corev1.Container{{Name: "importer", Image: "cdi-importer", Env: []corev1.EnvVar{{Name: "TWICE"}, {Name: "TWICE"}}}},
			},
		}
	}
	restarts := func(t require.TestingT, as client.Client, labels map[string]string) corev1.RestartPolicy {
		pod := importer(labels)
		require.NoError(t, as.Create(context.Background(), pod, client.DryRunAll))
		return pod.Spec.RestartPolicy
	}
	ours := map[string]string{"cdi.kubevirt.io": "importer", v1alpha1.LabelImageUID: "uid-1"}

	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "ours", Labels: map[string]string{v1alpha1.LabelImageUID: "uid-1"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
	foreign := claim.DeepCopy()
	foreign.Name, foreign.Labels = "foreign", nil
	require.NoError(t, adminClient.Create(t.Context(), claim))
	require.NoError(t, adminClient.Create(t.Context(), foreign))
	record := func(t require.TestingT, as client.Client, of *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim)) map[string]string {
		written := of.DeepCopy()
		written.Annotations = map[string]string{}
		change(written)
		require.NoError(t, as.Update(context.Background(), written, client.DryRunAll))
		return maps.Collect(maps.All(written.Annotations))
	}
	annotated := func(keysAndValues ...string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			for i := 0; i < len(keysAndValues); i += 2 {
				c.Annotations[keysAndValues[i]] = keysAndValues[i+1]
			}
		}
	}
	failed := annotated(podPhaseAnnotation, "Failed", runningReasonAnnotation, "Error")
	untouched := func(t require.TestingT) {
		assert.Equal(t, corev1.RestartPolicyOnFailure, restarts(t, cdi, ours))
		assert.NotContains(t, record(t, cdi, claim, failed), fatalErrorAnnotation)
	}

	untouched(t) // CDI's CRD, which tells its version, does not exist

	definition := newStandInCRD("cdi.kubevirt.io", "v1beta1", "CDI", "cdis")
	require.NoError(t, unstructured.SetNestedField(definition.Object, "Cluster", "spec", "scope"))
	require.NoError(t, adminClient.Create(t.Context(), definition))
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), definition)) })
	installed := &unstructured.Unstructured{}
	setCDIStatus := func(t *testing.T, status map[string]any) {
		t.Helper()
		installed.Object["status"] = status
		require.NoError(t, adminClient.Update(t.Context(), installed))
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		installed.Object = map[string]any{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDI", "metadata": map[string]any{"name": "any-name"}}
		require.NoError(c, adminClient.Create(t.Context(), installed))
	}, policyPropagationTimeout, 20*time.Millisecond)

	inForce := func(t *testing.T) {
		t.Helper()
		setCDIStatus(t, map[string]any{"observedVersion": "v1.65.0", "targetVersion": "v1.65.0"})
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.Equal(c, corev1.RestartPolicyNever, restarts(c, cdi, ours))
			assert.Equal(c, "true", record(c, cdi, claim, failed)[fatalErrorAnnotation])
		}, policyPropagationTimeout, 20*time.Millisecond) // long at first: the API server discovers new kinds every 10 s
	}
	inForce(t)

	t.Run("Pods of others", func(t *testing.T) {
		for name, test := range map[string]struct {
			as     client.Client
			labels map[string]string
		}{
			"of another account":          {other, ours},
			"of an administrator":         {adminClient, ours},
			"of an import of others":      {cdi, map[string]string{"cdi.kubevirt.io": "importer"}},
			"of CDI, that import nothing": {cdi, map[string]string{"cdi.kubevirt.io": "cdi-clone-source", v1alpha1.LabelImageUID: "uid-1"}},
			"of nothing of the kind":      {cdi, nil},
		} {
			assert.Equal(t, corev1.RestartPolicyOnFailure, restarts(t, test.as, test.labels), name)
		}
	})
	t.Run("claims", func(t *testing.T) {
		for name, test := range map[string]struct {
			as     client.Client
			of     *corev1.PersistentVolumeClaim
			change func(*corev1.PersistentVolumeClaim)
			want   bool
		}{
			"the importer failed":                {cdi, claim, failed, true},
			"without a reason":                   {cdi, claim, annotated(podPhaseAnnotation, "Failed"), true},
			"it ran out of memory":               {cdi, claim, annotated(podPhaseAnnotation, "Running", directIOAnnotation, "true", runningReasonAnnotation, "OOMKilled"), true},
			"it was made for that":               {cdi, claim, annotated(podPhaseAnnotation, "Running", directIOAnnotation, "false"), false},
			"it could not be made":               {cdi, claim, annotated(podPhaseAnnotation, "Failed", runningReasonAnnotation, "ErrStartingPod"), false},
			"a quota kept it from being made":    {cdi, claim, annotated(podPhaseAnnotation, "Failed", runningReasonAnnotation, "ErrExceededQuota"), false},
			"it waits":                           {cdi, claim, annotated(podPhaseAnnotation, "Pending"), false},
			"it runs":                            {cdi, claim, annotated(podPhaseAnnotation, "Running"), false},
			"it is done":                         {cdi, claim, annotated(podPhaseAnnotation, "Succeeded", runningReasonAnnotation, "Completed"), false},
			"nothing is known of it":             {cdi, claim, annotated(), false},
			"of a foreign claim":                 {cdi, foreign, failed, false},
			"another account says so":            {other, claim, failed, false},
			"an administrator says so":           {adminClient, claim, failed, false},
			"that is not of an image after this": {cdi, claim, func(c *corev1.PersistentVolumeClaim) { failed(c); c.Labels = nil }, false},
			"of an image as of this write":       {cdi, foreign, func(c *corev1.PersistentVolumeClaim) { failed(c); c.Labels = claim.Labels }, true},
		} {
			before := claim.DeepCopy()
			before.Annotations = map[string]string{}
			test.change(before)
			got := record(t, test.as, test.of, test.change)
			if test.want {
				before.Annotations[fatalErrorAnnotation], before.Annotations[podPhaseAnnotation] = "true", "Failed"
			}
			assert.Equal(t, before.Annotations, got, name)
		}
	})
	for name, status := range map[string]map[string]any{
		"a later CDI":              {"observedVersion": "v1.66.0", "targetVersion": "v1.66.0"},
		"one that is upgraded":     {"observedVersion": "v1.65.0", "targetVersion": "v1.66.0"},
		"one that begins alike":    {"observedVersion": "v1.650.0"},
		"one that ends alike":      {"observedVersion": "v11.65.0"},
		"without a version":        {"phase": "Deployed"},
		"without a status":         nil,
		"one that is uninstalling": {"observedVersion": "", "targetVersion": "v1.65.0"},
	} {
		t.Run(name, func(t *testing.T) {
			inForce(t)
			setCDIStatus(t, status)
			require.EventuallyWithT(t, func(c *assert.CollectT) { untouched(c) }, policyPropagationTimeout, 20*time.Millisecond)
		})
	}
	inForce(t)
	require.NoError(t, adminClient.Delete(t.Context(), installed))
	require.EventuallyWithT(t, func(c *assert.CollectT) { untouched(c) }, policyPropagationTimeout, 20*time.Millisecond)
}

// clientAsUser returns a client with all rights, under a user name.
func clientAsUser(t *testing.T, name string) client.Client {
	t.Helper()
	return clientAsUserOf(t, serverConfig, name)
}

// clientAsUserOf is clientAsUser for another control plane.
func clientAsUserOf(t *testing.T, plane *rest.Config, name string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(plane)
	cfg.QPS, cfg.WarningHandler = -1, rest.NoWarnings{}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:masters"}}
	c, err := client.New(cfg, client.Options{Scheme: adminClient.Scheme()})
	require.NoError(t, err)
	return c
}
