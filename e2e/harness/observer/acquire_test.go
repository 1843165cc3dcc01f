package observer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// fakeHistory builds a history for a test.
type fakeHistory struct {
	history  History
	existing map[types.UID]*unstructured.Unstructured
}

func newFakeHistory() *fakeHistory {
	return &fakeHistory{history: History{deletedByHand: map[types.UID]bool{}}, existing: map[types.UID]*unstructured.Unstructured{}}
}

func (s *fakeHistory) record(r resource, kind watch.EventType, o *unstructured.Unstructured) {
	s.history.events = append(s.history.events, event{resource: r, kind: kind, version: uint64(len(s.history.events) + 1), object: o.DeepCopy()})
}

// upsert creates an object whose name is its UID, or changes it.
func (s *fakeHistory) upsert(r resource, uid string, change func(map[string]any)) {
	o, kind := s.existing[types.UID(uid)], watch.Modified
	if o == nil {
		kind = watch.Added
		o = &unstructured.Unstructured{Object: map[string]any{}}
		o.SetNamespace("ns")
		o.SetName(uid)
		o.SetUID(types.UID(uid))
		s.existing[o.GetUID()] = o
	}
	if change != nil {
		change(o.Object)
	}
	s.record(r, kind, o)
}

func (s *fakeHistory) markDeleted(r resource, uid string) {
	s.upsert(r, uid, func(o map[string]any) { o["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z" })
}

func (s *fakeHistory) recordRemoval(r resource, uid string) {
	s.record(r, watch.Deleted, s.existing[types.UID(uid)])
	delete(s.existing, types.UID(uid))
}

func withLabel(label, value string) func(map[string]any) {
	return func(o map[string]any) { o["metadata"].(map[string]any)["labels"] = map[string]any{label: value} }
}

// addImage adds an image that serves a claim and a snapshot.
func (s *fakeHistory) addImage(uid, claim, snapshot string) {
	s.upsert(imageClaims, claim, withLabel(labelImage, uid))
	serving := map[string]any{"persistentVolumeClaim": claim}
	if snapshot != "" {
		s.upsert(snapshots, snapshot, withLabel(labelImage, uid))
		serving["volumeSnapshot"] = snapshot
	}
	s.upsert(images, uid, func(o map[string]any) { o["status"] = map[string]any{"serving": serving} })
}

func (s *fakeHistory) setImageRef(machine, image string) {
	s.upsert(machines, machine, func(o map[string]any) {
		o["spec"] = map[string]any{"vmDiskImageRef": map[string]any{"name": image}}
	})
}

func (s *fakeHistory) setPin(machine, image, claim, snapshot string, acquired bool) {
	p := map[string]any{
		"namespace": "ns", "name": image, "uid": image, "revision": "r", "attempt": int64(1), "persistentVolumeClaim": claim,
	}
	if snapshot != "" {
		p["volumeSnapshot"] = snapshot
	}
	if acquired {
		p["acquiredAt"] = "2026-01-01T00:00:00Z"
	}
	s.upsert(machines, machine, func(o map[string]any) { o["status"] = map[string]any{"pinned": p} })
}

// addDataDiskPin has a machine acquire an image for disk data, too.
func (s *fakeHistory) addDataDiskPin(machine, image, claim string) {
	s.upsert(machines, machine, func(o map[string]any) {
		o["spec"].(map[string]any)["disks"] = []any{map[string]any{"name": "data", "image": map[string]any{"name": image}}}
		o["status"].(map[string]any)["disks"] = []any{map[string]any{"name": "data", "pinned": map[string]any{
			"namespace": "ns", "name": image, "uid": image, "revision": "r", "attempt": int64(1), "persistentVolumeClaim": claim, "acquiredAt": "2026-01-01T00:00:00Z",
		}}}
	})
}

// addDataDisk adds disk data of a machine.
func (s *fakeHistory) addDataDisk(uid, machine, says string, source map[string]any) {
	s.upsert(disks, uid, func(o map[string]any) {
		o["metadata"].(map[string]any)["labels"] = map[string]any{labelMachine: machine, labelDisk: "data"}
		o["metadata"].(map[string]any)["annotations"] = map[string]any{annotationClonedFrom: says}
		o["spec"] = map[string]any{"source": source}
	})
}

func (s *fakeHistory) addDisk(uid, machine, says string, source map[string]any) {
	s.upsert(disks, uid, func(o map[string]any) {
		withLabel(labelMachine, machine)(o)
		o["metadata"].(map[string]any)["annotations"] = map[string]any{annotationClonedFrom: says}
		o["spec"] = map[string]any{"source": source}
	})
}

func cloneSource(kind, name string) map[string]any {
	return map[string]any{kind: map[string]any{"namespace": "ns", "name": name}}
}

func (s *fakeHistory) completeDisk(disk string) {
	s.upsert(disks, disk, func(o map[string]any) { o["status"] = map[string]any{"phase": "Succeeded"} })
}

// addRunningMachine adds a machine with a complete root disk.
func (s *fakeHistory) addRunningMachine(machine, image, claim, snapshot string) {
	s.setImageRef(machine, image)
	s.setPin(machine, image, claim, snapshot, false)
	s.setPin(machine, image, claim, snapshot, true)
	source, name := cloneSource("snapshot", snapshot), snapshot
	if snapshot == "" {
		source, name = cloneSource("pvc", claim), claim
	}
	s.addDisk(machine+"-root", machine, image+"/r/1/"+name, source)
	s.completeDisk(machine + "-root")
}

func (s *fakeHistory) deleteObject(r resource, uid string) {
	s.markDeleted(r, uid)
	s.recordRemoval(r, uid)
}

func TestAcquireViolations(t *testing.T) {
	for name, tt := range map[string]struct {
		happens func(*fakeHistory)
		want    string // empty: nothing is wrong
	}{
		"all goes in order": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.markDeleted(images, "img")
			s.deleteObject(machines, "vm")
			s.deleteObject(disks, "vm-root")
			s.deleteObject(snapshots, "snap")
			s.deleteObject(imageClaims, "claim")
			s.recordRemoval(images, "img")
		}, ""},
		"a machine that has only pinned is told better": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.setPin("vm", "img", "claim", "snap", false)
			s.deleteObject(snapshots, "snap")
		}, ""},
		"an acquired snapshot is deleted": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.markDeleted(snapshots, "snap")
		}, "volumesnapshots ns/snap is deleted, which machine ns/vm has acquired"},
		"an acquired snapshot goes without a mark": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.recordRemoval(snapshots, "snap")
		}, "volumesnapshots ns/snap is deleted, which machine ns/vm has acquired"},
		"an acquired snapshot is deleted by hand": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.history.deletedByHand["snap"] = true
			s.deleteObject(snapshots, "snap")
		}, ""},
		"an acquired claim is deleted": {func(s *fakeHistory) {
			s.addImage("other", "claim2", "")
			s.addRunningMachine("vm", "other", "claim2", "")
			s.deleteObject(imageClaims, "claim2")
		}, "persistentvolumeclaims ns/claim2 is deleted, which machine ns/vm has acquired"},
		"the claim behind an acquired snapshot is deleted": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.deleteObject(imageClaims, "claim")
		}, ""},
		"a claim goes with a DataVolume that was deleted by hand": {func(s *fakeHistory) {
			s.addImage("other", "claim2", "")
			s.upsert(imageClaims, "claim2", func(o map[string]any) {
				o["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"uid": "dv"}}
			})
			s.addRunningMachine("vm", "other", "claim2", "")
			s.history.deletedByHand["dv"] = true
			s.deleteObject(imageClaims, "claim2")
		}, ""},
		"an acquired image is gone": {func(s *fakeHistory) {
			s.setImageRef("vm", "elsewhere")
			s.setPin("vm", "img", "claim", "snap", true)
			s.markDeleted(images, "img")
			s.recordRemoval(images, "img")
		}, "image ns/img is gone, which machine ns/vm has acquired"},
		"an image is gone that a machine named": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.markDeleted(images, "img")
			s.recordRemoval(images, "img")
		}, "image ns/img is gone, which ns/vm named"},
		"an image is gone that was forced by hand": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.markDeleted(images, "img")
			s.history.deletedByHand["img"] = true
			s.recordRemoval(images, "img")
		}, ""},
		"an image is torn down that a machine named": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.markDeleted(images, "img")
			s.upsert(images, "img", func(o map[string]any) { delete(o, "status") })
			s.markDeleted(imageClaims, "claim")
		}, "persistentvolumeclaims ns/claim is deleted, which an image served that is to go and was named by ns/vm"},
		"what an image that is to go served before is removed": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.markDeleted(images, "img")
			s.addImage("img", "claim2", "snap2")
			s.deleteObject(snapshots, "snap")
			s.deleteObject(imageClaims, "claim")
		}, ""},
		"an image is gone that a later machine names": {func(s *fakeHistory) {
			s.markDeleted(images, "img")
			s.setImageRef("vm", "img")
			s.recordRemoval(images, "img")
		}, ""},
		"an image is gone that a machine named which was made again": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.markDeleted(images, "img")
			s.recordRemoval(machines, "vm")
			s.setImageRef("vm2", "img")
			s.recordRemoval(images, "img")
		}, ""},
		"an image is gone that a machine named which names another now": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.markDeleted(images, "img")
			s.setImageRef("vm", "elsewhere")
			s.recordRemoval(images, "img")
		}, ""},
		"an image that is gone is acquired": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.setPin("vm", "img", "claim", "snap", false)
			s.recordRemoval(images, "img")
			s.setPin("vm", "img", "claim", "snap", true)
		}, "machine ns/vm has acquired image img, which is not there"},
		"a snapshot that is going is acquired": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.setPin("vm", "img", "claim", "snap", false)
			s.markDeleted(snapshots, "snap")
			s.setPin("vm", "img", "claim", "snap", true)
		}, "machine ns/vm has acquired volumesnapshots ns/snap, which is not there"},
		"a snapshot is acquired that went by hand": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.history.deletedByHand["snap"] = true
			s.markDeleted(snapshots, "snap")
			s.setPin("vm", "img", "claim", "snap", true)
		}, ""},
		"a disk is cloned before anything is acquired": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.setPin("vm", "img", "claim", "snap", false)
			s.addDisk("vm-root", "vm", "img/r/1/snap", cloneSource("snapshot", "snap"))
		}, "its machine has acquired nothing"},
		"a disk is cloned from another revision": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.setPin("vm", "img", "claim", "snap", true)
			s.addDisk("vm-root", "vm", "img/q/1/snap", cloneSource("snapshot", "snap"))
		}, "is cloned from img/q/1/snap, and its machine has acquired img/r/1/snap"},
		"a disk is cloned from something else than it says": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.setPin("vm", "img", "claim", "snap", true)
			s.addDisk("vm-root", "vm", "img/r/1/snap", cloneSource("pvc", "claim"))
		}, "is cloned from persistentvolumeclaims ns/claim, and its machine has acquired volumesnapshots ns/snap"},
		"a second disk": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.addDisk("vm-root2", "vm", "img/r/1/snap", cloneSource("snapshot", "snap"))
		}, "root disk ns/vm-root2 is made, while there is ns/vm-root of the same machine"},
		"a disk that is made again": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.history.deletedByHand["vm-root"] = true
			s.deleteObject(disks, "vm-root")
			s.addDisk("vm-root2", "vm", "img/r/1/snap", cloneSource("snapshot", "snap"))
		}, ""},
		"a complete disk is deleted": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.upsert(disks, "vm-root", func(o map[string]any) { o["status"] = map[string]any{"phase": "Failed"} })
			s.markDeleted(disks, "vm-root")
		}, "datavolumes ns/vm-root is deleted, a complete root disk, while machine ns/vm is there"},
		"the claim of a complete disk is deleted": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.upsert(diskClaims, "vm-claim", func(o map[string]any) {
				withLabel(labelMachine, "vm")(o)
				o["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"uid": "vm-root"}}
			})
			s.recordRemoval(diskClaims, "vm-claim")
		}, "persistentvolumeclaims ns/vm-claim is deleted, a complete root disk, while machine ns/vm is there"},
		"a data disk in order": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.addImage("data", "claim2", "")
			s.addDataDiskPin("vm", "data", "claim2")
			s.addDataDisk("vm-disk", "vm", "data/r/1/claim2", cloneSource("pvc", "claim2"))
		}, ""},
		"a data disk of the root disk's source": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.addImage("data", "claim2", "")
			s.addDataDiskPin("vm", "data", "claim2")
			s.addDataDisk("vm-disk", "vm", "img/r/1/snap", cloneSource("snapshot", "snap"))
		}, "is cloned from img/r/1/snap, and its machine has acquired data/r/1/claim2"},
		"a blank data disk": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.addDataDisk("vm-disk", "vm", "", map[string]any{"blank": map[string]any{}})
		}, ""},
		"the acquired claim of a data disk is deleted": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.addImage("data", "claim2", "")
			s.addDataDiskPin("vm", "data", "claim2")
			s.deleteObject(imageClaims, "claim2")
		}, "persistentvolumeclaims ns/claim2 is deleted, which machine ns/vm has acquired"},
		"an image is gone that a data disk named": {func(s *fakeHistory) {
			s.addRunningMachine("vm", "img", "claim", "snap")
			s.addImage("data", "claim2", "")
			s.upsert(machines, "vm", func(o map[string]any) {
				o["spec"].(map[string]any)["disks"] = []any{map[string]any{"name": "data", "image": map[string]any{"name": "data"}}}
			})
			s.markDeleted(images, "data")
			s.recordRemoval(images, "data")
		}, "image ns/data is gone, which ns/vm named"},
		"an incomplete disk is deleted": {func(s *fakeHistory) {
			s.setImageRef("vm", "img")
			s.setPin("vm", "img", "claim", "snap", true)
			s.addDisk("vm-root", "vm", "img/r/1/snap", cloneSource("snapshot", "snap"))
			s.deleteObject(disks, "vm-root")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeHistory()
			s.addImage("img", "claim", "snap")
			tt.happens(s)
			got := s.history.AcquireViolations()
			if tt.want == "" {
				assert.Empty(t, got)
				return
			}
			if assert.NotEmpty(t, got) {
				assert.Contains(t, strings.Join(got, "\n"), tt.want)
			}
		})
	}
}

func TestStrayDisks(t *testing.T) {
	s := newFakeHistory()
	s.addImage("img", "claim", "snap")
	s.addRunningMachine("vm", "img", "claim", "snap")
	s.upsert(diskClaims, "vm-claim", withLabel(labelMachine, "vm"))
	assert.Empty(t, s.history.StrayDisks())
	s.recordRemoval(machines, "vm")
	assert.Equal(t, []string{
		"datavolumes ns/vm-root of machine vm, which is gone", "persistentvolumeclaims ns/vm-claim of machine vm, which is gone",
	}, s.history.StrayDisks())
	s.recordRemoval(disks, "vm-root")
	s.recordRemoval(diskClaims, "vm-claim")
	assert.Empty(t, s.history.StrayDisks())
}
