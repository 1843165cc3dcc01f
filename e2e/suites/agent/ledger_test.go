//go:build linux

package agent

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

// disableAdmissionPolicy deletes the binding of one of the chart's admission policies until
// the test ends.
func disableAdmissionPolicy(t *testing.T, name string) {
	t.Helper()
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(binding), binding))
	again := binding.DeepCopy()
	again.ResourceVersion, again.UID = "", ""
	require.NoError(t, env.Client().Delete(t.Context(), binding))
	t.Cleanup(func() { assert.NoError(t, env.Client().Create(context.Background(), again)) })
}

// fillQueue creates 2n images and waits until n of them, as the policy allows, are imported.
func fillQueue(t *testing.T, n int, class string) []*v1alpha1.VMDiskImage {
	t.Helper()
	ns := env.CreateHomeNamespace(t)
	var images []*v1alpha1.VMDiskImage
	for i := range 2 * n {
		path := "/ok/10s/a"
		if i >= n {
			path = "/ok/200ms/a"
		}
		img := env.NewImage(ns, fmt.Sprintf("image-%d", i), path)
		img.Spec.StorageClass = class
		images = append(images, img)
		env.Create(t, img)
	}
	require.True(t, testenv.AwaitCondition(t, func() bool { return env.CountRunningImporters(t, ns) == n }))
	return images
}

func TestAPIServerEnforcesTheBudget(t *testing.T) {
	env.AwaitLedgerCondition(t, v1alpha1.ConditionBudgetGuarded, metav1.ConditionTrue, "Guarded")
	var kept cdiv1.DataVolumeList
	require.NoError(t, env.Client().List(t.Context(), &kept, client.InNamespace(program.AgentNamespace)))
	assert.Empty(t, kept.Items, "the DataVolume of the guard check was created")
	guarded := func(status metav1.ConditionStatus) float64 {
		return env.MetricValue(t, "ot_agent_condition", "type", v1alpha1.ConditionBudgetGuarded, "status", string(status))
	}
	require.True(t, testenv.AwaitCondition(t, func() bool { return guarded(metav1.ConditionTrue) == 1 }))
	assert.Negative(t, guarded(metav1.ConditionUnknown), "the metric has the former status as well")
}

func TestLedgerCannotBeDeletedWhileImportsRun(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "1"))
	img := createImage(t, "/hang/a")
	env.AwaitImporting(t, img)
	err := env.Client().Delete(t.Context(), env.Ledger(t))
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "lists 1 running imports")
}

// TestLostLedgerIsRebuilt wants running imports to get their slots back, once each, and
// nothing to start beside them meanwhile. Each run takes its share of the cases.
func TestLostLedgerIsRebuilt(t *testing.T) {
	type loss struct {
		name  string
		class string
		lose  func(t *testing.T)
	}
	for _, tt := range testenv.SweepShare([]loss{
		{"deleted", simulator.ClassCSI, func(t *testing.T) {
			disableAdmissionPolicy(t, "ot-agent-ledger")
			old := env.Ledger(t)
			require.True(t, testenv.AwaitCondition(t, func() bool { return env.Client().Delete(t.Context(), old) == nil }))
			require.True(t, testenv.AwaitCondition(t, func() bool { l := env.Ledger(t); return l.UID != "" && l.UID != old.UID }))
		}},
		{"deleted while no agent runs", simulator.ClassCSI, func(t *testing.T) {
			disableAdmissionPolicy(t, "ot-agent-ledger")
			env.WithoutAgent(t, func() {
				require.True(t, testenv.AwaitCondition(t, func() bool { return env.Client().Delete(t.Context(), env.Ledger(t)) == nil }))
			})
		}},
		{"emptied", simulator.ClassCSI, clearLedger},
		{"emptied, with local storage", simulator.ClassLocal, clearLedger},
		{"emptied while no agent runs", simulator.ClassCSI, func(t *testing.T) {
			env.WithoutAgent(t, func() { clearLedger(t) })
		}},
		{"one slot removed", simulator.ClassCSI, func(t *testing.T) {
			updateLedgerStatus(t, func(st *v1alpha1.SyncLedgerStatus) { st.Slots = st.Slots[:1] })
		}},
		{"its status removed", simulator.ClassCSI, func(t *testing.T) {
			updateLedgerStatus(t, func(st *v1alpha1.SyncLedgerStatus) { *st = v1alpha1.SyncLedgerStatus{Budget: 0} })
		}},
	}) {
		t.Run(tt.name, func(t *testing.T) {
			const n = 2
			history := observeUnderPolicy(t, "concurrency", fmt.Sprint(n))
			images := fillQueue(t, n, tt.class)
			tt.lose(t)
			require.True(t, testenv.AwaitCondition(t, func() bool { return len(env.Ledger(t).Status.Slots) == n }))
			for _, img := range images {
				env.AwaitSucceeded(t, img)
			}
			require.True(t, testenv.AwaitCondition(t, func() bool {
				l := env.Ledger(t)
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
	require.True(t, testenv.AwaitCondition(t, func() bool {
		l := env.Ledger(t)
		change(l.Status)
		return env.Client().Status().Update(t.Context(), l) == nil
	}))
}

// TestStrayDataVolumeIsDeleted wants DataVolumes with the agent's label but without a slot to
// be deleted and counted, and others to be left alone.
func TestStrayDataVolumeIsDeleted(t *testing.T) {
	testenv.RunInTurn(t, 20)
	env.SetPolicy(t, testenv.NewPolicy())
	ns := env.CreateHomeNamespace(t)
	img := env.ImportImage(t, env.NewImage(ns, "image", "/ok/100ms/a"))
	before := env.MetricValue(t, "ot_agent_stray_data_volumes_total")
	importer := func(name string, labels map[string]string) *cdiv1.DataVolume {
		url := env.Source.URL + "/hang/a"
		class := simulator.ClassCSI
		return &cdiv1.DataVolume{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels},
			Spec: cdiv1.DataVolumeSpec{
				Source:  &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: url}},
				Storage: &cdiv1.StorageSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
			},
		}
	}
	foreign := importer("foreign", nil)
	env.Create(t, foreign)
	disableAdmissionPolicy(t, "ot-agent-datavolumes")
	labelled := []map[string]string{
		{v1alpha1.LabelImageUID: "nobody"},
		{v1alpha1.LabelImageUID: "nobody", v1alpha1.LabelAttempt: "many"},
		{v1alpha1.LabelImageUID: string(img.UID), v1alpha1.LabelAttempt: "7", v1alpha1.LabelRevision: "x"},
	}
	for i, labels := range labelled {
		stray := importer(fmt.Sprintf("stray-%d", i), labels)
		require.True(t, testenv.AwaitCondition(t, func() bool { return env.Client().Create(t.Context(), stray) == nil }))
		env.AwaitGone(t, stray.DeepCopy())
	}
	env.AwaitMetric(t, before+float64(len(labelled)), "ot_agent_stray_data_volumes_total")
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign))
	assert.Nil(t, foreign.DeletionTimestamp)
	env.AwaitSucceeded(t, img)
}
