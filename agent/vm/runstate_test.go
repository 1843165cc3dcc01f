package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newWorldUnderRunStrategy returns a world whose KubeVirt VirtualMachine has a run strategy and a
// status.
func newWorldUnderRunStrategy(t *testing.T, run, printable string, status map[string]any) *world {
	t.Helper()
	w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithRunStrategy(v1alpha1.RunStrategy(run))).withRootDisk(goldenImage(1), cdiv1.Succeeded)
	w.withKubeVirtVM(printable, status).reconcile()
	require.Equal(t, run, w.kubeVirtRunStrategy())
	return w
}

func (w *world) kubeVirtRunStrategy() string {
	run, _, _ := unstructured.NestedString(w.KubeVirtVM.Object, "spec", "runStrategy")
	return run
}

// Set while an instance is ending, RerunOnFailure would keep KubeVirt from starting another.
func TestRerunOnFailureWaitsForEndingInstance(t *testing.T) {
	ending := func(run string) map[string]any { return map[string]any{"created": true, "runStrategy": run} }
	gone := func(run string) map[string]any { return map[string]any{"created": false, "runStrategy": run} }
	requested := func(action string) map[string]any {
		return map[string]any{"created": true, "runStrategy": "Manual", "stateChangeRequests": []any{map[string]any{"action": action}}}
	}
	for name, tt := range map[string]struct {
		run, printable string
		status         map[string]any
		wantWait       bool
	}{
		"Halted, the instance has ended":          {"Halted", "Stopped", ending("Halted"), true},
		"Halted, the instance is ending":          {"Halted", "Stopping", ending("Halted"), true},
		"Halted, the instance is about to end":    {"Halted", "Running", ending("Halted"), true},
		"Halted, KubeVirt has not processed it":   {"Halted", "Stopped", gone("Always"), true},
		"Halted, the instance is gone":            {"Halted", "Stopped", gone("Halted"), false},
		"Halted, never started":                   {"Halted", "Stopped", nil, false},
		"Halted, without a printableStatus":       {"Halted", "", nil, false},
		"Always, the instance is ending":          {"Always", "Stopping", ending("Always"), true},
		"Always, the instance has ended":          {"Always", "Stopped", ending("Always"), true},
		"Always, the instance has failed":         {"Always", "CrashLoopBackOff", ending("Always"), true},
		"Always, the failed instance is gone":     {"Always", "CrashLoopBackOff", gone("Always"), false},
		"Always, it runs":                         {"Always", "Running", ending("Always"), false},
		"Always, it starts":                       {"Always", "Starting", ending("Always"), false},
		"Manual, the instance is ending":          {"Manual", "Stopping", ending("Manual"), true},
		"Manual, a stop is requested":             {"Manual", "Stopped", requested("Stop"), true},
		"Manual, the instance has ended":          {"Manual", "Stopped", ending("Manual"), false},
		"Manual, a start is requested":            {"Manual", "Stopped", requested("Start"), false},
		"Once, the instance is ending":            {"Once", "Stopping", ending("Once"), true},
		"Once, the instance has ended, and stays": {"Once", "Stopped", ending("Once"), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldUnderRunStrategy(t, tt.run, tt.printable, tt.status)
			w.VM.Spec.RunStrategy, w.VM.Generation = "RerunOnFailure", 2
			w.reconcile()
			if !tt.wantWait {
				assert.Equal(t, "RerunOnFailure", w.kubeVirtRunStrategy())
				return
			}
			assert.Nil(t, w.lastDecision.ApplyKubeVirtVM)
			assert.Equal(t, tt.run, w.kubeVirtRunStrategy())
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting, "former instance", tt.run)
			assert.Zero(t, w.lastDecision.RequeueAfter, "an event of the KubeVirt VirtualMachine follows")

			w.setKubeVirtStatus("Stopped", gone(tt.run)).reconcile()
			require.NotNil(t, w.lastDecision.ApplyKubeVirtVM)
			assert.Equal(t, "11", w.lastDecision.ApplyKubeVirtVM.GetResourceVersion(), "it is not applied over a newer instance")
			assert.Equal(t, "RerunOnFailure", w.kubeVirtRunStrategy())
			w.reconcile()
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting, "about to be started")
		})
	}
}

// The rest of a spec change is applied or held back as usual.
func TestSpecChangeWithRerunOnFailure(t *testing.T) {
	changed := func(printable string) *world {
		w := newWorldUnderRunStrategy(t, "Halted", printable, map[string]any{"created": true, "runStrategy": "Halted"})
		w.VM.Spec.RunStrategy, w.VM.Spec.Version, w.VM.Generation = "RerunOnFailure", "2", 2
		w.reconcile()
		assert.Empty(t, w.lastDecision.RunStrategy)
		assert.Equal(t, "Halted", w.kubeVirtRunStrategy())
		w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting, "former instance")
		return w
	}
	t.Run("while it is about to end", func(t *testing.T) {
		w := changed("Running")
		assert.Nil(t, w.lastDecision.ApplyKubeVirtVM)
		assert.True(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
	})
	t.Run("once it has ended", func(t *testing.T) {
		w := changed("Stopped")
		require.NotNil(t, w.lastDecision.ApplyKubeVirtVM)
		applied := w.lastDecision.ApplyKubeVirtVM.GetAnnotations()[v1alpha1.AnnotationAppliedDigest]
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
		w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Halted"}).reconcile()
		require.NotNil(t, w.lastDecision.ApplyKubeVirtVM)
		assert.Equal(t, applied, w.lastDecision.ApplyKubeVirtVM.GetAnnotations()[v1alpha1.AnnotationAppliedDigest], "the digest does not cover the run strategy")
		assert.Equal(t, "RerunOnFailure", w.kubeVirtRunStrategy())
	})
}

// Under other run strategies KubeVirt starts an instance once the former one is gone.
func TestOtherRunStrategiesApplyImmediately(t *testing.T) {
	for _, run := range []string{"Always", "Once", "Manual"} {
		w := newWorldUnderRunStrategy(t, "Halted", "Stopped", map[string]any{"created": true, "runStrategy": "Halted"})
		w.VM.Spec.RunStrategy = v1alpha1.RunStrategy(run)
		w.reconcile()
		assert.Equal(t, run, w.kubeVirtRunStrategy())
	}
}

// KubeVirt does not count the instance of a former VirtualMachine as one of a new one.
func TestNewMachineStartsWithRerunOnFailure(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithRunStrategy("RerunOnFailure")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
	w.reconcile()
	require.NotNil(t, w.lastDecision.ApplyKubeVirtVM)
	assert.Equal(t, "RerunOnFailure", w.kubeVirtRunStrategy())
}
