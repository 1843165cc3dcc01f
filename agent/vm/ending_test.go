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

// newWorldUnderRunStrategy is a machine that KubeVirtServed has under a run strategy, with a status.
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

// TestRerunOnFailureWaitsForEndingInstance when no instance is on its way out: KubeVirtServed would
// start no other.
func TestRerunOnFailureWaitsForEndingInstance(t *testing.T) {
	going := func(run string) map[string]any { return map[string]any{"created": true, "runStrategy": run} }
	gone := func(run string) map[string]any { return map[string]any{"created": false, "runStrategy": run} }
	asked := func(action string) map[string]any {
		return map[string]any{"created": true, "runStrategy": "Manual", "stateChangeRequests": []any{map[string]any{"action": action}}}
	}
	for name, tt := range map[string]struct {
		run, printable string
		status         map[string]any
		waits          bool
	}{
		"Halted, the instance has ended":          {"Halted", "Stopped", going("Halted"), true},
		"Halted, the instance is ending":          {"Halted", "Stopping", going("Halted"), true},
		"Halted, the instance is about to end":    {"Halted", "Running", going("Halted"), true},
		"Halted, KubeVirt has not seen it yet":    {"Halted", "Stopped", gone("Always"), true},
		"Halted, the instance is gone":            {"Halted", "Stopped", gone("Halted"), false},
		"Halted, never started":                   {"Halted", "Stopped", nil, false},
		"Halted, not looked at":                   {"Halted", "", nil, false},
		"Always, the instance is ending":          {"Always", "Stopping", going("Always"), true},
		"Always, the instance has ended":          {"Always", "Stopped", going("Always"), true},
		"Always, the instance has failed":         {"Always", "CrashLoopBackOff", going("Always"), true},
		"Always, the failed instance is gone":     {"Always", "CrashLoopBackOff", gone("Always"), false},
		"Always, it runs":                         {"Always", "Running", going("Always"), false},
		"Always, it starts":                       {"Always", "Starting", going("Always"), false},
		"Manual, the instance is ending":          {"Manual", "Stopping", going("Manual"), true},
		"Manual, the instance has been stopped":   {"Manual", "Stopped", asked("Stop"), true},
		"Manual, the instance has ended":          {"Manual", "Stopped", going("Manual"), false},
		"Manual, it is asked for":                 {"Manual", "Stopped", asked("Start"), false},
		"Once, the instance is ending":            {"Once", "Stopping", going("Once"), true},
		"Once, the instance has ended, and stays": {"Once", "Stopped", going("Once"), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldUnderRunStrategy(t, tt.run, tt.printable, tt.status)
			w.VM.Spec.RunStrategy, w.VM.Generation = "RerunOnFailure", 2
			w.reconcile()
			if !tt.waits {
				assert.Equal(t, "RerunOnFailure", w.kubeVirtRunStrategy())
				return
			}
			assert.Nil(t, w.lastDecision.ApplyKubeVirtVM)
			assert.Equal(t, tt.run, w.kubeVirtRunStrategy())
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting, "former instance", tt.run)
			assert.Zero(t, w.lastDecision.RequeueAfter, "an event tells of it")

			w.setKubeVirtStatus("Stopped", gone(tt.run)).reconcile()
			require.NotNil(t, w.lastDecision.ApplyKubeVirtVM)
			assert.Equal(t, "11", w.lastDecision.ApplyKubeVirtVM.GetResourceVersion(), "no instance that has come meanwhile")
			assert.Equal(t, "RerunOnFailure", w.kubeVirtRunStrategy())
			w.reconcile()
			w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting, "about to be started")
		})
	}
}

// The rest of a change is carried out, or held back, as ever.
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
		assert.Equal(t, applied, w.lastDecision.ApplyKubeVirtVM.GetAnnotations()[v1alpha1.AnnotationAppliedDigest], "the run strategy is no part of it")
		assert.Equal(t, "RerunOnFailure", w.kubeVirtRunStrategy())
	})
}

// Other run strategies look for an instance as long as there is none.
func TestOtherRunStrategiesApplyImmediately(t *testing.T) {
	for _, run := range []string{"Always", "Once", "Manual"} {
		w := newWorldUnderRunStrategy(t, "Halted", "Stopped", map[string]any{"created": true, "runStrategy": "Halted"})
		w.VM.Spec.RunStrategy = v1alpha1.RunStrategy(run)
		w.reconcile()
		assert.Equal(t, run, w.kubeVirtRunStrategy())
	}
}

// A machine that is made anew starts with it: KubeVirtServed counts no instance of a
// former one as its own.
func TestNewMachineStartsWithRerunOnFailure(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithRunStrategy("RerunOnFailure")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
	w.reconcile()
	require.NotNil(t, w.lastDecision.ApplyKubeVirtVM)
	assert.Equal(t, "RerunOnFailure", w.kubeVirtRunStrategy())
}
