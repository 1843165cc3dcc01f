package kubevirt_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func mustBuild(t require.TestingT, vm *v1alpha1.VirtualMachine) *unstructured.Unstructured {
	cfg, err := cloudinit.Render(vm, cloudinit.Inputs{})
	require.NoError(t, err)
	u, err := kubevirt.BuildVirtualMachine(vm, cfg)
	require.NoError(t, err)
	return u
}

func fieldAt(t *testing.T, u *unstructured.Unstructured, path string) any {
	value, _, err := unstructured.NestedFieldNoCopy(u.Object, strings.Split(path, ".")...)
	require.NoError(t, err)
	return value
}

func TestBuildVirtualMachineOfProposal(t *testing.T) {
	vm := apitest.VirtualMachine("workspaces", "demo-workspace-1").WithUID("vm-uid").WithHostname("demo-vm").
		WithResources("2", "2Gi", "18Gi").
		WithUsers(v1alpha1.User{Name: "demo user", PlainTextPasswd: "demo-pwd", Sudo: "ALL=(ALL) NOPASSWD:ALL", Groups: "sudo"}).
		WithInterfaces(
			v1alpha1.Interface{Network: "control-net", IPAddress: "10.10.0.161/24", MACAddress: "02:00:00:00:00:AA"},
			v1alpha1.Interface{Network: "farm/bridge.inet", IPAddress: "4.29.163.6/28", MACAddress: "02:00:00:00:00:bb"},
		).Obj()
	vm.Spec.BaseVM, vm.Spec.BaseVMVersion, vm.Spec.Version = "ubuntu_2004_lts_en-us_x64", "2.1.2", "2.1.0"

	got := mustBuild(t, vm)
	// The first digest may change with a dependency or the rendering: running machines take
	// that up at their next start. A change of another one would require a restart of every
	// running machine.
	assert.Equal(t, `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  annotations:
    pelotech.ot/applied: 6bf100faeff1e3ad6dc13f23756d1dae
    pelotech.ot/applied-guest: 0f390c613b3c33a15faac2246f4f6f3b
    pelotech.ot/applied-spec: c5f9ebf4ad665b8d4151d95d4bf3084d
  labels:
    pelotech.ot/base-vm: ubuntu_2004_lts_en-us_x64
    pelotech.ot/base-vm-version: 2.1.2
    pelotech.ot/machine-uid: vm-uid
    pelotech.ot/version: 2.1.0
  name: demo-workspace-1
  namespace: workspaces
  ownerReferences:
  - apiVersion: pelotech.ot/v1alpha1
    controller: true
    kind: VirtualMachine
    name: demo-workspace-1
    uid: vm-uid
spec:
  template:
    metadata:
      labels:
        pelotech.ot/base-vm: ubuntu_2004_lts_en-us_x64
        pelotech.ot/base-vm-version: 2.1.2
        pelotech.ot/machine-uid: vm-uid
        pelotech.ot/version: 2.1.0
    spec:
      domain:
        cpu:
          cores: 2
        devices:
          disks:
          - bootOrder: 1
            disk:
              bus: virtio
            name: root
          - disk:
              bus: virtio
            name: cloudinit
          interfaces:
          - bridge: {}
            macAddress: 02:00:00:00:00:aa
            name: net0
          - bridge: {}
            macAddress: 02:00:00:00:00:bb
            name: net1
        memory:
          guest: 2Gi
      hostname: demo-vm
      networks:
      - multus:
          networkName: control-net
        name: net0
      - multus:
          networkName: farm/bridge.inet
        name: net1
      volumes:
      - dataVolume:
          name: demo-workspace-1-root
        name: root
      - cloudInitNoCloud:
          networkDataSecretRef:
            name: demo-workspace-1-cloudinit
          secretRef:
            name: demo-workspace-1-cloudinit
        name: cloudinit
`, toYAML(t, got))
}

func TestPodNetworkIsDefault(t *testing.T) {
	u := mustBuild(t, apitest.VirtualMachine("ns", "vm").Obj())
	assert.Equal(t, []any{map[string]any{"name": "default", "masquerade": map[string]any{}, "macAddress": "02:c6:04:0e:a6:22"}}, fieldAt(t, u, "spec.template.spec.domain.devices.interfaces"))
	assert.Equal(t, []any{map[string]any{"name": "default", "pod": map[string]any{}}}, fieldAt(t, u, "spec.template.spec.networks"))
	assert.NotContains(t, toYAML(t, u), "networkDataSecretRef")
}

// The digests of version 0.2, which has no address there: the first tells an upgraded agent that
// its rendering has changed, the second that the author's spec has not.
func TestDigestsOf02(t *testing.T) {
	vm := apitest.VirtualMachine("ns", "vm").Obj()
	cfg, err := cloudinit.Render(vm, cloudinit.Inputs{})
	require.NoError(t, err)
	current := mustBuild(t, vm).GetAnnotations()
	cfg.MACs = nil
	u, err := kubevirt.BuildVirtualMachine(vm, cfg)
	require.NoError(t, err)
	assert.Equal(t, "2cf652c605dced069d9c90f86a398616", u.GetAnnotations()[v1alpha1.AnnotationAppliedDigest])
	assert.NotEqual(t, current[v1alpha1.AnnotationAppliedDigest], u.GetAnnotations()[v1alpha1.AnnotationAppliedDigest])
	for _, annotations := range []map[string]string{current, u.GetAnnotations()} {
		assert.Equal(t, "a4e6975467d4e0dac956d3cce4bada2e", annotations[v1alpha1.AnnotationAppliedSpec])
		assert.Equal(t, "28424548819208f2e4ad48e6cfec0753", annotations[v1alpha1.AnnotationAppliedGuest])
	}
}

func TestRunStrategyOwnedOnlyWhenSet(t *testing.T) {
	assert.NotContains(t, fieldAt(t, mustBuild(t, apitest.VirtualMachine("ns", "vm").Obj()), "spec"), "runStrategy", "virtctl owns it unless it is set")
	assert.Equal(t, "Halted", fieldAt(t, mustBuild(t, apitest.VirtualMachine("ns", "vm").WithRunStrategy("Halted").Obj()), "spec.runStrategy"))
}

func TestInstancetypeAndPreference(t *testing.T) {
	vm := apitest.VirtualMachine("ns", "vm").Obj()
	vm.Spec.Resources = nil
	vm.Spec.Instancetype = &v1alpha1.Matcher{Name: "u1.small"}
	vm.Spec.Preference = &v1alpha1.Matcher{Name: "ubuntu", Kind: "VirtualMachinePreference"}

	u := mustBuild(t, vm)

	assert.Equal(t, map[string]any{"name": "u1.small"}, fieldAt(t, u, "spec.instancetype"))
	assert.Equal(t, map[string]any{"name": "ubuntu", "kind": "VirtualMachinePreference"}, fieldAt(t, u, "spec.preference"))
	assert.NotContains(t, fieldAt(t, u, "spec.template.spec.domain"), "cpu", "KubeVirt refuses both")
	assert.NotContains(t, fieldAt(t, u, "spec.template.spec.domain"), "memory", "KubeVirt refuses both")
	assert.NotContains(t, toYAML(t, u), "bus:", "KubeVirt takes the bus of the preference")

	vm.Spec.Instancetype = nil
	vm.Spec.Resources = apitest.VirtualMachine("ns", "vm").WithResources("", "1Gi", "").Obj().Spec.Resources
	assert.Equal(t, int64(1), fieldAt(t, mustBuild(t, vm), "spec.template.spec.domain.cpu.cores"))
}

func TestAppliedDigestCoversTemplate(t *testing.T) {
	base := func() *apitest.MachineBuilder { return apitest.VirtualMachine("ns", "vm") }
	withVersion := base().Obj()
	withVersion.Spec.Version = "2"
	seen := map[string]string{}
	for name, vm := range map[string]*v1alpha1.VirtualMachine{
		"base":    base().Obj(),
		"memory":  base().WithResources("1", "2Gi", "").Obj(),
		"overlay": base().WithOverlay(`{"template":{"spec":{"nodeSelector":{"a":"b"}}}}`).Obj(),
		"label":   withVersion,
	} {
		d := mustBuild(t, vm).GetAnnotations()[v1alpha1.AnnotationAppliedDigest]
		assert.Empty(t, seen[d], "%s and %s", name, seen[d])
		seen[d] = name
	}
	assert.Equal(t, mustBuild(t, base().WithRunStrategy("Always").Obj()).GetAnnotations(), mustBuild(t, base().WithRunStrategy("Halted").Obj()).GetAnnotations(),
		"the run strategy can change while an instance runs")
}
