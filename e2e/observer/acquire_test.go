package observer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// tale makes up a history.
type tale struct {
	h     History
	there map[types.UID]*unstructured.Unstructured
}

func newTale() *tale {
	return &tale{h: History{byHand: map[types.UID]bool{}}, there: map[types.UID]*unstructured.Unstructured{}}
}

func (s *tale) happens(r resource, kind watch.EventType, o *unstructured.Unstructured) {
	s.h.events = append(s.h.events, event{resource: r, kind: kind, version: uint64(len(s.h.events) + 1), object: o.DeepCopy()})
}

// set creates an object of a UID, its name as well, or changes fields of it.
func (s *tale) set(r resource, uid string, change func(map[string]any)) {
	o, kind := s.there[types.UID(uid)], watch.Modified
	if o == nil {
		kind = watch.Added
		o = &unstructured.Unstructured{Object: map[string]any{}}
		o.SetNamespace("ns")
		o.SetName(uid)
		o.SetUID(types.UID(uid))
		s.there[o.GetUID()] = o
	}
	if change != nil {
		change(o.Object)
	}
	s.happens(r, kind, o)
}

func (s *tale) marked(r resource, uid string) {
	s.set(r, uid, func(o map[string]any) { o["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z" })
}

func (s *tale) gone(r resource, uid string) {
	s.happens(r, watch.Deleted, s.there[types.UID(uid)])
	delete(s.there, types.UID(uid))
}

func labelled(label, value string) func(map[string]any) {
	return func(o map[string]any) { o["metadata"].(map[string]any)["labels"] = map[string]any{label: value} }
}

// image is there with a claim and a snapshot, which it serves.
func (s *tale) image(uid, claim, snapshot string) {
	s.set(imageClaims, claim, labelled(labelImage, uid))
	serving := map[string]any{"persistentVolumeClaim": claim}
	if snapshot != "" {
		s.set(snapshots, snapshot, labelled(labelImage, uid))
		serving["volumeSnapshot"] = snapshot
	}
	s.set(images, uid, func(o map[string]any) { o["status"] = map[string]any{"serving": serving} })
}

func (s *tale) names(machine, image string) {
	s.set(machines, machine, func(o map[string]any) {
		o["spec"] = map[string]any{"vmDiskImageRef": map[string]any{"name": image}}
	})
}

func (s *tale) pins(machine, image, claim, snapshot string, acquired bool) {
	p := map[string]any{
		"namespace": "ns", "name": image, "uid": image, "revision": "r", "attempt": int64(1), "persistentVolumeClaim": claim,
	}
	if snapshot != "" {
		p["volumeSnapshot"] = snapshot
	}
	if acquired {
		p["acquiredAt"] = "2026-01-01T00:00:00Z"
	}
	s.set(machines, machine, func(o map[string]any) { o["status"] = map[string]any{"pinned": p} })
}

func (s *tale) disk(uid, machine, says string, source map[string]any) {
	s.set(disks, uid, func(o map[string]any) {
		labelled(labelMachine, machine)(o)
		o["metadata"].(map[string]any)["annotations"] = map[string]any{clonedFrom: says}
		o["spec"] = map[string]any{"source": source}
	})
}

func from(kind, name string) map[string]any {
	return map[string]any{kind: map[string]any{"namespace": "ns", "name": name}}
}

func (s *tale) succeeds(disk string) {
	s.set(disks, disk, func(o map[string]any) { o["status"] = map[string]any{"phase": "Succeeded"} })
}

// runs is a machine whose disk is complete.
func (s *tale) runs(machine, image, claim, snapshot string) {
	s.names(machine, image)
	s.pins(machine, image, claim, snapshot, false)
	s.pins(machine, image, claim, snapshot, true)
	source, name := from("snapshot", snapshot), snapshot
	if snapshot == "" {
		source, name = from("pvc", claim), claim
	}
	s.disk(machine+"-root", machine, image+"/r/1/"+name, source)
	s.succeeds(machine + "-root")
}

func (s *tale) removed(r resource, uid string) {
	s.marked(r, uid)
	s.gone(r, uid)
}

func TestTakenAway(t *testing.T) {
	for name, tt := range map[string]struct {
		happens func(*tale)
		want    string // empty: nothing is wrong
	}{
		"all goes in order": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.marked(images, "img")
			s.removed(machines, "vm")
			s.removed(disks, "vm-root")
			s.removed(snapshots, "snap")
			s.removed(imageClaims, "claim")
			s.gone(images, "img")
		}, ""},
		"a machine that has only pinned is told better": {func(s *tale) {
			s.names("vm", "img")
			s.pins("vm", "img", "claim", "snap", false)
			s.removed(snapshots, "snap")
		}, ""},
		"an acquired snapshot is deleted": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.marked(snapshots, "snap")
		}, "volumesnapshots ns/snap is deleted, which machine ns/vm has acquired"},
		"an acquired snapshot goes without a mark": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.gone(snapshots, "snap")
		}, "volumesnapshots ns/snap is deleted, which machine ns/vm has acquired"},
		"an acquired snapshot is deleted by hand": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.h.byHand["snap"] = true
			s.removed(snapshots, "snap")
		}, ""},
		"an acquired claim is deleted": {func(s *tale) {
			s.image("other", "claim2", "")
			s.runs("vm", "other", "claim2", "")
			s.removed(imageClaims, "claim2")
		}, "persistentvolumeclaims ns/claim2 is deleted, which machine ns/vm has acquired"},
		"the claim behind an acquired snapshot is deleted": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.removed(imageClaims, "claim")
		}, ""},
		"a claim goes with a DataVolume that was deleted by hand": {func(s *tale) {
			s.image("other", "claim2", "")
			s.set(imageClaims, "claim2", func(o map[string]any) {
				o["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"uid": "dv"}}
			})
			s.runs("vm", "other", "claim2", "")
			s.h.byHand["dv"] = true
			s.removed(imageClaims, "claim2")
		}, ""},
		"an acquired image is gone": {func(s *tale) {
			s.names("vm", "elsewhere")
			s.pins("vm", "img", "claim", "snap", true)
			s.marked(images, "img")
			s.gone(images, "img")
		}, "image ns/img is gone, which machine ns/vm has acquired"},
		"an image is gone that a machine named": {func(s *tale) {
			s.names("vm", "img")
			s.marked(images, "img")
			s.gone(images, "img")
		}, "image ns/img is gone, which ns/vm named"},
		"an image is gone that was forced by hand": {func(s *tale) {
			s.names("vm", "img")
			s.marked(images, "img")
			s.h.byHand["img"] = true
			s.gone(images, "img")
		}, ""},
		"an image is torn down that a machine named": {func(s *tale) {
			s.names("vm", "img")
			s.marked(images, "img")
			s.set(images, "img", func(o map[string]any) { delete(o, "status") })
			s.marked(imageClaims, "claim")
		}, "persistentvolumeclaims ns/claim is deleted, which an image served that is to go and was named by ns/vm"},
		"what an image that is to go served before is removed": {func(s *tale) {
			s.names("vm", "img")
			s.marked(images, "img")
			s.image("img", "claim2", "snap2")
			s.removed(snapshots, "snap")
			s.removed(imageClaims, "claim")
		}, ""},
		"an image is gone that a later machine names": {func(s *tale) {
			s.marked(images, "img")
			s.names("vm", "img")
			s.gone(images, "img")
		}, ""},
		"an image is gone that a machine named which was made again": {func(s *tale) {
			s.names("vm", "img")
			s.marked(images, "img")
			s.gone(machines, "vm")
			s.names("vm2", "img")
			s.gone(images, "img")
		}, ""},
		"an image is gone that a machine named which names another now": {func(s *tale) {
			s.names("vm", "img")
			s.marked(images, "img")
			s.names("vm", "elsewhere")
			s.gone(images, "img")
		}, ""},
		"an image that is gone is acquired": {func(s *tale) {
			s.names("vm", "img")
			s.pins("vm", "img", "claim", "snap", false)
			s.gone(images, "img")
			s.pins("vm", "img", "claim", "snap", true)
		}, "machine ns/vm has acquired image img, which is not there"},
		"a snapshot that is going is acquired": {func(s *tale) {
			s.names("vm", "img")
			s.pins("vm", "img", "claim", "snap", false)
			s.marked(snapshots, "snap")
			s.pins("vm", "img", "claim", "snap", true)
		}, "machine ns/vm has acquired volumesnapshots ns/snap, which is not there"},
		"a snapshot is acquired that went by hand": {func(s *tale) {
			s.names("vm", "img")
			s.h.byHand["snap"] = true
			s.marked(snapshots, "snap")
			s.pins("vm", "img", "claim", "snap", true)
		}, ""},
		"a disk is cloned before anything is acquired": {func(s *tale) {
			s.names("vm", "img")
			s.pins("vm", "img", "claim", "snap", false)
			s.disk("vm-root", "vm", "img/r/1/snap", from("snapshot", "snap"))
		}, "its machine has acquired nothing"},
		"a disk is cloned from another revision": {func(s *tale) {
			s.names("vm", "img")
			s.pins("vm", "img", "claim", "snap", true)
			s.disk("vm-root", "vm", "img/q/1/snap", from("snapshot", "snap"))
		}, "is cloned from img/q/1/snap, and its machine has acquired img/r/1/snap"},
		"a disk is cloned from something else than it says": {func(s *tale) {
			s.names("vm", "img")
			s.pins("vm", "img", "claim", "snap", true)
			s.disk("vm-root", "vm", "img/r/1/snap", from("pvc", "claim"))
		}, "is cloned from persistentvolumeclaims ns/claim, and its machine has acquired volumesnapshots ns/snap"},
		"a second disk": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.disk("vm-root2", "vm", "img/r/1/snap", from("snapshot", "snap"))
		}, "root disk ns/vm-root2 is made, while there is ns/vm-root of the same machine"},
		"a disk that is made again": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.h.byHand["vm-root"] = true
			s.removed(disks, "vm-root")
			s.disk("vm-root2", "vm", "img/r/1/snap", from("snapshot", "snap"))
		}, ""},
		"a complete disk is deleted": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.set(disks, "vm-root", func(o map[string]any) { o["status"] = map[string]any{"phase": "Failed"} })
			s.marked(disks, "vm-root")
		}, "datavolumes ns/vm-root is deleted, a complete root disk, while machine ns/vm is there"},
		"the claim of a complete disk is deleted": {func(s *tale) {
			s.runs("vm", "img", "claim", "snap")
			s.set(diskClaims, "vm-claim", func(o map[string]any) {
				labelled(labelMachine, "vm")(o)
				o["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"uid": "vm-root"}}
			})
			s.gone(diskClaims, "vm-claim")
		}, "persistentvolumeclaims ns/vm-claim is deleted, a complete root disk, while machine ns/vm is there"},
		"an incomplete disk is deleted": {func(s *tale) {
			s.names("vm", "img")
			s.pins("vm", "img", "claim", "snap", true)
			s.disk("vm-root", "vm", "img/r/1/snap", from("snapshot", "snap"))
			s.removed(disks, "vm-root")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTale()
			s.image("img", "claim", "snap")
			tt.happens(s)
			got := s.h.TakenAway()
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

func TestStrays(t *testing.T) {
	s := newTale()
	s.image("img", "claim", "snap")
	s.runs("vm", "img", "claim", "snap")
	s.set(diskClaims, "vm-claim", labelled(labelMachine, "vm"))
	assert.Empty(t, s.h.Strays())
	s.gone(machines, "vm")
	assert.Equal(t, []string{
		"datavolumes ns/vm-root of machine vm, which is gone", "persistentvolumeclaims ns/vm-claim of machine vm, which is gone",
	}, s.h.Strays())
	s.gone(disks, "vm-root")
	s.gone(diskClaims, "vm-claim")
	assert.Empty(t, s.h.Strays())
}
