package kubevirt_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestBuildCloudInitSecret(t *testing.T) {
	vm := apitest.VirtualMachine("ns", "demo").WithUID("vm-uid").Obj()
	got := kubevirt.BuildCloudInitSecret(vm, cloudinit.Config{UserData: []byte("u"), NetworkData: []byte("n")})
	assert.Equal(t, "ns/demo-cloudinit", types.NamespacedName{Namespace: got.Namespace, Name: got.Name}.String())
	assert.Equal(t, map[string][]byte{"userdata": []byte("u"), "networkdata": []byte("n")}, got.Data)
	assert.Equal(t, map[string]string{v1alpha1.LabelMachineUID: "vm-uid"}, got.Labels)
	assert.Equal(t, vm.UID, got.OwnerReferences[0].UID)
	assert.NotContains(t, kubevirt.BuildCloudInitSecret(vm, cloudinit.Config{UserData: []byte("u")}).Data, "networkdata")
}
