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
	disksPath      = []string{"spec", "template", "spec", "domain", "devices", "disks"}
	interfacesPath = []string{"spec", "template", "spec", "domain", "devices", "interfaces"}
	volumesPath    = []string{"spec", "template", "spec", "volumes"}
	networksPath   = []string{"spec", "template", "spec", "networks"}
)

// newRunningWorld returns a world whose machine runs.
func newRunningWorld(t *testing.T, b *apitest.MachineBuilder) *world {
	return newWorld(t, b).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
}

func (w *world) getList(path []string) []any {
	list, _, err := unstructured.NestedSlice(w.KubeVirtVM.Object, path...)
	require.NoError(w.t, err)
	return list
}

func (w *world) setList(list []any, path []string) {
	require.NoError(w.t, unstructured.SetNestedSlice(w.KubeVirtVM.Object, list, path...))
}

func (w *world) listNames(path []string) (names []string) {
	for _, item := range w.getList(path) {
		names = append(names, item.(map[string]any)["name"].(string))
	}
	return names
}

func (w *world) setAnnotation(key, value string) {
	annotations := w.KubeVirtVM.GetAnnotations()
	annotations[key] = value
	w.KubeVirtVM.SetAnnotations(annotations)
}

func (w *world) conditionMessage(condition string) string {
	return meta.FindStatusCondition(w.VM.Status.Conditions, condition).Message
}

// hotplugDevices adds a disk, a memory dump and an interface, as virtctl does. The disk comes first.
func (w *world) hotplugDevices() {
	w.setList(append([]any{map[string]any{"name": "hot", "serial": "hot", "disk": map[string]any{"bus": "scsi"}}}, w.getList(disksPath)...), disksPath)
	w.setList(append(w.getList(volumesPath),
		map[string]any{"name": "hot", "persistentVolumeClaim": map[string]any{"claimName": "data", "hotpluggable": true}},
		map[string]any{"name": "dump", "memoryDump": map[string]any{"claimName": "dump", "hotpluggable": true}}), volumesPath)
	w.setList(append(w.getList(interfacesPath), map[string]any{"name": "late", "bridge": map[string]any{}}), interfacesPath)
	w.setList(append(w.getList(networksPath), map[string]any{"name": "late", "multus": map[string]any{"networkName": "late"}}), networksPath)
}

func TestForeignDevicesArePreserved(t *testing.T) {
	two := func() *apitest.MachineBuilder {
		return apitest.VirtualMachine("ns", "vm").WithInterfaces(v1alpha1.Interface{Network: "a"}, v1alpha1.Interface{Network: "b"})
	}
	t.Run("while the machine runs", func(t *testing.T) {
		w := newRunningWorld(t, two())
		w.hotplugDevices()
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
	})
	t.Run("when drift is reverted", func(t *testing.T) {
		w := newRunningWorld(t, two())
		w.hotplugDevices()
		disks := w.getList(disksPath)
		root := disks[1].(map[string]any)
		root["bootOrder"] = int64(2)
		w.setList(disks, disksPath)
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Equal(t, "11", w.lastDecision.ApplyKubeVirtVM.GetResourceVersion(), "it does not overwrite a newer addition")
		assert.Equal(t, []string{"hot", "root", "cloudinit"}, w.listNames(disksPath))
		assert.Equal(t, []string{"root", "cloudinit", "hot", "dump"}, w.listNames(volumesPath))
		assert.EqualValues(t, 1, w.getList(disksPath)[1].(map[string]any)["bootOrder"])
		assert.Equal(t, "hot", w.getList(disksPath)[0].(map[string]any)["serial"])
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
	})
	t.Run("when the spec loses an interface", func(t *testing.T) {
		w := newRunningWorld(t, two())
		w.hotplugDevices()
		w.VM.Spec.Interfaces = w.VM.Spec.Interfaces[:1]
		w.setKubeVirtStatus("Stopped", nil)
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Equal(t, []string{"net0", "late"}, w.listNames(interfacesPath))
		assert.Equal(t, []string{"net0", "late"}, w.listNames(networksPath))
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
	})
	t.Run("when the overlay loses a disk", func(t *testing.T) {
		w := newRunningWorld(t, two().WithOverlay(`{"template":{"spec":{"domain":{"devices":{"disks":[{"name":"data","disk":{"bus":"virtio"}}]}},"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]}}}`))
		w.hotplugDevices()
		require.Contains(t, w.listNames(disksPath), "data")
		w.VM.Spec.Overlay = nil
		w.setKubeVirtStatus("Stopped", nil)
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Equal(t, []string{"hot", "root", "cloudinit"}, w.listNames(disksPath))
		assert.Equal(t, []string{"root", "cloudinit", "hot", "dump"}, w.listNames(volumesPath))
	})
	t.Run("except for another order of the agent's items", func(t *testing.T) {
		w := newRunningWorld(t, two())
		nics := w.getList(interfacesPath)
		w.setList([]any{nics[1], nics[0]}, interfacesPath)
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Equal(t, []string{"net0", "net1"}, w.listNames(interfacesPath))
	})
}

// KubeVirt 1.8 replaces the root disk by a claim when it restores a snapshot.
func TestRestoredVolumeIsPreserved(t *testing.T) {
	restored := func(t *testing.T) *world {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.setList([]any{map[string]any{"name": "root", "persistentVolumeClaim": map[string]any{"claimName": "restore-1-root"}}, w.getList(volumesPath)[1]}, volumesPath)
		w.setKubeVirtStatus("Stopped", nil)
		return w
	}
	t.Run("with the annotation of a restore", func(t *testing.T) {
		w := restored(t)
		w.setAnnotation("restore.kubevirt.io/lastRestoreUID", "vmrestore-1")
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "PersistentVolumeClaim restore-1-root and is kept")
		w.VM.Spec.Version = "2"
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Contains(t, w.getList(volumesPath)[0], "persistentVolumeClaim")
		assert.NotContains(t, w.getList(volumesPath)[0], "dataVolume")
	})
	t.Run("without it the disk is reverted", func(t *testing.T) {
		w := restored(t)
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Contains(t, w.getList(volumesPath)[0], "dataVolume")
	})
}

func TestRecreatedMachineKeepsHaltedRunStrategy(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
	require.NoError(t, unstructured.SetNestedField(w.KubeVirtVM.Object, "Halted", "spec", "runStrategy"))
	w.setKubeVirtStatus("Stopped", nil).reconcile()
	require.NoError(t, unstructured.SetNestedField(w.KubeVirtVM.Object, "WaitAsReceiver", "spec", "runStrategy"))
	w.reconcile()
	assert.EqualValues(t, "Halted", w.VM.Status.RunStrategy, "spec.runStrategy accepts no other")
	w.KubeVirtVM = nil
	require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
	run, _, _ := unstructured.NestedString(w.KubeVirtVM.Object, "spec", "runStrategy")
	assert.Equal(t, "Halted", run)
}

func TestRestartRequiredIsReported(t *testing.T) {
	anne := v1alpha1.User{Name: "anne"}
	t.Run("not when another version renders the spec differently", func(t *testing.T) {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.setAnnotation(v1alpha1.AnnotationAppliedDigest, "an older agent's")
		w.reconcile()
		assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionRestartRequired), "applies at the next start")
		assert.Nil(t, w.lastDecision.ApplyKubeVirtVM)

		w.VM.Spec.Version = "2"
		w.reconcile()
		assert.True(t, w.hasCondition(v1alpha1.ConditionRestartRequired), "the author's change needs a restart")
		w.VM.Spec.Version = ""

		w.setKubeVirtStatus("Stopped", nil)
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
	})
	t.Run("not when a restart would not apply it", func(t *testing.T) {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.VM.Spec.Users = []v1alpha1.User{anne}
		w.reconcile()
		assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "users, interfaces or cloudInit have changed since the guest's first boot")
		w.VM.Spec.Users = nil
		w.reconcile()
		assert.False(t, w.hasCondition(v1alpha1.ConditionSpecAdjusted))
	})
	t.Run("not for a guest that has not booted", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithRunStrategy("Halted")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withKubeVirtVM("Stopped", nil)
		w.VM.Spec.Users = []v1alpha1.User{anne}
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.False(t, w.hasCondition(v1alpha1.ConditionSpecAdjusted))
	})
	t.Run("when KubeVirt requires it", func(t *testing.T) {
		w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
		w.setKubeVirtStatus("Running", map[string]any{"created": true, "ready": true, "runStrategy": "Always", "conditions": []any{
			map[string]any{"type": "RestartRequired", "status": "True", "message": "a non-live-updatable field was changed in the template spec"},
		}})
		w.reconcile()
		assert.True(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
		assert.Contains(t, w.conditionMessage(v1alpha1.ConditionRestartRequired), "a non-live-updatable field")
		status, _, _ := unstructured.NestedMap(w.KubeVirtVM.Object, "status")
		status["created"], status["ready"] = false, false
		delete(status, "printableStatus")
		w.setKubeVirtStatus("Stopped", status).reconcile()
		assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired), "no instance runs")
	})
	t.Run("unknown", func(t *testing.T) {
		for want, change := range map[string]func(*world){
			"ignoreOnDeploy is true":        func(w *world) { w.VM.Spec.IgnoreOnDeploy = true },
			"while the spec is invalid":     func(w *world) { w.VM.Spec.Overlay = &runtime.RawExtension{Raw: []byte(`{"a":1}`)} },
			"no KubeVirt VirtualMachine to": func(w *world) { w.KubeVirtVM, w.KubeVirtServed = nil, false },
		} {
			w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
			w.VM.Spec.Version = "2"
			change(w)
			w.reconcile()
			assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
			assert.Contains(t, w.conditionMessage(v1alpha1.ConditionRestartRequired), want)
		}
	})
}

// A Secret that is deleted after the machine was created blocks only the cloud-init data.
func TestMissingSecretDoesNotBlockExistingMachine(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm"))
	w.MissingSecret = "Secret ns/passwords does not exist: create it, or correct the spec"
	w.VM.Spec.Version = "2"
	w.reconcile()
	w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
	assert.True(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
	assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "Secret ns/passwords does not exist")

	w.setKubeVirtStatus("Stopped", nil)
	secret := w.cloudInitSecret
	require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
	assert.Same(t, secret, w.cloudInitSecret)
	assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired))

	w.VM.Spec.RunStrategy = "Halted"
	require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
}
