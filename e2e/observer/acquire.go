package observer

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// TakenAway lists what breaks S2: an image, or what a machine was built from of
// it, that went while the machine had it; a root disk that was made from anything
// else than its machine had acquired; one that was deleted when a guest could
// have written to it. A machine's claim is its stored status.pinned with
// acquiredAt; what was deleted by hand breaks nothing. Namespaces that are
// deleted are outside of S2.
func (h History) TakenAway() []string {
	j := h.judge()
	return j.violations
}

// Strays are the root disks, and claims of them, whose machine is gone.
func (h History) Strays() []string {
	j := h.judge()
	var strays []string
	for _, kind := range []resource{disks, diskClaims} {
		for _, o := range j.there[kind] {
			if machine := types.UID(o.GetLabels()[labelMachine]); j.there[machines][machine] == nil {
				strays = append(strays, fmt.Sprintf("%s %s of machine %s, which is gone", kind.Resource, nameOf(o), machine))
			}
		}
	}
	slices.Sort(strays)
	return strays
}

const (
	labelImage   = "pelotech.ot/image-uid"
	labelMachine = "pelotech.ot/machine-uid"
	clonedFrom   = "pelotech.ot/cloned-from"
)

// pin is what a machine says it is built from.
type pin struct {
	image             types.UID
	revision, attempt string
	claim, snapshot   string // as namespace/name; snapshot is empty where there is none
	acquired          bool
}

func pinOf(machine *unstructured.Unstructured) (pin, bool) {
	p, there, _ := unstructured.NestedMap(machine.Object, "status", "pinned")
	if !there {
		return pin{}, false
	}
	text := func(key string) string { s, _ := p[key].(string); return s }
	found := pin{
		image: types.UID(text("uid")), revision: text("revision"), attempt: fmt.Sprint(p["attempt"]),
		claim: text("namespace") + "/" + text("persistentVolumeClaim"), acquired: text("acquiredAt") != "",
	}
	if s := text("volumeSnapshot"); s != "" {
		found.snapshot = text("namespace") + "/" + s
	}
	return found, true
}

// source is the object that is cloned.
func (p pin) source() (resource, string) {
	if p.snapshot != "" {
		return snapshots, p.snapshot
	}
	return imageClaims, p.claim
}

// judge goes through a history. there is what exists, by UID; an object that is
// being deleted still does, but for what it holds it counts as gone.
type judge struct {
	there map[resource]map[types.UID]*unstructured.Unstructured
	// going are the objects whose deletion has been judged.
	going map[types.UID]bool
	// lost are sources that went by hand, by kind and name.
	lost       map[string]bool
	byHand     map[types.UID]bool
	succeeded  map[types.UID]bool // root disks
	serving    map[types.UID]pin  // what an image last served
	owed       map[types.UID]map[types.UID]bool
	violations []string
}

func (h History) judge() *judge {
	j := &judge{
		there: map[resource]map[types.UID]*unstructured.Unstructured{}, going: map[types.UID]bool{}, lost: map[string]bool{},
		byHand: h.byHand, succeeded: map[types.UID]bool{}, serving: map[types.UID]pin{}, owed: map[types.UID]map[types.UID]bool{},
	}
	for _, r := range watched {
		j.there[r] = map[types.UID]*unstructured.Unstructured{}
	}
	for _, e := range h.events {
		j.see(e)
	}
	return j
}

func (j *judge) violated(e event, format string, args ...any) {
	j.violations = append(j.violations, fmt.Sprintf("at %d, %s: %s", e.version, e.seen.Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

func (j *judge) see(e event) {
	o, uid := e.object, e.object.GetUID()
	before := j.there[e.resource][uid]
	if goes := e.kind == watch.Deleted || o.GetDeletionTimestamp() != nil; goes && !j.going[uid] {
		j.going[uid] = true
		j.goes(e)
	}
	if e.kind == watch.Deleted {
		if e.resource == images {
			j.imageGone(e)
		}
		delete(j.there[e.resource], uid)
	} else {
		j.there[e.resource][uid] = o
	}
	switch {
	case e.resource == machines:
		j.machine(e, before)
	case e.kind == watch.Deleted:
	case e.resource == images:
		j.image(o)
	case e.resource == disks:
		if before == nil && !e.before {
			j.diskMade(e)
		}
		if phaseOf(o) == "Succeeded" {
			j.succeeded[uid] = true
		}
	}
}

// goes judges that an object is deleted, when that begins.
func (j *judge) goes(e event) {
	o := e.object
	hand := j.wasByHand(o)
	switch e.resource {
	case images:
		if e.kind == watch.Deleted {
			return // without a mark: by whom the finalizer was not minded, imageGone says
		}
		j.owed[o.GetUID()] = map[types.UID]bool{}
		for uid, m := range j.there[machines] {
			if imageNameOf(m) == nameOf(o) {
				j.owed[o.GetUID()][uid] = true
			}
		}
	case imageClaims, snapshots:
		if hand {
			j.lost[e.resource.Resource+" "+nameOf(o)] = true
			return
		}
		j.sourceGoes(e)
	case disks, diskClaims:
		j.diskGoes(e, hand)
	}
}

// wasByHand tells what people deleted, or what went with that.
func (j *judge) wasByHand(o *unstructured.Unstructured) bool {
	if j.byHand[o.GetUID()] {
		return true
	}
	for _, owner := range o.GetOwnerReferences() {
		if j.byHand[owner.UID] {
			return true
		}
	}
	return false
}

// sourceGoes judges that a claim or a snapshot of an image is deleted.
func (j *judge) sourceGoes(e event) {
	image, name := types.UID(e.object.GetLabels()[labelImage]), nameOf(e.object)
	for _, m := range j.there[machines] {
		p, pinned := pinOf(m)
		if kind, source := p.source(); pinned && p.acquired && p.image == image && kind == e.resource && source == name {
			j.violated(e, "%s %s is deleted, which machine %s has acquired", e.resource.Resource, name, nameOf(m))
		}
	}
	if len(j.owed[image]) == 0 {
		return
	}
	if p, served := j.serving[image]; served && (name == p.claim || name == p.snapshot) {
		j.violated(e, "%s %s is deleted, which an image served that is to go and was named by %s when that was asked for", e.resource.Resource, name, j.names(j.owed[image]))
	}
}

func (j *judge) imageGone(e event) {
	uid := e.object.GetUID()
	if j.byHand[uid] {
		return
	}
	for _, m := range j.there[machines] {
		if p, pinned := pinOf(m); pinned && p.acquired && p.image == uid {
			j.violated(e, "image %s is gone, which machine %s has acquired", nameOf(e.object), nameOf(m))
		}
	}
	if owed := j.owed[uid]; len(owed) > 0 {
		j.violated(e, "image %s is gone, which %s named when its deletion was asked for", nameOf(e.object), j.names(owed))
	}
}

func (j *judge) names(of map[types.UID]bool) string {
	var names []string
	for uid := range of {
		names = append(names, nameOf(j.there[machines][uid]))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// image notes what an image serves. What it has stopped to serve is remembered:
// until it serves something else, that is what is to stay.
func (j *judge) image(o *unstructured.Unstructured) {
	s, there, _ := unstructured.NestedMap(o.Object, "status", "serving")
	if !there {
		return
	}
	text := func(key string) string { t, _ := s[key].(string); return t }
	serves := pin{claim: o.GetNamespace() + "/" + text("persistentVolumeClaim")}
	if name := text("volumeSnapshot"); name != "" {
		serves.snapshot = o.GetNamespace() + "/" + name
	}
	j.serving[o.GetUID()] = serves
}

// machine judges what a machine says it has acquired, when it first says so.
func (j *judge) machine(e event, before *unstructured.Unstructured) {
	m, uid := e.object, e.object.GetUID()
	p, pinned := pin{}, false
	if e.kind != watch.Deleted {
		p, pinned = pinOf(m)
	}
	for image, owed := range j.owed {
		img := j.there[images][image]
		if e.kind == watch.Deleted || img == nil || imageNameOf(m) != nameOf(img) && (!pinned || p.image != image) {
			delete(owed, uid)
		}
	}
	if !pinned || !p.acquired || e.before {
		return
	}
	if before != nil {
		if was, had := pinOf(before); had && was == p {
			return
		}
	}
	if j.there[images][p.image] == nil && !j.byHand[p.image] {
		j.violated(e, "machine %s has acquired image %s, which is not there", nameOf(m), p.image)
		return
	}
	if kind, name := p.source(); !j.has(p.image, kind, name) && !j.lost[kind.Resource+" "+name] {
		j.violated(e, "machine %s has acquired %s %s, which is not there", nameOf(m), kind.Resource, name)
	}
}

// has tells whether a source is there and is not being deleted.
func (j *judge) has(image types.UID, kind resource, name string) bool {
	for _, o := range j.there[kind] {
		if nameOf(o) == name && o.GetDeletionTimestamp() == nil && types.UID(o.GetLabels()[labelImage]) == image {
			return true
		}
	}
	return false
}

// diskMade judges that a root disk was created. One of a machine that is gone is
// a stray, if it stays.
func (j *judge) diskMade(e event) {
	uid := types.UID(e.object.GetLabels()[labelMachine])
	for _, other := range j.there[disks] {
		if other.GetUID() != e.object.GetUID() && types.UID(other.GetLabels()[labelMachine]) == uid {
			j.violated(e, "root disk %s is made, while there is %s of the same machine", nameOf(e.object), nameOf(other))
		}
	}
	m := j.there[machines][uid]
	if m == nil {
		return
	}
	p, pinned := pinOf(m)
	kind, name := p.source()
	_, source, _ := strings.Cut(name, "/")
	says := strings.Join([]string{string(p.image), p.revision, p.attempt, source}, "/")
	switch {
	case !pinned || !p.acquired:
		j.violated(e, "root disk %s is cloned, and its machine has acquired nothing", nameOf(e.object))
	case e.object.GetAnnotations()[clonedFrom] != says:
		j.violated(e, "root disk %s is cloned from %s, and its machine has acquired %s", nameOf(e.object), e.object.GetAnnotations()[clonedFrom], says)
	case sourceOf(e.object) != kind.Resource+" "+name:
		j.violated(e, "root disk %s is cloned from %s, and its machine has acquired %s %s", nameOf(e.object), sourceOf(e.object), kind.Resource, name)
	}
}

// sourceOf is what a DataVolume really is cloned from.
func sourceOf(dv *unstructured.Unstructured) string {
	for key, kind := range map[string]resource{"snapshot": snapshots, "pvc": imageClaims} {
		if s, there, _ := unstructured.NestedStringMap(dv.Object, "spec", "source", key); there {
			return kind.Resource + " " + s["namespace"] + "/" + s["name"]
		}
	}
	return "nothing"
}

// diskGoes judges that a root disk, or the claim of one, is deleted.
func (j *judge) diskGoes(e event, hand bool) {
	m := j.there[machines][types.UID(e.object.GetLabels()[labelMachine])]
	if hand || m == nil || m.GetDeletionTimestamp() != nil {
		return
	}
	complete := j.succeeded[e.object.GetUID()]
	for _, owner := range e.object.GetOwnerReferences() {
		complete = complete || j.succeeded[owner.UID]
	}
	if complete {
		j.violated(e, "%s %s is deleted, a complete root disk, while machine %s is there", e.resource.Resource, nameOf(e.object), nameOf(m))
	}
}

func nameOf(o *unstructured.Unstructured) string { return o.GetNamespace() + "/" + o.GetName() }

// imageNameOf is what a machine names.
func imageNameOf(machine *unstructured.Unstructured) string {
	ref, _, _ := unstructured.NestedStringMap(machine.Object, "spec", "vmDiskImageRef")
	if ref["namespace"] == "" {
		return machine.GetNamespace() + "/" + ref["name"]
	}
	return ref["namespace"] + "/" + ref["name"]
}
