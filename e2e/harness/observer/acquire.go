package observer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// AcquireViolations lists the violations of promise S2 of docs/architecture.md:
//   - an image, or the source that a machine was built from, was deleted while the machine had
//     acquired it;
//   - a disk was cloned from another source than its machine had acquired for it;
//   - a disk was deleted when a guest could have written to it.
//
// A machine has acquired an image when its stored status.pinned, or that of a disk in status.disks,
// has acquiredAt. Deletions by hand and of whole namespaces are no violations.
func (h History) AcquireViolations() []string {
	j := h.replayAcquires()
	return j.violations
}

// StrayDisks lists the root disks, and their claims, whose machine is gone.
func (h History) StrayDisks() []string {
	j := h.replayAcquires()
	var strays []string
	for _, kind := range []resource{disks, diskClaims} {
		for _, o := range j.existing[kind] {
			if machine := types.UID(o.GetLabels()[labelMachine]); j.existing[machines][machine] == nil {
				strays = append(strays, fmt.Sprintf("%s %s of machine %s, which is gone", kind.Resource, keyOf(o), machine))
			}
		}
	}
	slices.Sort(strays)
	return strays
}

const (
	labelImage           = "pelotech.ot/image-uid"
	labelMachine         = "pelotech.ot/machine-uid"
	labelDisk            = "pelotech.ot/disk"
	annotationClonedFrom = "pelotech.ot/cloned-from"
)

// pinnedSource is the source that a disk is cloned from, by the status of its machine.
type pinnedSource struct {
	image             types.UID
	revision, attempt string
	claim, snapshot   string // as namespace/name; snapshot is empty where there is none
	acquired          bool
}

// parsePins returns what the disks of a machine are cloned from, by the name of the disk, which is
// empty for the root disk.
func parsePins(machine *unstructured.Unstructured) map[string]pinnedSource {
	pins := map[string]pinnedSource{}
	if p, there, _ := unstructured.NestedMap(machine.Object, "status", "pinned"); there {
		pins[""] = parsePin(p)
	}
	list, _, _ := unstructured.NestedSlice(machine.Object, "status", "disks")
	for _, item := range list {
		disk, _ := item.(map[string]any)
		name, _ := disk["name"].(string)
		if p, there, _ := unstructured.NestedMap(disk, "pinned"); there {
			pins[name] = parsePin(p)
		}
	}
	return pins
}

func parsePin(p map[string]any) pinnedSource {
	text := func(key string) string { s, _ := p[key].(string); return s }
	found := pinnedSource{
		image: types.UID(text("uid")), revision: text("revision"), attempt: fmt.Sprint(p["attempt"]),
		claim: text("namespace") + "/" + text("persistentVolumeClaim"), acquired: text("acquiredAt") != "",
	}
	if s := text("volumeSnapshot"); s != "" {
		found.snapshot = text("namespace") + "/" + s
	}
	return found
}

// source returns the object that is cloned.
func (p pinnedSource) source() (resource, string) {
	if p.snapshot != "" {
		return snapshots, p.snapshot
	}
	return imageClaims, p.claim
}

// acquireJudge replays a history.
type acquireJudge struct {
	existing map[resource]map[types.UID]*unstructured.Unstructured
	// deleting are the objects whose deletion was judged.
	deleting map[types.UID]bool
	// lostByHand are the sources that were deleted by hand, by kind and name.
	lostByHand    map[string]bool
	deletedByHand map[types.UID]bool
	succeeded     map[types.UID]bool         // root disks
	serving       map[types.UID]pinnedSource // what an image last served
	claimants     map[types.UID]map[types.UID]bool
	violations    []string
}

func (h History) replayAcquires() *acquireJudge {
	j := &acquireJudge{
		existing: map[resource]map[types.UID]*unstructured.Unstructured{}, deleting: map[types.UID]bool{}, lostByHand: map[string]bool{},
		deletedByHand: h.deletedByHand, succeeded: map[types.UID]bool{}, serving: map[types.UID]pinnedSource{}, claimants: map[types.UID]map[types.UID]bool{},
	}
	for _, r := range watchedResources {
		j.existing[r] = map[types.UID]*unstructured.Unstructured{}
	}
	for _, e := range h.events {
		j.processEvent(e)
	}
	return j
}

func (j *acquireJudge) addViolation(e event, format string, args ...any) {
	j.violations = append(j.violations, fmt.Sprintf("at %d, %s: %s", e.version, e.seen.Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

func (j *acquireJudge) processEvent(e event) {
	o, uid := e.object, e.object.GetUID()
	before := j.existing[e.resource][uid]
	if goes := e.kind == watch.Deleted || o.GetDeletionTimestamp() != nil; goes && !j.deleting[uid] {
		j.deleting[uid] = true
		j.judgeDeletion(e)
	}
	if e.kind == watch.Deleted {
		if e.resource == images {
			j.judgeImageRemoval(e)
		}
		delete(j.existing[e.resource], uid)
	} else {
		j.existing[e.resource][uid] = o
	}
	switch {
	case e.resource == machines:
		j.judgeMachine(e, before)
	case e.kind == watch.Deleted:
	case e.resource == images:
		j.recordServing(o)
	case e.resource == disks:
		if before == nil && !e.preexisting {
			j.judgeDiskCreation(e)
		}
		if phaseOf(o) == "Succeeded" {
			j.succeeded[uid] = true
		}
	}
}

// judgeDeletion judges the beginning of an object's deletion.
func (j *acquireJudge) judgeDeletion(e event) {
	o := e.object
	hand := j.isDeletedByHand(o)
	switch e.resource {
	case images:
		if e.kind == watch.Deleted {
			return // without a mark: by whom the finalizer was not minded, judgeImageRemoval says
		}
		j.claimants[o.GetUID()] = map[types.UID]bool{}
		for uid, m := range j.existing[machines] {
			if namesImage(m, keyOf(o)) {
				j.claimants[o.GetUID()][uid] = true
			}
		}
	case imageClaims, snapshots:
		if hand {
			j.lostByHand[e.resource.Resource+" "+keyOf(o)] = true
			return
		}
		j.judgeSourceDeletion(e)
	case disks, diskClaims:
		j.judgeDiskDeletion(e, hand)
	}
}

// isDeletedByHand reports an object that was deleted by hand, or with an owner that was.
func (j *acquireJudge) isDeletedByHand(o *unstructured.Unstructured) bool {
	if j.deletedByHand[o.GetUID()] {
		return true
	}
	for _, owner := range o.GetOwnerReferences() {
		if j.deletedByHand[owner.UID] {
			return true
		}
	}
	return false
}

// judgeSourceDeletion judges the deletion of an image's claim or snapshot.
func (j *acquireJudge) judgeSourceDeletion(e event) {
	image, name := types.UID(e.object.GetLabels()[labelImage]), keyOf(e.object)
	for _, m := range j.existing[machines] {
		for _, p := range parsePins(m) {
			if kind, source := p.source(); p.acquired && p.image == image && kind == e.resource && source == name {
				j.addViolation(e, "%s %s is deleted, which machine %s has acquired", e.resource.Resource, name, keyOf(m))
			}
		}
	}
	if len(j.claimants[image]) == 0 {
		return
	}
	if p, served := j.serving[image]; served && (name == p.claim || name == p.snapshot) {
		j.addViolation(e, "%s %s is deleted, which an image served that is to go and was named by %s when that was asked for", e.resource.Resource, name, j.machineNames(j.claimants[image]))
	}
}

func (j *acquireJudge) judgeImageRemoval(e event) {
	uid := e.object.GetUID()
	if j.deletedByHand[uid] {
		return
	}
	for _, m := range j.existing[machines] {
		for _, p := range parsePins(m) {
			if p.acquired && p.image == uid {
				j.addViolation(e, "image %s is gone, which machine %s has acquired", keyOf(e.object), keyOf(m))
			}
		}
	}
	if owed := j.claimants[uid]; len(owed) > 0 {
		j.addViolation(e, "image %s is gone, which %s named when its deletion was asked for", keyOf(e.object), j.machineNames(owed))
	}
}

func (j *acquireJudge) machineNames(of map[types.UID]bool) string {
	var names []string
	for uid := range of {
		names = append(names, keyOf(j.existing[machines][uid]))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// recordServing records the source that an image serves. It stays recorded when the image stops
// serving, until it serves another one.
func (j *acquireJudge) recordServing(o *unstructured.Unstructured) {
	s, there, _ := unstructured.NestedMap(o.Object, "status", "serving")
	if !there {
		return
	}
	text := func(key string) string { t, _ := s[key].(string); return t }
	serves := pinnedSource{claim: o.GetNamespace() + "/" + text("persistentVolumeClaim")}
	if name := text("volumeSnapshot"); name != "" {
		serves.snapshot = o.GetNamespace() + "/" + name
	}
	j.serving[o.GetUID()] = serves
}

// judgeMachine judges what a machine has acquired when it is first stored.
func (j *acquireJudge) judgeMachine(e event, before *unstructured.Unstructured) {
	m, uid := e.object, e.object.GetUID()
	pins, were := map[string]pinnedSource{}, map[string]pinnedSource{}
	if e.kind != watch.Deleted {
		pins = parsePins(m)
	}
	if before != nil {
		were = parsePins(before)
	}
	for image, owed := range j.claimants {
		img := j.existing[images][image]
		pinned := slices.ContainsFunc(slices.Collect(maps.Values(pins)), func(p pinnedSource) bool { return p.image == image })
		if e.kind == watch.Deleted || img == nil || !namesImage(m, keyOf(img)) && !pinned {
			delete(owed, uid)
		}
	}
	for disk, p := range pins {
		if was, had := were[disk]; p.acquired && !e.preexisting && (!had || was != p) {
			j.judgeAcquisition(e, p)
		}
	}
}

func (j *acquireJudge) judgeAcquisition(e event, p pinnedSource) {
	if j.existing[images][p.image] == nil && !j.deletedByHand[p.image] {
		j.addViolation(e, "machine %s has acquired image %s, which is not there", keyOf(e.object), p.image)
		return
	}
	if kind, name := p.source(); !j.sourceExists(p.image, kind, name) && !j.lostByHand[kind.Resource+" "+name] {
		j.addViolation(e, "machine %s has acquired %s %s, which is not there", keyOf(e.object), kind.Resource, name)
	}
}

// sourceExists reports a source that exists and is not being deleted.
func (j *acquireJudge) sourceExists(image types.UID, kind resource, name string) bool {
	for _, o := range j.existing[kind] {
		if keyOf(o) == name && o.GetDeletionTimestamp() == nil && types.UID(o.GetLabels()[labelImage]) == image {
			return true
		}
	}
	return false
}

// judgeDiskCreation judges the creation of a disk. One whose machine is gone is a stray if it
// stays.
func (j *acquireJudge) judgeDiskCreation(e event) {
	uid, disk := types.UID(e.object.GetLabels()[labelMachine]), e.object.GetLabels()[labelDisk]
	for _, other := range j.existing[disks] {
		if other.GetUID() != e.object.GetUID() && types.UID(other.GetLabels()[labelMachine]) == uid && other.GetLabels()[labelDisk] == disk {
			j.addViolation(e, "root disk %s is made, while there is %s of the same machine", keyOf(e.object), keyOf(other))
		}
	}
	m := j.existing[machines][uid]
	if _, blank, _ := unstructured.NestedMap(e.object.Object, "spec", "source", "blank"); m == nil || blank {
		return
	}
	p, pinned := parsePins(m)[disk]
	kind, name := p.source()
	_, source, _ := strings.Cut(name, "/")
	says := strings.Join([]string{string(p.image), p.revision, p.attempt, source}, "/")
	switch {
	case !pinned || !p.acquired:
		j.addViolation(e, "root disk %s is cloned, and its machine has acquired nothing", keyOf(e.object))
	case e.object.GetAnnotations()[annotationClonedFrom] != says:
		j.addViolation(e, "root disk %s is cloned from %s, and its machine has acquired %s", keyOf(e.object), e.object.GetAnnotations()[annotationClonedFrom], says)
	case cloneSourceOf(e.object) != kind.Resource+" "+name:
		j.addViolation(e, "root disk %s is cloned from %s, and its machine has acquired %s %s", keyOf(e.object), cloneSourceOf(e.object), kind.Resource, name)
	}
}

// cloneSourceOf returns the source in a DataVolume's spec.
func cloneSourceOf(dv *unstructured.Unstructured) string {
	for key, kind := range map[string]resource{"snapshot": snapshots, "pvc": imageClaims} {
		if s, there, _ := unstructured.NestedStringMap(dv.Object, "spec", "source", key); there {
			return kind.Resource + " " + s["namespace"] + "/" + s["name"]
		}
	}
	return "nothing"
}

// judgeDiskDeletion judges the deletion of a root disk or its claim.
func (j *acquireJudge) judgeDiskDeletion(e event, hand bool) {
	m := j.existing[machines][types.UID(e.object.GetLabels()[labelMachine])]
	if hand || m == nil || m.GetDeletionTimestamp() != nil {
		return
	}
	complete := j.succeeded[e.object.GetUID()]
	for _, owner := range e.object.GetOwnerReferences() {
		complete = complete || j.succeeded[owner.UID]
	}
	if complete {
		j.addViolation(e, "%s %s is deleted, a complete root disk, while machine %s is there", e.resource.Resource, keyOf(e.object), keyOf(m))
	}
}

func keyOf(o *unstructured.Unstructured) string { return o.GetNamespace() + "/" + o.GetName() }

// namesImage reports whether the spec of a machine names an image, for any of its disks.
func namesImage(machine *unstructured.Unstructured, image string) bool {
	isNamed := func(ref map[string]any) bool {
		namespace, _ := ref["namespace"].(string)
		name, _ := ref["name"].(string)
		return cmp.Or(namespace, machine.GetNamespace())+"/"+name == image
	}
	if ref, _, _ := unstructured.NestedMap(machine.Object, "spec", "vmDiskImageRef"); isNamed(ref) {
		return true
	}
	list, _, _ := unstructured.NestedSlice(machine.Object, "spec", "disks")
	return slices.ContainsFunc(list, func(item any) bool {
		disk, _ := item.(map[string]any)
		ref, there, _ := unstructured.NestedMap(disk, "image")
		return there && isNamed(ref)
	})
}
