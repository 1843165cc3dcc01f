//go:build linux

package faults

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// disableAdmissionPolicy takes one of the chart's admission policies out of force.
func disableAdmissionPolicy(t *testing.T, name string) {
	t.Helper()
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(binding), binding))
	again := binding.DeepCopy()
	again.ResourceVersion, again.UID = "", ""
	require.NoError(t, testScene.Client().Delete(t.Context(), binding))
	t.Cleanup(func() { assert.NoError(t, testScene.Client().Create(context.Background(), again)) })
}

// fillQueue has as many images run as the policy allows, and as many again wait.
func fillQueue(t *testing.T, n int, class string) []*v1alpha1.VMDiskImage {
	t.Helper()
	ns := createHomeNamespace(t)
	var images []*v1alpha1.VMDiskImage
	for i := range 2 * n {
		path := "/ok/10s/a"
		if i >= n {
			path = "/ok/200ms/a"
		}
		img := testScene.NewImage(ns, fmt.Sprintf("image-%d", i), path)
		img.Spec.StorageClass = class
		images = append(images, img)
		testScene.Create(t, img)
	}
	require.True(t, testenv.Await(t, func() bool { return countRunningImporters(t, ns) == n }))
	return images
}

func TestAPIServerEnforcesTheBudget(t *testing.T) {
	testScene.AwaitLedgerCondition(t, v1alpha1.ConditionBudgetGuarded, metav1.ConditionTrue, "Guarded")
	var kept cdiv1.DataVolumeList
	require.NoError(t, testScene.Client().List(t.Context(), &kept, client.InNamespace(program.AgentNamespace)))
	assert.Empty(t, kept.Items, "it was tried for nothing")
	guarded := func(status metav1.ConditionStatus) float64 {
		return metricValue(t, "ot_agent_condition", "type", v1alpha1.ConditionBudgetGuarded, "status", string(status))
	}
	require.True(t, testenv.Await(t, func() bool { return guarded(metav1.ConditionTrue) == 1 }))
	assert.Negative(t, guarded(metav1.ConditionUnknown), "what held before is told as well")
}

func TestLedgerCannotBeDeletedWhileImportsRun(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "1"))
	img := testScene.NewImage(createHomeNamespace(t), "image", "/hang/a")
	testScene.Create(t, img)
	awaitImporting(t, img)
	err := testScene.Client().Delete(t.Context(), testScene.Ledger(t))
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "lists 1 running imports")
}

// TestLostLedgerIsRebuilt wants the imports that run found again, none of them twice, and
// nothing started beside them meanwhile.
func TestLostLedgerIsRebuilt(t *testing.T) {
	for _, tt := range []struct {
		name  string
		class string
		lose  func(t *testing.T)
	}{
		{"deleted", simulator.ClassCSI, func(t *testing.T) {
			disableAdmissionPolicy(t, "ot-agent-ledger")
			old := testScene.Ledger(t)
			require.True(t, testenv.Await(t, func() bool { return testScene.Client().Delete(t.Context(), old) == nil }))
			require.True(t, testenv.Await(t, func() bool { l := testScene.Ledger(t); return l.UID != "" && l.UID != old.UID }))
		}},
		{"deleted while no agent runs", simulator.ClassCSI, func(t *testing.T) {
			disableAdmissionPolicy(t, "ot-agent-ledger")
			testScene.WithoutAgent(t, func() {
				require.True(t, testenv.Await(t, func() bool { return testScene.Client().Delete(t.Context(), testScene.Ledger(t)) == nil }))
			})
		}},
		{"emptied", simulator.ClassCSI, clearLedger},
		{"emptied, with local storage", simulator.ClassLocal, clearLedger},
		{"emptied while no agent runs", simulator.ClassCSI, func(t *testing.T) {
			testScene.WithoutAgent(t, func() { clearLedger(t) })
		}},
		{"emptied of one", simulator.ClassCSI, func(t *testing.T) {
			updateLedgerStatus(t, func(st *v1alpha1.SyncLedgerStatus) { st.Slots = st.Slots[:1] })
		}},
		{"its status removed", simulator.ClassCSI, func(t *testing.T) {
			updateLedgerStatus(t, func(st *v1alpha1.SyncLedgerStatus) { *st = v1alpha1.SyncLedgerStatus{Budget: 0} })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const n = 2
			testScene.SetPolicy(t, newPolicy("concurrency", fmt.Sprint(n)))
			history := observeTest(t)
			images := fillQueue(t, n, tt.class)
			tt.lose(t)
			require.True(t, testenv.Await(t, func() bool { return len(testScene.Ledger(t).Status.Slots) == n }))
			for _, img := range images {
				awaitSucceeded(t, img)
			}
			require.True(t, testenv.Await(t, func() bool {
				l := testScene.Ledger(t)
				return len(l.Status.Slots) == 0 && l.Status.Budget == n
			}))
			h := history()
			for i, img := range images {
				assert.Equal(t, 1, h.Attempts(img.UID), "image %d is downloaded once", i)
			}
			assert.LessOrEqual(t, h.MaxRunning(), n)
		})
	}
}

func clearLedger(t *testing.T) {
	t.Helper()
	updateLedgerStatus(t, func(st *v1alpha1.SyncLedgerStatus) { st.Slots = nil })
}

func updateLedgerStatus(t *testing.T, change func(*v1alpha1.SyncLedgerStatus)) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool {
		l := testScene.Ledger(t)
		change(l.Status)
		return testScene.Client().Status().Update(t.Context(), l) == nil
	}))
}

// TestStrayDataVolumeIsDeleted wants what carries our label and stands in no slot removed
// and counted, and others left alone.
func TestStrayDataVolumeIsDeleted(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	img := testScene.NewImage(ns, "image", "/ok/100ms/a")
	testScene.Create(t, img)
	awaitSucceeded(t, img)
	before := metricValue(t, "ot_agent_stray_data_volumes_total")
	importer := func(name string, labels map[string]string) *cdiv1.DataVolume {
		url := testScene.Source.URL + "/hang/a"
		class := simulator.ClassCSI
		return &cdiv1.DataVolume{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels},
			Spec: cdiv1.DataVolumeSpec{
				Source:  &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: url}},
				Storage: &cdiv1.StorageSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
			},
		}
	}
	others := importer("theirs", nil)
	testScene.Create(t, others)
	disableAdmissionPolicy(t, "ot-agent-datavolumes")
	labelled := []map[string]string{
		{v1alpha1.LabelImageUID: "nobody"},
		{v1alpha1.LabelImageUID: "nobody", v1alpha1.LabelAttempt: "many"},
		{v1alpha1.LabelImageUID: string(img.UID), v1alpha1.LabelAttempt: "7", v1alpha1.LabelRevision: "x"},
	}
	for i, labels := range labelled {
		stray := importer(fmt.Sprintf("stray-%d", i), labels)
		require.True(t, testenv.Await(t, func() bool { return testScene.Client().Create(t.Context(), stray) == nil }))
		testScene.AwaitGone(t, stray.DeepCopy())
	}
	awaitMetric(t, before+float64(len(labelled)), "ot_agent_stray_data_volumes_total")
	require.NoError(t, testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(others), others))
	assert.Nil(t, others.DeletionTimestamp)
	awaitSucceeded(t, img)
}
