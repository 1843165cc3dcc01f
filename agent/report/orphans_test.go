package report

import (
	"fmt"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const gib = int64(1) << 30

func childMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "lab", Name: name,
		Labels:      map[string]string{v1alpha1.LabelImageUID: "gone", v1alpha1.LabelAttempt: "2"},
		Annotations: map[string]string{v1alpha1.AnnotationImageName: "ubuntu"},
	}
}

func ownerReference(kind string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{Kind: kind, Name: "owner", UID: "owner", Controller: ptr.To(true)}}
}

func storageRequest(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

func childDataVolume(name string) cdiv1.DataVolume {
	dv := cdiv1.DataVolume{ObjectMeta: childMeta(name)}
	dv.Spec.Storage = &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{Requests: storageRequest("2Gi")}}
	return dv
}

func childClaim(name string) corev1.PersistentVolumeClaim {
	claim := corev1.PersistentVolumeClaim{ObjectMeta: childMeta(name)}
	claim.Spec.Resources.Requests = storageRequest("2Gi")
	claim.Status.Capacity = storageRequest("3Gi")
	return claim
}

func childSnapshot(name, claim string) snapshotv1.VolumeSnapshot {
	snap := snapshotv1.VolumeSnapshot{ObjectMeta: childMeta(name)}
	snap.Spec.Source.PersistentVolumeClaimName = &claim
	snap.Status = &snapshotv1.VolumeSnapshotStatus{RestoreSize: ptr.To(resource.MustParse("4Gi"))}
	return snap
}

func TestFindOrphans(t *testing.T) {
	gone := v1alpha1.ImageKey{Namespace: "lab", Name: "ubuntu", UID: "gone"}
	for _, tt := range []struct {
		name        string
		change      func(*StorageSnapshot)
		want        []string // kind and bytes in GiB
		hasSlots    bool
		isSuspected bool
	}{
		{"all objects of an image", func(*StorageSnapshot) {}, []string{"DataVolume 0", "PersistentVolumeClaim 3", "VolumeSnapshot 0"}, false, false},
		{"the image exists", func(s *StorageSnapshot) { s.ExistingImages["gone"] = true }, nil, false, false},
		{"not confirmed live", func(s *StorageSnapshot) { s.GoneImages = nil }, nil, false, true},
		{"another image of that name is confirmed", func(s *StorageSnapshot) {
			s.GoneImages = map[v1alpha1.ImageKey]bool{{Namespace: "lab", Name: "ubuntu", UID: "other"}: true}
		}, nil, false, true},
		{"without the name of the image", func(s *StorageSnapshot) {
			s.GoneImages, s.Objects.DataVolumes, s.Objects.Snapshots = nil, nil, nil
			s.Objects.Claims[0].Annotations = nil
		}, []string{"PersistentVolumeClaim 3"}, false, false},
		{"the attempt has a slot", func(s *StorageSnapshot) {
			s.Slots = []v1alpha1.Slot{{Image: gone, Attempt: 2, DataVolume: "dv"}}
		}, nil, true, false},
		{"another attempt has a slot", func(s *StorageSnapshot) {
			s.Slots = []v1alpha1.Slot{{Image: gone, Attempt: 3, DataVolume: "dv-3"}}
		}, []string{"DataVolume 0", "PersistentVolumeClaim 3", "VolumeSnapshot 0"}, false, false},
		{"the DataVolume is being deleted", func(s *StorageSnapshot) {
			s.Objects.DataVolumes[0].DeletionTimestamp = &metav1.Time{}
		}, []string{"PersistentVolumeClaim 3", "VolumeSnapshot 0"}, false, false},
		{"the PVC is being deleted", func(s *StorageSnapshot) {
			s.Objects.Claims[0].DeletionTimestamp = &metav1.Time{}
		}, []string{"DataVolume 2", "VolumeSnapshot 4"}, false, false},
		{"the PVC is not bound", func(s *StorageSnapshot) {
			s.Objects.Claims[0].Status.Capacity = nil
		}, []string{"DataVolume 0", "PersistentVolumeClaim 2", "VolumeSnapshot 0"}, false, false},
		{"only the snapshot", func(s *StorageSnapshot) {
			s.Objects.DataVolumes, s.Objects.Claims = nil, nil
		}, []string{"VolumeSnapshot 4"}, false, false},
		{"the snapshot has no size yet", func(s *StorageSnapshot) {
			s.Objects.DataVolumes, s.Objects.Claims, s.Objects.Snapshots[0].Status = nil, nil, nil
		}, []string{"VolumeSnapshot 0"}, false, false},
		{"the PVC of a VirtualMachine", func(s *StorageSnapshot) {
			s.Objects.Claims[0].Labels[v1alpha1.LabelMachineUID] = "vm"
		}, []string{"DataVolume 2", "VolumeSnapshot 4"}, false, false},
		{"CDI's prime PVC", func(s *StorageSnapshot) {
			s.Objects = image.ObjectLists{Claims: s.Objects.Claims}
			s.Objects.Claims[0].OwnerReferences = ownerReference("PersistentVolumeClaim")
		}, nil, false, false},
		{"CDI's scratch space", func(s *StorageSnapshot) {
			s.Objects = image.ObjectLists{Claims: s.Objects.Claims}
			s.Objects.Claims[0].OwnerReferences = ownerReference("Pod")
		}, nil, false, false},
		{"an importer Pod", func(s *StorageSnapshot) {
			s.Objects = image.ObjectLists{Pods: []corev1.Pod{{ObjectMeta: childMeta("importer")}}}
		}, nil, false, false},
		{"without the UID of an image", func(s *StorageSnapshot) {
			s.Objects = image.ObjectLists{Claims: s.Objects.Claims}
			s.Objects.Claims[0].Labels[v1alpha1.LabelImageUID] = ""
		}, nil, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := StorageSnapshot{
				Objects: image.ObjectLists{
					DataVolumes: []cdiv1.DataVolume{childDataVolume("dv")},
					Claims:      []corev1.PersistentVolumeClaim{childClaim("dv")},
					Snapshots:   []snapshotv1.VolumeSnapshot{childSnapshot("snap", "dv")},
				},
				ExistingImages: map[types.UID]bool{"another": true},
				GoneImages:     map[v1alpha1.ImageKey]bool{gone: true},
			}
			s.Objects.Claims[0].OwnerReferences = ownerReference("DataVolume")
			tt.change(&s)
			got := FindOrphans(s)
			var found []string
			var bytes int64
			for _, o := range got.First {
				found = append(found, fmt.Sprint(o.Kind, " ", o.Bytes/gib))
				bytes += o.Bytes
				assert.Equal(t, types.UID("gone"), o.ImageUID)
				assert.Equal(t, "lab", o.Namespace)
			}
			assert.Equal(t, tt.want, found)
			assert.Equal(t, int32(len(tt.want)), got.Count)
			assert.Equal(t, bytes, got.Bytes)
			assert.Equal(t, tt.hasSlots, got.HasSlots)
			if tt.isSuspected {
				assert.Equal(t, []v1alpha1.ImageKey{gone}, got.Suspects)
			} else {
				assert.Empty(t, got.Suspects)
			}
		})
	}
}

// The root lists the first orphans and counts all.
func TestOrphanListIsBounded(t *testing.T) {
	const many = v1alpha1.MaxReportedOrphans + 8
	s := StorageSnapshot{GoneImages: map[v1alpha1.ImageKey]bool{{Namespace: "lab", Name: "ubuntu", UID: "gone"}: true, {Namespace: "lab", Name: "debian", UID: "long ago"}: true}}
	for n := range many {
		s.Objects.Claims = append(s.Objects.Claims, childClaim(fmt.Sprintf("dv-%02d", many-n)))
	}
	s.Objects.DataVolumes = []cdiv1.DataVolume{childDataVolume("without-claim")}
	got := FindOrphans(s)
	assert.Equal(t, int32(many+1), got.Count)
	assert.Equal(t, (many*3+2)*gib, got.Bytes)
	require.Len(t, got.First, v1alpha1.MaxReportedOrphans)
	assert.Equal(t, "without-claim", got.First[0].Name)
	assert.Equal(t, "dv-01", got.First[1].Name)
	assert.Equal(t, map[v1alpha1.ImageKey]bool{{Namespace: "lab", Name: "ubuntu", UID: "gone"}: true}, got.GoneImages, "of the other there is nothing left")

	root := BuildRoot(RootInput{Orphans: got})
	assert.Equal(t, got.First, root.Orphans)
	assert.Equal(t, got.Count, root.OrphanCount)
	assert.Equal(t, got.Bytes, root.OrphanBytes)
	assert.False(t, EqualRoots(root, BuildRoot(RootInput{})))
}
