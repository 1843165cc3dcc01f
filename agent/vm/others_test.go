package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	inDisks      = []string{"spec", "template", "spec", "domain", "devices", "disks"}
	inInterfaces = []string{"spec", "template", "spec", "domain", "devices", "interfaces"}
	inVolumes    = []string{"spec", "template", "spec", "volumes"}
	inNetworks   = []string{"spec", "template", "spec", "networks"}
)

// runningWith is a world whose machine runs.
func runningWith(t *testing.T, b *apitest.MachineBuilder) *world {
	return newWorld(t, b).cloned(golden(1), cdiv1.Succeeded).running()
}

func (w *world) list(path []string) []any {
	list, _, err := unstructured.NestedSlice(w.Machine.Object, path...)
	require.NoError(w.t, err)
	return list
}

func (w *world) put(list []any, path []string) {
	require.NoError(w.t, unstructured.SetNestedSlice(w.Machine.Object, list, path...))
}

func (w *world) names(path []string) (names []string) {
	for _, item := range w.list(path) {
		names = append(names, item.(map[string]any)["name"].(string))
	}
	return names
}

func (w *world) annotate(key, value string) {
	annotations := w.Machine.GetAnnotations()
	annotations[key] = value
	w.Machine.SetAnnotations(annotations)
}

func (w *world) message(condition string) string {
	return meta.FindStatusCondition(w.VM.Status.Conditions, condition).Message
}

// plugIn adds what virtctl adds: a disk, a memory dump and an interface. The
// disk stands first.
func (w *world) plugIn() {
	w.put(append([]any{map[string]any{"name": "hot", "serial": "hot", "disk": map[string]any{"bus": "scsi"}}}, w.list(inDisks)...), inDisks)
	w.put(append(w.list(inVolumes),
		map[string]any{"name": "hot", "persistentVolumeClaim": map[string]any{"claimName": "data", "hotpluggable": true}},
		map[string]any{"name": "dump", "memoryDump": map[string]any{"claimName": "dump", "hotpluggable": true}}), inVolumes)
	w.put(append(w.list(inInterfaces), map[string]any{"name": "late", "bridge": map[string]any{}}), inInterfaces)
	w.put(append(w.list(inNetworks), map[string]any{"name": "late", "multus": map[string]any{"networkName": "late"}}), inNetworks)
}

func TestDecideLeavesWhatOthersAdd(t *testing.T) {
	two := func() *apitest.MachineBuilder {
		return apitest.VirtualMachine("ns", "vm").WithInterfaces(v1alpha1.Interface{Network: "a"}, v1alpha1.Interface{Network: "b"})
	}
	t.Run("to a machine that runs", func(t *testing.T) {
		w := runningWith(t, two())
		w.plugIn()
		assert.Nil(t, w.visit().ApplyMachine)
	})
	t.Run("when drift is put back", func(t *testing.T) {
		w := runningWith(t, two())
		w.plugIn()
		disks := w.list(inDisks)
		root := disks[1].(map[string]any)
		root["bootOrder"] = int64(2)
		w.put(disks, inDisks)
		require.NotNil(t, w.visit().ApplyMachine)
		assert.Equal(t, "11", w.last.ApplyMachine.GetResourceVersion(), "no newer addition is undone")
		assert.Equal(t, []string{"hot", "root", "cloudinit"}, w.names(inDisks))
		assert.Equal(t, []string{"root", "cloudinit", "hot", "dump"}, w.names(inVolumes))
		assert.EqualValues(t, 1, w.list(inDisks)[1].(map[string]any)["bootOrder"])
		assert.Equal(t, "hot", w.list(inDisks)[0].(map[string]any)["serial"])
		assert.Nil(t, w.visit().ApplyMachine)
	})
	t.Run("when the spec loses an interface", func(t *testing.T) {
		w := runningWith(t, two())
		w.plugIn()
		w.VM.Spec.Interfaces = w.VM.Spec.Interfaces[:1]
		w.reports("Stopped", nil)
		require.NotNil(t, w.visit().ApplyMachine)
		assert.Equal(t, []string{"net0", "late"}, w.names(inInterfaces))
		assert.Equal(t, []string{"net0", "late"}, w.names(inNetworks))
		assert.Nil(t, w.visit().ApplyMachine)
	})
	t.Run("when the overlay loses a disk", func(t *testing.T) {
		w := runningWith(t, two().WithOverlay(`{"template":{"spec":{"domain":{"devices":{"disks":[{"name":"data","disk":{"bus":"virtio"}}]}},"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]}}}`))
		w.plugIn()
		require.Contains(t, w.names(inDisks), "data")
		w.VM.Spec.Overlay = nil
		w.reports("Stopped", nil)
		require.NotNil(t, w.visit().ApplyMachine)
		assert.Equal(t, []string{"hot", "root", "cloudinit"}, w.names(inDisks))
		assert.Equal(t, []string{"root", "cloudinit", "hot", "dump"}, w.names(inVolumes))
	})
	t.Run("but not an order of its own", func(t *testing.T) {
		w := runningWith(t, two())
		nics := w.list(inInterfaces)
		w.put([]any{nics[1], nics[0]}, inInterfaces)
		require.NotNil(t, w.visit().ApplyMachine)
		assert.Equal(t, []string{"net0", "net1"}, w.names(inInterfaces))
	})
}

// TestDecideAfterARestore of KubeVirt 1.8: it puts a claim in the place of the
// root disk.
func TestDecideAfterARestore(t *testing.T) {
	restored := func(t *testing.T) *world {
		w := runningWith(t, apitest.VirtualMachine("ns", "vm"))
		w.put([]any{map[string]any{"name": "root", "persistentVolumeClaim": map[string]any{"claimName": "restore-1-root"}}, w.list(inVolumes)[1]}, inVolumes)
		w.reports("Stopped", nil)
		return w
	}
	t.Run("it stands", func(t *testing.T) {
		w := restored(t)
		w.annotate("restore.kubevirt.io/lastRestoreUID", "vmrestore-1")
		assert.Nil(t, w.visit().ApplyMachine)
		assert.Contains(t, w.message(v1alpha1.ConditionSpecAdjusted), "PersistentVolumeClaim restore-1-root, and is left so")
		w.VM.Spec.Version = "2"
		require.NotNil(t, w.visit().ApplyMachine)
		assert.Contains(t, w.list(inVolumes)[0], "persistentVolumeClaim")
		assert.NotContains(t, w.list(inVolumes)[0], "dataVolume")
	})
	t.Run("another disk is put back", func(t *testing.T) {
		w := restored(t)
		require.NotNil(t, w.visit().ApplyMachine)
		assert.Contains(t, w.list(inVolumes)[0], "dataVolume")
	})
}

// TestDecideMakesAHaltedMachineAgain as it was: nobody has asked for it to run.
func TestDecideMakesAHaltedMachineAgain(t *testing.T) {
	w := runningWith(t, apitest.VirtualMachine("ns", "vm"))
	require.NoError(t, unstructured.SetNestedField(w.Machine.Object, "Halted", "spec", "runStrategy"))
	w.reports("Stopped", nil).visit()
	require.NoError(t, unstructured.SetNestedField(w.Machine.Object, "WaitAsReceiver", "spec", "runStrategy"))
	w.visit()
	assert.EqualValues(t, "Halted", w.VM.Status.RunStrategy, "the API server takes no other")
	w.Machine = nil
	require.NotNil(t, w.visit().ApplyMachine)
	run, _, _ := unstructured.NestedString(w.Machine.Object, "spec", "runStrategy")
	assert.Equal(t, "Halted", run)
}

func TestDecideTellsOfARestart(t *testing.T) {
	anne := v1alpha1.User{Name: "anne"}
	t.Run("not when another agent makes something else of the spec", func(t *testing.T) {
		w := runningWith(t, apitest.VirtualMachine("ns", "vm"))
		w.annotate(v1alpha1.AnnotationApplied, "an older agent's")
		w.visit()
		assert.False(t, w.has(v1alpha1.ConditionRestartRequired))
		assert.Contains(t, w.message(v1alpha1.ConditionRestartRequired), "when it starts the next time")
		assert.Nil(t, w.last.ApplyMachine)

		w.VM.Spec.Version = "2"
		w.visit()
		assert.True(t, w.has(v1alpha1.ConditionRestartRequired), "the author's change is told")
		w.VM.Spec.Version = ""

		w.reports("Stopped", nil)
		require.NotNil(t, w.visit().ApplyMachine)
		assert.Nil(t, w.visit().ApplyMachine)
	})
	t.Run("not when it would bring nothing", func(t *testing.T) {
		w := runningWith(t, apitest.VirtualMachine("ns", "vm"))
		w.VM.Spec.Users = []v1alpha1.User{anne}
		w.visit()
		assert.False(t, w.has(v1alpha1.ConditionRestartRequired))
		assert.Contains(t, w.message(v1alpha1.ConditionSpecAdjusted), "users, interfaces or cloudInit have changed since the guest's first boot")
		w.VM.Spec.Users = nil
		w.visit()
		assert.False(t, w.has(v1alpha1.ConditionSpecAdjusted))
	})
	t.Run("nor is it told of a guest that has not booted", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithRunStrategy("Halted")).cloned(golden(1), cdiv1.Succeeded).created("Stopped", nil)
		w.VM.Spec.Users = []v1alpha1.User{anne}
		require.NotNil(t, w.visit().ApplyMachine)
		assert.False(t, w.has(v1alpha1.ConditionSpecAdjusted))
	})
	t.Run("when KubeVirt does", func(t *testing.T) {
		w := runningWith(t, apitest.VirtualMachine("ns", "vm"))
		w.reports("Running", map[string]any{"created": true, "ready": true, "runStrategy": "Always", "conditions": []any{
			map[string]any{"type": "RestartRequired", "status": "True", "message": "a non-live-updatable field was changed in the template spec"},
		}})
		w.visit()
		assert.True(t, w.has(v1alpha1.ConditionRestartRequired))
		assert.Contains(t, w.message(v1alpha1.ConditionRestartRequired), "a non-live-updatable field")
		status, _, _ := unstructured.NestedMap(w.Machine.Object, "status")
		status["created"], status["ready"] = false, false
		delete(status, "printableStatus")
		w.reports("Stopped", status).visit()
		assert.False(t, w.has(v1alpha1.ConditionRestartRequired), "nothing runs")
	})
	t.Run("that cannot be told", func(t *testing.T) {
		for want, change := range map[string]func(*world){
			"ignoreOnDeploy is true":                     func(w *world) { w.VM.Spec.IgnoreOnDeploy = true },
			"while the spec cannot be carried out":       func(w *world) { w.VM.Spec.Overlay = &runtime.RawExtension{Raw: []byte(`{"a":1}`)} },
			"no KubeVirt VirtualMachine that could be r": func(w *world) { w.Machine, w.KubeVirt = nil, false },
		} {
			w := runningWith(t, apitest.VirtualMachine("ns", "vm"))
			w.VM.Spec.Version = "2"
			change(w)
			w.visit()
			assert.False(t, w.has(v1alpha1.ConditionRestartRequired))
			assert.Contains(t, w.message(v1alpha1.ConditionRestartRequired), want)
		}
	})
}

// TestDecideWithoutASecret that is gone after the machine was made: all that
// rests on none of it goes on.
func TestDecideWithoutASecret(t *testing.T) {
	w := runningWith(t, apitest.VirtualMachine("ns", "vm"))
	w.Missing = "Secret ns/passwords does not exist: create it, or correct the spec"
	w.VM.Spec.Version = "2"
	w.visit()
	w.says(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.True(t, w.has(v1alpha1.ConditionRestartRequired))
	assert.Contains(t, w.message(v1alpha1.ConditionSpecAdjusted), "Secret ns/passwords does not exist")

	w.reports("Stopped", nil)
	secret := w.Secret
	require.NotNil(t, w.visit().ApplyMachine)
	assert.Same(t, secret, w.Secret)
	assert.False(t, w.has(v1alpha1.ConditionRestartRequired))

	w.VM.Spec.RunStrategy = "Halted"
	require.NotNil(t, w.visit().ApplyMachine)
}
