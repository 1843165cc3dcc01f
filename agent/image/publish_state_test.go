package image_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The model of publishing: one image whose source changes or that is deleted, its DataSource, and
// one clone, made by CDI with sourceRef or by KubeVirt, which resolves the DataSource first and
// creates the DataVolume later. Two agents can be paused before any read and write, and crash.
//
// One hour passes at a time, which exceeds the grace period and the margin; not while KubeVirt is
// between its read and its write, nor while CDI's cache is old, as both take less than those.

// pointer is the DataSource. Its version is its resourceVersion; 0: there is none.
type pointer struct{ version, target uint8 }

type cloneKind uint8

const (
	noClone cloneKind = iota
	cloneBySourceRef
	cloneBySource
)

type clonePhase uint8

const (
	cloneWaits clonePhase = iota
	cloneRuns
	cloneDone
)

type cloneState struct {
	kind    cloneKind
	phase   clonePhase
	created uint8 // hour
	source  uint8 // attempt
}

type publishLeader struct {
	pc             uint8
	imageUnchanged bool
	status         uint16
	specEdit       uint8
	deleted        bool
	attempts       uint8
	slot           attemptRef
	ds             pointer
	hour           uint8
	clone          cloneState
	todo           publishActions
}

type publishActions struct {
	needsLive, writeStatus, removeFinalizer bool
	status                                  uint16
	operation                               uint8 // 1 create, 2 apply, 3 delete
	version, target                         uint8 // of the DataSource that is changed
	attempts                                uint8 // to delete
}

type publishState struct {
	status        uint16
	specEdit      uint8
	deleted, gone bool
	attempts      uint8
	slot          attemptRef
	ds            pointer
	versions      uint8 // resourceVersions so far
	seenByCDI     uint8 // target
	hour          uint8
	clone         cloneState
	resolved      uint8 // what KubeVirt has resolved; 0 for nothing
	leaders       [2]publishLeader
}

type publishBug uint8

const (
	endsByNoLook       publishBug = iota + 1 // DataVolumes are listed before the pointer moves
	holdsCurrentOnly                         // a clone holds what the pointer names now
	forgetsHistory                           // ended publications are not stored
	listsClonesInCache                       // DataVolumes are read from the cache
	noGracePeriod                            // KubeVirt's write after the list is not waited for
	changesUnguarded                         // the DataSource is changed without its resourceVersion
	createsPointing                          // the DataSource is created pointing
	recordsNoVersion                         // a change that is under way is not waited for
)

// publishScenario implements modelcheck.Model.
type publishScenario struct {
	sources           []string
	leaders           int
	deletes, kubeVirt bool
	// unpublished: the image serves in the beginning, and has no DataSource yet.
	unpublished bool
	bug         publishBug
}

const maxHour = 3

var (
	publishStatuses  = []v1alpha1.VMDiskImageStatus{{}}
	publishNumbers   = map[string]uint16{}
	publishDecisions = map[publishInputs]publishActions{}
)

// publishInputs are what a decision depends on.
type publishInputs struct {
	sources string
	bug     publishBug
	seen    publishLeader
	live    bool
}

func publishStatusNumber(st *v1alpha1.VMDiskImageStatus) uint16 {
	kept := v1alpha1.VMDiskImageStatus{
		Phase: st.Phase, Revision: st.Revision, LastAttempt: st.LastAttempt, TearDown: st.TearDown, ObservedGeneration: st.ObservedGeneration,
		Serving: st.Serving, Revisions: st.Revisions, Publications: st.Publications,
	}
	return numberStatus(kept, st.Conditions, publishNumbers, &publishStatuses)
}

func (p *publishScenario) buildImage(status uint16, specEdit uint8, deleted bool) *v1alpha1.VMDiskImage {
	b := apitest.Image("ns/a").WithUID(imageKey.UID).WithURL("https://images.example.com/" + p.sources[specEdit]).
		WithFinalizer().WithStatus(*publishStatuses[status].DeepCopy())
	generation := int64(1) + int64(specEdit)
	if deleted {
		generation++
		b.Deleted(apitest.Epoch)
	}
	img := b.WithGeneration(generation).Obj()
	img.Spec.Publish = &v1alpha1.Publish{DataSource: true}
	return img
}

func hourOf(n uint8) time.Time { return apitest.Epoch.Add(time.Duration(n) * time.Hour) }

// acquire is the part of the other model that builds objects.
func (p *publishScenario) acquire() *acquireScenario { return &acquireScenario{imageSpecs: p.sources} }

func (p *publishScenario) buildDataSource(ds pointer) []cdiv1.DataSource {
	if ds.version == 0 {
		return nil
	}
	out := cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "a", UID: "ds", ResourceVersion: strconv.Itoa(int(ds.version)), Labels: map[string]string{v1alpha1.LabelImageUID: string(imageKey.UID)},
	}}
	if ds.target != 0 {
		// The labels and annotations are those that the agent has applied.
		out.Spec.Source.PVC = &cdiv1.DataVolumeSourcePVC{Namespace: "ns", Name: ledger.DataVolumeName(imageKey, int32(ds.target))}
		out.Annotations = map[string]string{v1alpha1.AnnotationImageName: "a", v1alpha1.AnnotationAppliedDigest: appliedDigest}
	}
	return []cdiv1.DataSource{out}
}

// appliedDigest is that of the model's only labels.
var appliedDigest = func() string {
	img := apitest.Image("ns/a").WithUID(imageKey.UID).Obj()
	return image.DigestOfDataSource(img)
}()

func (p *publishScenario) buildClone(c cloneState) []cdiv1.DataVolume {
	if c.kind == noClone {
		return nil
	}
	dv := cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "disk", UID: types.UID("clone"), CreationTimestamp: metav1.NewTime(hourOf(c.created))}}
	if c.kind == cloneBySourceRef {
		namespace := "ns"
		dv.Spec.SourceRef = &cdiv1.DataVolumeSourceRef{Kind: cdiv1.DataVolumeDataSource, Namespace: &namespace, Name: "a"}
	} else {
		dv.Spec.Source = &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "ns", Name: ledger.DataVolumeName(imageKey, int32(c.source))}}
	}
	if c.phase == cloneDone {
		dv.Status.Phase = cdiv1.Succeeded
	}
	return []cdiv1.DataVolume{dv}
}

// decide calls image.Decide, once per input.
func (p *publishScenario) decide(k publishLeader, live bool) publishActions {
	k.pc, k.imageUnchanged, k.todo = 0, false, publishActions{}
	key := publishInputs{strings.Join(p.sources, " "), p.bug, k, live}
	return modelcheck.ComputeOnce(publishDecisions, key, func() publishActions { return p.decideUncached(k, live) })
}

func (p *publishScenario) decideUncached(k publishLeader, live bool) publishActions {
	rules := policy.Default()
	rules.Preflight = false
	img := p.buildImage(k.status, k.specEdit, k.deleted)
	seen := img.DeepCopy()
	publishing := &image.PublishingView{Served: true, DataSources: p.buildDataSource(k.ds), Publishers: map[string]image.PublishCandidate{}}
	if image.CanPublish(img) {
		publishing.Publishers["a"] = image.PublishCandidate{Name: "a", UID: img.UID}
	}
	publishing.InFlight = map[string]bool{}
	image.DataSourcesInFlight(publishing.InFlight, "ns", p.buildClone(k.clone), publishing.DataSources)
	if live {
		publishing.ServerTime = hourOf(k.hour)
	}
	switch p.bug {
	case endsByNoLook:
		if live {
			publishing.DataSources = nil
		}
	case forgetsHistory:
		seen.Status.Publications = slices.DeleteFunc(seen.Status.Publications, func(p v1alpha1.Publication) bool { return p.Until != nil })
	case noGracePeriod:
		if live && slices.ContainsFunc(img.Status.Publications, func(p v1alpha1.Publication) bool { return p.Until != nil }) {
			publishing.ServerTime = publishing.ServerTime.Add(30 * time.Minute)
		}
	case recordsNoVersion:
		for i := range img.Status.Publications {
			img.Status.Publications[i].ResourceVersion = "none"
		}
	}
	holders := image.CloneHolders(seen, p.buildClone(k.clone), publishing.DataSources)
	if p.bug == holdsCurrentOnly {
		for i := range holders {
			holders[i].Pins = slices.DeleteFunc(holders[i].Pins, func(pin *v1alpha1.PinnedImage) bool { return uint8(pin.Attempt) != k.ds.target })
		}
	}
	v := image.View{
		Now: hourOf(k.hour), Image: img, Policy: &rules, ObjectsByAttempt: p.acquire().buildObjects(storageState{attempts: k.attempts}),
		Preflight: image.PreflightResult{Known: true}, Publishing: publishing, Holders: holders, Live: live,
		ArrivalKey: v1alpha1.OrderingKey{Time: metav1.NewTime(apitest.Epoch)}, EndOfQueueKey: v1alpha1.OrderingKey{Time: metav1.NewTime(apitest.Epoch)},
	}
	if k.slot.attempt > 0 {
		v.Slots = []v1alpha1.Slot{p.acquire().buildSlot(k.slot)}
	}
	d := image.Decide(v)
	if d.NeedsLiveRead {
		return publishActions{needsLive: true}
	}
	if d.RemoveFinalizer {
		return publishActions{removeFinalizer: true}
	}
	todo := publishActions{status: publishStatusNumber(&d.Status)}
	todo.writeStatus = todo.status != k.status
	for _, change := range d.DataSources {
		version, _ := strconv.Atoi(change.DataSource.ResourceVersion)
		todo.version = uint8(version)
		switch change.Operation {
		case image.CreateDataSource:
			todo.operation = 1
			if p.bug == createsPointing && d.Status.Serving != nil {
				todo.target = uint8(d.Status.Serving.Attempt)
			}
		case image.ApplyDataSource:
			todo.operation = 2
			for a := uint8(1); a <= 8; a++ {
				if pvc := change.DataSource.Spec.Source.PVC; pvc != nil && pvc.Name == ledger.DataVolumeName(imageKey, int32(a)) {
					todo.target = a
				}
			}
		default:
			todo.operation = 3
		}
	}
	for _, t := range d.Delete {
		for a := uint8(1); a <= 8; a++ {
			if t.Name == ledger.DataVolumeName(imageKey, int32(a)) {
				todo.attempts |= 1 << (a - 1)
			}
		}
	}
	return todo
}

type publishStep = modelcheck.Step[publishState]

func (p *publishScenario) InitialState() publishState {
	c := publishState{status: publishStatusNumber(&v1alpha1.VMDiskImageStatus{})}
	for i := p.leaders; i < len(c.leaders); i++ {
		c.leaders[i].pc = noLeader
	}
	for { // leader 0 imports and publishes the first source
		before := c
		for moved := true; moved; {
			moved = false
			p.leaderSteps(&c, 0, func(s publishStep) {
				if !moved && !s.Fault {
					c, moved = s.Next, s.Next.leaders[0].pc != idle
				}
			})
		}
		p.importSteps(&c, func(s publishStep) { c = s.Next })
		c.seenByCDI = c.ds.target
		if c == before || (p.unpublished && publishStatuses[c.status].Serving != nil) {
			return c
		}
	}
}

// publishOutcomes are, by publishOutcomeKey, whether a status stores an outcome for a slot's attempt.
var publishOutcomes = map[publishOutcomeKey]bool{}

type publishOutcomeKey struct {
	sources string
	status  uint16
	slot    attemptRef
}

func (p *publishScenario) hasAttemptEnded(status uint16, slot attemptRef) bool {
	return modelcheck.ComputeOnce(publishOutcomes, publishOutcomeKey{strings.Join(p.sources, " "), status, slot}, func() bool {
		return p.acquire().hasAttemptEnded(publishStatuses[status], slot)
	})
}

func (p *publishScenario) emit(next publishState, visit func(publishStep), fault bool, what ...any) {
	if next.slot.attempt > 0 && (next.gone || p.hasAttemptEnded(next.status, next.slot)) {
		next.slot = attemptRef{}
	}
	for i := range next.leaders {
		if next.leaders[i].pc == idle {
			next.leaders[i] = publishLeader{}
		}
	}
	violation := ""
	if c := next.clone; c.phase == cloneRuns && next.attempts&(1<<(c.source-1)) == 0 {
		violation = "storage is deleted that is being cloned"
	}
	visit(publishStep{Next: next, Violation: violation, Fault: fault, Describe: func() string { return fmt.Sprint(what...) }})
}

func (p *publishScenario) ForEachStep(c *publishState, visit func(publishStep)) {
	for i := range c.leaders {
		p.leaderSteps(c, i, visit)
	}
	p.importSteps(c, visit)
	p.cloneSteps(c, visit)
	if !c.gone && int(c.specEdit) < len(p.sources)-1 {
		next := *c
		next.specEdit++
		next.markImageWritten(-1)
		p.emit(next, visit, true, "a person changes the source")
	}
	if p.deletes && !c.deleted {
		next := *c
		next.deleted = true
		next.markImageWritten(-1)
		p.emit(next, visit, true, "a person deletes the image")
	}
	if c.hour < maxHour && c.resolved == 0 && c.seenByCDI == c.ds.target {
		next := *c
		next.hour++
		p.emit(next, visit, false, "an hour passes")
	}
}

// publishCandidates are the attempts to import next; 0 for none.
var publishCandidates = map[publishCandidateKey]uint8{}

type publishCandidateKey struct {
	sources  string
	status   uint16
	specEdit uint8
	deleted  bool
}

// importSteps give the slot, and complete the import at once.
func (p *publishScenario) importSteps(c *publishState, visit func(publishStep)) {
	if c.gone || c.slot.attempt != 0 {
		return
	}
	attempt := modelcheck.ComputeOnce(publishCandidates, publishCandidateKey{strings.Join(p.sources, " "), c.status, c.specEdit, c.deleted}, func() uint8 {
		candidate, _ := image.CandidateOf(p.buildImage(c.status, c.specEdit, c.deleted), nil)
		return uint8(candidate.Attempt)
	})
	if attempt == 0 {
		return
	}
	next := *c
	next.slot = attemptRef{attempt: attempt, specEdit: c.specEdit}
	next.attempts |= 1 << (next.slot.attempt - 1)
	p.emit(next, visit, false, "attempt ", next.slot.attempt, " is imported")
}

// cloneSteps are those of the person, KubeVirt and CDI.
func (p *publishScenario) cloneSteps(c *publishState, visit func(publishStep)) {
	if c.seenByCDI != c.ds.target {
		next := *c
		next.seenByCDI = c.ds.target
		p.emit(next, visit, false, "CDI's cache shows the DataSource")
	}
	switch {
	case c.clone.kind == noClone && !p.kubeVirt:
		next := *c
		next.clone = cloneState{kind: cloneBySourceRef, created: c.hour}
		p.emit(next, visit, true, "a person creates a DataVolume with sourceRef")
	case c.clone.kind == noClone && c.resolved != 0:
		next := *c
		next.clone, next.resolved = cloneState{kind: cloneBySource, created: c.hour, source: c.resolved}, 0
		p.emit(next, visit, false, "KubeVirt creates a DataVolume of attempt ", c.resolved)
	case c.clone.kind == noClone && c.ds.target != 0:
		next := *c
		next.resolved = c.ds.target
		p.emit(next, visit, true, "KubeVirt resolves the DataSource")
	case c.clone.kind != noClone && c.clone.phase == cloneWaits:
		next := *c
		if c.clone.kind == cloneBySourceRef {
			next.clone.source = c.seenByCDI
		}
		if s := next.clone.source; s != 0 && c.attempts&(1<<(s-1)) != 0 {
			next.clone.phase = cloneRuns
			p.emit(next, visit, false, "CDI clones attempt ", s)
		}
	case c.clone.phase == cloneRuns && (c.clone.kind == cloneBySource || c.ds.version != 0): // CDI reads the DataSource again
		next := *c
		next.clone.phase = cloneDone
		p.emit(next, visit, false, "the clone is complete")
	}
}

func (c *publishState) markImageWritten(but int) {
	for i := range c.leaders {
		if i != but {
			c.leaders[i].imageUnchanged = false
		}
	}
}

func (p *publishScenario) Canonical(c *publishState) publishState {
	ordered := *c
	if p.leaders > 1 {
		sortPair(&ordered.leaders)
	}
	return ordered
}

func (p *publishScenario) IsAtRest(*publishState) bool { return true }

func (p *publishScenario) Format(c *publishState) string { return fmt.Sprintf("%+v", *c) }
