package vm_test

import (
	"slices"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// childObject is an object of the machine.
type childObject struct {
	kind string
	metav1.Object
}

func (w *world) children() (all []childObject) {
	disks := []vm.DiskView{w.DiskView}
	for _, disk := range w.Disks {
		disks = append(disks, disk)
	}
	for _, disk := range disks {
		if disk.DataVolume != nil {
			all = append(all, childObject{"DataVolume", disk.DataVolume})
		}
		if disk.Claim != nil {
			all = append(all, childObject{"PersistentVolumeClaim", disk.Claim})
		}
	}
	if w.KubeVirtVM != nil {
		all = append(all, childObject{"VirtualMachine", w.KubeVirtVM})
	}
	return all
}

// requireAllOwned checks that the machine's objects are deleted with it.
func (w *world) requireAllOwned() {
	all := w.children()
	for _, o := range all {
		hasDataVolume := slices.ContainsFunc(all, func(dv childObject) bool { return dv.kind == "DataVolume" && dv.GetName() == o.GetName() })
		require.True(w.t, slices.ContainsFunc(o.GetOwnerReferences(), func(owner metav1.OwnerReference) bool {
			return owner.UID == w.VM.UID || (o.kind == "PersistentVolumeClaim" && hasDataVolume && owner.Kind == "DataVolume")
		}), "%s %s remains when the machine is deleted: %v", o.kind, o.GetName(), o.GetOwnerReferences())
	}
}

// changeDisk changes what there is of a data disk.
func (w *world) changeDisk(name string, change func(*vm.DiskView)) {
	disk := w.Disks[name]
	change(&disk)
	if w.Disks == nil {
		w.Disks = map[string]vm.DiskView{}
	}
	w.Disks[name] = disk
}

// checkedDisk is a disk before and after a decision.
type checkedDisk struct {
	vm.DiskView
	name          string
	before, after *v1alpha1.PinnedImage
	previous      *v1alpha1.DiskVolume
}

// checkedDisks lists the root disk and those that the status has before or after a decision.
func checkedDisks(v vm.View, d vm.Decision) []checkedDisk {
	all := []checkedDisk{{v.DiskView, "", v.VM.Status.Pinned, d.Status.Pinned, v.VM.Status.RootDisk}}
	find := func(disks []v1alpha1.DataDisk, name string) v1alpha1.DataDisk {
		i := slices.IndexFunc(disks, func(disk v1alpha1.DataDisk) bool { return disk.Name == name })
		if i < 0 {
			return v1alpha1.DataDisk{}
		}
		return disks[i]
	}
	for name, view := range v.Disks {
		before := find(v.VM.Status.Disks, name)
		all = append(all, checkedDisk{view, name, before.Pinned, find(d.Status.Disks, name).Pinned, before.Volume})
	}
	return all
}

func (w *world) checkPins(v vm.View, d vm.Decision) {
	for _, disk := range checkedDisks(v, d) {
		w.checkPin(v, d, disk)
	}
}

func (w *world) checkPin(v vm.View, d vm.Decision, disk checkedDisk) {
	before, after := disk.before, disk.after
	if equality.Semantic.DeepEqual(before, after) {
		return
	}
	require.True(w.t, d.StoreStatusFirst, "a pin is stored before anything else is done")
	owned := disk.DataVolume != nil && disk.DataVolume.Labels[v1alpha1.LabelMachineUID] == string(v.VM.UID)
	if !owned {
		require.True(w.t, v.LiveImages || after == nil || before == nil || after.AcquiredAt == nil, "an acquired image was read live")
		return
	}
	require.NotNil(w.t, after, "no pin is removed while there is a disk of it")
	require.Equal(w.t, disk.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom], kubevirt.ClonedFromValue(*after), "the pin is what is being cloned")
	if disk.DataVolume.Status.Phase == cdiv1.Succeeded && disk.DataVolume.DeletionTimestamp == nil && before != nil &&
		kubevirt.ClonedFromValue(*before) == disk.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom] {
		require.Equal(w.t, kubevirt.ClonedFromValue(*before), kubevirt.ClonedFromValue(*after), "a pin does not change once it is cloned")
	}
}

func (w *world) checkDisks(v vm.View, d vm.Decision) {
	disks := checkedDisks(v, d)
	for _, t := range d.DeleteDisks {
		i := slices.IndexFunc(disks, func(disk checkedDisk) bool { return disk.DataVolume != nil && disk.DataVolume.Name == t.Name })
		require.GreaterOrEqual(w.t, i, 0)
		dv := disks[i].DataVolume
		require.Equal(w.t, vm.DeleteTarget{Disk: disks[i].name, Name: dv.Name, UID: dv.UID, ResourceVersion: dv.ResourceVersion}, t)
		require.Equal(w.t, string(v.VM.UID), dv.Labels[v1alpha1.LabelMachineUID], "the disk is of this machine")
		require.NotEqual(w.t, cdiv1.Succeeded, dv.Status.Phase, "a complete disk is never deleted")
		previous := disks[i].previous
		if disks[i].name != "" {
			require.True(w.t, v.Live, "a cache does not decide to delete a data disk")
			require.NotNil(w.t, previous, "a data disk that the status does not know of is not deleted")
		}
		if dv.Status.Phase == cdiv1.Failed || disks[i].name != "" {
			require.False(w.t, previous != nil && previous.Ready, "the disk was complete")
			claim := disks[i].Claim
			lost := claim != nil && claim.Status.Phase == corev1.ClaimLost && claim.Labels[v1alpha1.LabelMachineUID] == string(v.VM.UID)
			require.False(w.t, lost && dv.Status.Phase == cdiv1.Failed, "a lost claim may come back")
		}
		require.Nil(w.t, dv.DeletionTimestamp)
	}
	for _, created := range d.CreateDisks {
		i := slices.IndexFunc(disks, func(disk checkedDisk) bool { return disk.name == created.Disk })
		require.GreaterOrEqual(w.t, i, 0)
		disk := disks[i]
		require.True(w.t, v.LiveImages)
		require.True(w.t, v.Live || created.Disk == "", "a cache does not decide to create a data disk")
		require.Nil(w.t, disk.DataVolume)
		require.False(w.t, created.Disk != "" && disk.previous != nil && disk.previous.Ready, "a data disk that was complete is never created again")
		if created.Disk != "" {
			require.NotNil(w.t, disk.previous, "a data disk is stored before it is requested")
		}
		if created.Spec.Source.Blank != nil {
			require.NotEmpty(w.t, created.Disk)
			require.Nil(w.t, disk.before)
			continue
		}
		require.True(w.t, disk.SourceExists)
		require.NotNil(w.t, disk.before)
		require.NotNil(w.t, disk.before.AcquiredAt, "the acquired pin was stored before")
		require.Equal(w.t, kubevirt.ClonedFromValue(*disk.before), created.Annotations[v1alpha1.AnnotationClonedFrom])
	}
}
