package kubevirt_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func toYAML(t require.TestingT, object any) string {
	text, err := yaml.Marshal(object)
	require.NoError(t, err)
	return string(text)
}

func newPin(img *v1alpha1.VMDiskImage, claim, snapshot string) v1alpha1.PinnedImage {
	return v1alpha1.PinnedImage{
		ImageKey: v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID},
		Revision: "r1", Attempt: 3, PersistentVolumeClaim: claim, VolumeSnapshot: snapshot,
	}
}

func TestBuildRootDisk(t *testing.T) {
	vm := apitest.VirtualMachine("workspaces", "demo").WithUID("vm-uid").Obj()
	img := apitest.Image("farm/ubuntu").WithUID("image-uid").WithStorageClass("gp3").Obj()

	got := toYAML(t, kubevirt.BuildRootDisk(vm, img, newPin(img, "ubuntu-x-3", "ubuntu-x-3-1"), resource.MustParse("24Gi")))

	assert.Equal(t, `apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata:
  annotations:
    cdi.kubevirt.io/storage.deleteAfterCompletion: "false"
    pelotech.ot/cloned-from: image-uid/r1/3/ubuntu-x-3-1
    pelotech.ot/requested-storage: 24Gi/gp3
  labels:
    pelotech.ot/machine-uid: vm-uid
  name: demo-root
  namespace: workspaces
  ownerReferences:
  - apiVersion: pelotech.ot/v1alpha1
    controller: true
    kind: VirtualMachine
    name: demo
    uid: vm-uid
spec:
  contentType: kubevirt
  source:
    snapshot:
      name: ubuntu-x-3-1
      namespace: farm
  storage:
    resources:
      requests:
        storage: 24Gi
    storageClassName: gp3
status: {}
`, got)

	fromClaim := kubevirt.BuildRootDisk(vm, apitest.Image("farm/ubuntu").Obj(), newPin(img, "ubuntu-x-3", ""), resource.MustParse("1Gi"))
	assert.Equal(t, "image-uid/r1/3/ubuntu-x-3", fromClaim.Annotations[v1alpha1.AnnotationClonedFrom])
	assert.Nil(t, fromClaim.Spec.Source.Snapshot)
	assert.Equal(t, "farm/ubuntu-x-3", fromClaim.Spec.Source.PVC.Namespace+"/"+fromClaim.Spec.Source.PVC.Name)
	assert.Nil(t, fromClaim.Spec.Storage.StorageClassName, "the cluster's default")
}

func TestRootDiskName(t *testing.T) {
	names := []string{
		"demo", "demo.vm", "demo-vm", strings.Repeat("a", 48), strings.Repeat("a", 49), strings.Repeat("a", 63), strings.Repeat("a", 62) + "b",
		strings.Repeat("a", 34) + strings.Repeat("-", 10) + "aaaaaaa",
	}
	seen := map[string]string{}
	for _, name := range names {
		got := kubevirt.RootDiskName(apitest.VirtualMachine("ns", name).Obj())
		assert.Empty(t, validation.IsDNS1123Label(got), got)
		assert.LessOrEqual(t, len(got), 53)
		assert.Empty(t, seen[got], name)
		seen[got] = name
		assert.True(t, strings.HasSuffix(got, "-root"))
		assert.Equal(t, got, kubevirt.RootDiskName(apitest.VirtualMachine("ns", name).WithUID("recreated").Obj()))
	}
	assert.Equal(t, "demo-vm", seen["demo-vm-root"])
}

func TestRootDiskSize(t *testing.T) {
	for name, tt := range map[string]struct {
		requested    string
		img          *apitest.ImageBuilder
		want         string
		wantAdjusted string
	}{
		"not set":             {"", apitest.Image("farm/a").WithDiskSize("24Gi"), "24Gi", ""},
		"less than the image": {"18Gi", apitest.Image("farm/a").WithDiskSize("24Gi"), "24Gi", "resources.diskSize 18Gi is less than the size of image farm/a: the root disk has 24Gi"},
		"as the image":        {"24Gi", apitest.Image("farm/a").WithDiskSize("24Gi"), "24Gi", ""},
		"more than the image": {"1Ti", apitest.Image("farm/a").WithDiskSize("24Gi"), "1Ti", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, adjusted := kubevirt.RootDiskSize(apitest.VirtualMachine("ns", "vm").WithResources("1", "1Gi", tt.requested).Obj(), tt.img.Obj())
			assert.Equal(t, tt.want, got.String())
			assert.Equal(t, tt.wantAdjusted, adjusted)
		})
	}
	vm := apitest.VirtualMachine("ns", "vm").Obj()
	vm.Spec.Resources = nil
	got, _ := kubevirt.RootDiskSize(vm, apitest.Image("farm/a").Obj())
	assert.Equal(t, "1Gi", got.String())
}

func TestRootDiskStorageRequest(t *testing.T) {
	for name, tt := range map[string]struct{ source, size, image, restore, want string }{
		"snapshot, as large as the image":         {"snapshot", "24Gi", "24Gi", "25Gi", ""},
		"snapshot, larger than its restore size":  {"snapshot", "40Gi", "24Gi", "25Gi", "40Gi"},
		"snapshot, smaller than its restore size": {"snapshot", "25000Mi", "24Gi", "25Gi", "25Gi"},
		"snapshot of unknown restore size":        {"snapshot", "24Gi", "24Gi", "", "24Gi"},
		"claim":                                   {"", "24Gi", "24Gi", "25Gi", "24Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.Image("farm/a").WithDiskSize(tt.image).Obj()
			p := newPin(img, "claim", tt.source)
			if tt.restore != "" {
				q := resource.MustParse(tt.restore)
				p.RestoreSize = &q
			}
			got := kubevirt.BuildRootDisk(apitest.VirtualMachine("ns", "vm").Obj(), img, p, resource.MustParse(tt.size)).Spec.Storage.Resources.Requests
			if tt.want == "" {
				assert.Empty(t, got, "CDI takes the size of the source")
				return
			}
			assert.Equal(t, tt.want, got.Storage().String())
		})
	}
}
