package image_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// imageActions are the actions of an image.Decision still to be carried out.
type imageActions struct {
	needsLive      bool
	createSnapshot attemptRef
	snapshotNumber uint8 // of createSnapshot, by its name
	writeStatus    bool
	status         uint16
	// attempts and snapshots to delete, as bit masks.
	attempts, snapshots          uint8
	removeFinalizer              bool
	deleteImage, deletesForPrune bool
	beginsByOldPlan              bool // the status
}

// The statuses of the model, by number; number 0 is empty.
var (
	knownStatuses  = []v1alpha1.VMDiskImageStatus{{}}
	statusNumbers  = map[string]uint16{}
	imageDecisions = map[imageDecisionKey]imageActions{}
)

// statusNumber returns the number of a status, without the fields that no decision
// depends on.
func statusNumber(st *v1alpha1.VMDiskImageStatus) uint16 {
	if st == nil {
		return 0
	}
	kept := v1alpha1.VMDiskImageStatus{
		Phase: st.Phase, Revision: st.Revision, LastAttempt: st.LastAttempt, TearDown: st.TearDown, ObservedGeneration: st.ObservedGeneration,
		Serving: st.Serving, Revisions: st.Revisions, EndedPrunes: st.EndedPrunes,
	}
	if p := st.Prune; p != nil {
		kept.Prune = &v1alpha1.PruneStatus{UID: p.UID, State: p.State, Reason: p.Reason, Until: p.Until}
	}
	return numberStatus(kept, st.Conditions, statusNumbers, &knownStatuses)
}

// numberStatus returns the number of what is kept of a status, a new one for a new status. Of the
// conditions, decisions depend on Imported.
func numberStatus(kept v1alpha1.VMDiskImageStatus, conditions []metav1.Condition, numbers map[string]uint16, known *[]v1alpha1.VMDiskImageStatus) uint16 {
	for _, c := range conditions {
		if c.Type == v1alpha1.ConditionImported {
			kept.Conditions = []metav1.Condition{{Type: c.Type, Status: c.Status, Reason: c.Reason}}
		}
	}
	data, err := json.Marshal(kept)
	if err != nil {
		panic(err)
	}
	n, ok := numbers[string(data)]
	if !ok {
		var own v1alpha1.VMDiskImageStatus
		if err := json.Unmarshal(data, &own); err != nil {
			panic(err)
		}
		n = uint16(len(*known))
		numbers[string(data)] = n
		*known = append(*known, own)
	}
	return n
}

var imageKey = v1alpha1.ImageKey{Namespace: "ns", Name: "a", UID: "uid-of-a"}

// buildImage returns the VMDiskImage.
func (p *acquireScenario) buildImage(i imageState) *v1alpha1.VMDiskImage {
	url, class, _ := strings.Cut(p.imageSpecs[i.specEdits], "/")
	generation := int64(1) + int64(i.specEdits)
	b := apitest.Image("ns/a").WithUID(imageKey.UID).WithURL("https://images.example.com/" + url).WithSnapshotClass(class).
		WithFinalizer().WithStatus(*knownStatuses[i.status].DeepCopy())
	if i.deleted {
		generation++
		b.Deleted(apitest.Epoch)
	}
	img := b.WithGeneration(generation).Obj()
	if i.released {
		img.Finalizers = []string{"example.com/hold"}
	}
	img.Labels = map[string]string{v1alpha1.LabelPlanned: image.PlannedLabelValue}
	if p.hasOrphan {
		img.Annotations = map[string]string{v1alpha1.AnnotationIgnoreOrphanedDisks: "ns"}
	}
	return img
}

func (p *acquireScenario) snapshotClass(edits uint8) string {
	_, class, _ := strings.Cut(p.imageSpecs[edits], "/")
	return class
}

// knownRevisions are the revisions of the specs in imageSpecs.
var knownRevisions = map[string]string{}

func (p *acquireScenario) revisionOf(edits uint8) string {
	return modelcheck.ComputeOnce(knownRevisions, p.imageSpecs[edits], func() string { return p.buildImage(imageState{specEdits: edits}).Spec.Revision() })
}

func (p *acquireScenario) buildSlot(t attemptRef) v1alpha1.Slot {
	return v1alpha1.Slot{
		Image: imageKey, Revision: p.revisionOf(t.specEdit), Attempt: int32(t.attempt),
		DataVolume: ledger.DataVolumeName(imageKey, int32(t.attempt)), StartedAt: metav1.NewTime(apitest.Epoch),
	}
}

// hasAttemptEnded reports whether a status stores an outcome for a slot's attempt.
func (p *acquireScenario) hasAttemptEnded(st v1alpha1.VMDiskImageStatus, slot attemptRef) bool {
	outcome, _ := image.OutcomeOf(&v1alpha1.VMDiskImage{Status: st}, p.buildSlot(slot))
	return outcome != ""
}

// timeOfSnapshot differs for each snapshot, so that their names do.
func timeOfSnapshot(named uint8) time.Time {
	return apitest.Epoch.Add(time.Hour + time.Duration(named)*time.Millisecond)
}

func snapshotName(attempt, number uint8) string {
	return ledger.DataVolumeName(imageKey, int32(attempt)) + "-" + strconv.FormatInt(timeOfSnapshot(number-1).UnixMilli(), 36)
}

// snapshotNumber returns the number of a snapshot by its name.
func snapshotNumber(name string) uint8 {
	i := strings.LastIndex(name, "-")
	if name == "" || i < 0 {
		return 0
	}
	at, err := strconv.ParseInt(name[i+1:], 36, 64)
	if err != nil {
		panic(err)
	}
	return uint8(at-timeOfSnapshot(0).UnixMilli()) + 1
}

func readyVolumeSnapshot(name, class string) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &class},
		Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: ptr.To(true), BoundVolumeSnapshotContentName: ptr.To("content")},
	}
}

func (p *acquireScenario) buildObjects(s storageState) map[int32]*image.AttemptObjects {
	var l image.ObjectLists
	for a := uint8(1); a <= 8; a++ {
		if s.attempts&(1<<(a-1)) == 0 {
			continue
		}
		slot := p.buildSlot(attemptRef{attempt: a})
		dv := image.NewDataVolume(p.buildImage(imageState{}), slot)
		dv.UID, dv.Status.Phase = types.UID("uid-of-"+dv.Name), cdiv1.Succeeded
		claim := apitest.PersistentVolumeClaim("ns/"+dv.Name).OwnedBy("DataVolume", dv.Name).Bound("1Gi").ImporterPhase(corev1.PodSucceeded).Obj()
		claim.UID, claim.Labels = "uid-of-claim", dv.Labels
		l.DataVolumes, l.Claims = append(l.DataVolumes, *dv), append(l.Claims, *claim)
	}
	for n, t := range s.snapshots {
		if t.attempt == 0 {
			continue
		}
		snap := readyVolumeSnapshot(snapshotName(t.attempt, uint8(n)+1), p.snapshotClass(t.specEdit))
		snap.Labels = image.AttemptLabels(imageKey, "", int32(t.attempt))
		l.Snapshots = append(l.Snapshots, *snap)
	}
	return image.GroupByAttempt(l)
}

// imageDecisionKey is the input of a decision on the image.
type imageDecisionKey struct {
	specs   string
	bug     plantedBug
	orphan  bool
	image   imageState
	storage storageState
	holders [maxVMs]holderState
	live    bool
}

// decideImageCached calls image.Decide, once per input.
func (p *acquireScenario) decideImageCached(i imageState, s storageState, h [maxVMs]holderState, live bool) imageActions {
	q := imageDecisionKey{strings.Join(p.imageSpecs, " "), p.plantedBug, p.hasOrphan, i, s, h, live}
	return modelcheck.ComputeOnce(imageDecisions, q, func() imageActions { return p.decideImage(i, s, h, live) })
}

func (p *acquireScenario) decideImage(i imageState, s storageState, h [maxVMs]holderState, live bool) imageActions {
	rules := policy.Default()
	rules.Preflight = false
	v := image.View{
		Now: timeOfSnapshot(s.snapshotsNamed), Image: p.buildImage(i), Policy: &rules, ObjectsByAttempt: p.buildObjects(s),
		Preflight:  image.PreflightResult{Known: true},
		ArrivalKey: v1alpha1.OrderingKey{Time: metav1.NewTime(apitest.Epoch)}, EndOfQueueKey: v1alpha1.OrderingKey{Time: metav1.NewTime(apitest.Epoch)},
		Live: live,
	}
	if s.planExpires {
		v.Plan.DeleteAfter = new(time.Duration)
	}
	if s.plannedPrune != 0 {
		v.Plan.Prune, v.Plan.PruneUnconfirmed = p.buildPrune(s.plannedPrune), s.planIsOld && p.plantedBug != beginsByOldPlan
	}
	if s.slot.attempt > 0 {
		v.Slots = []v1alpha1.Slot{p.buildSlot(s.slot)}
	}
	for n, m := range h {
		if !m.exists {
			continue
		}
		holder := image.Holder{Name: fmt.Sprint("ns/", n), OrphanedDisk: p.plantedBug == ignoresMachines}
		for k, pin := range m.pins {
			if pin != 0 && p.plantedBug != supersedesPinned && (k == 0 || p.plantedBug != countsRootOnly) {
				holder.Pins = append(holder.Pins, p.buildPin(pin))
			}
		}
		v.Holders = append(v.Holders, holder)
	}
	if p.hasOrphan {
		v.Holders = append(v.Holders, image.Holder{Name: "ns/x-root", OrphanedDisk: true})
	}
	v.NamespaceTerminating = i.namespaceTerminating && i.deleted && len(v.Holders) > 0
	unmarked := p.plantedBug == tearsDownUnmarked && live && i.deleted && v.Image.Status.Phase == v1alpha1.PhaseDeleting && len(v.Holders) == 0
	v.Image.Status.TearDown = v.Image.Status.TearDown || unmarked

	d := image.Decide(v)
	if unmarked {
		d.Status.TearDown = false
	}
	if d.NeedsLiveRead {
		return imageActions{needsLive: true}
	}
	if d.RemoveFinalizer {
		return imageActions{removeFinalizer: true}
	}
	todo := imageActions{status: statusNumber(&d.Status), deleteImage: d.DeleteImage, deletesForPrune: d.Pruned}
	todo.writeStatus = todo.status != i.status
	before, after := v.Image.Status.Prune, d.Status.Prune
	todo.beginsByOldPlan = s.planIsOld && after != nil && after.State == v1alpha1.PrunePending && (before == nil || before.UID != after.UID || before.State != after.State)
	if d.CreateSnapshot != nil {
		todo.createSnapshot = attemptRef{attempt: attemptLabel(d.CreateSnapshot.Labels), specEdit: i.specEdits}
		todo.snapshotNumber = snapshotNumber(d.CreateSnapshot.Name)
	}
	for _, t := range d.Delete {
		if t.Kind == image.KindVolumeSnapshot {
			todo.snapshots |= 1 << (snapshotNumber(t.Name) - 1)
			continue
		}
		for a := uint8(1); a <= 8; a++ {
			if t.Name == ledger.DataVolumeName(imageKey, int32(a)) {
				todo.attempts |= 1 << (a - 1)
			}
		}
	}
	return todo
}

// buildPrune returns an ImagePrune of the first source, without an undo window, which
// would only add the passing of time. References since the report do not skip it, so
// that more is deleted.
func (p *acquireScenario) buildPrune(number uint8) *v1alpha1.PlannedPrune {
	return &v1alpha1.PlannedPrune{
		Namespace: imageKey.Namespace, Name: imageKey.Name, ImageUID: imageKey.UID, Revision: p.revisionOf(0), UID: pruneUID(number),
		UnreferencedSince: math.MaxInt64, Others: true,
	}
}

func pruneUID(number uint8) types.UID { return types.UID(fmt.Sprint("prune-", number)) }

func attemptLabel(labels map[string]string) uint8 {
	n, err := strconv.Atoi(labels[v1alpha1.LabelAttempt])
	if err != nil {
		panic(err)
	}
	return uint8(n)
}

// imageLeaderSteps are the next steps of a leader of the image controller.
func (p *acquireScenario) imageLeaderSteps(c *clusterState, who int, visit func(step)) {
	k := c.imageLeaders[who]
	emit := func(what string, change func(*clusterState, *imageLeader)) {
		next := *c
		change(&next, &next.imageLeaders[who])
		p.emitStep(next, visit, func() string { return fmt.Sprint("image leader ", who, " ", what) })
	}
	switch k.pc {
	case noLeader:
		return
	case idle, listed, read:
		if k.pc != listed {
			emit("reads VMs from its cache", func(c *clusterState, k *imageLeader) {
				k.holders = c.listHolders()
				if k.pc == idle {
					k.pc = listed
					return
				}
				p.applyCachedDecision(k)
			})
		}
		if k.pc != read && !c.gone {
			emit("reads the image from its cache", func(c *clusterState, k *imageLeader) {
				k.image, k.storage, k.imageUnchanged = c.imageState, c.storageState, true
				if k.pc == idle {
					k.pc = read
					return
				}
				p.applyCachedDecision(k)
			})
		}
	case confirm:
		emit("reads the image live", func(_ *clusterState, k *imageLeader) {
			if k.pc = relist; !k.imageUnchanged {
				*k = imageLeader{}
			}
		})
	case relist:
		emit("lists VMs live", func(c *clusterState, k *imageLeader) {
			if p.plantedBug != supersedesByCache {
				k.holders = c.listHolders()
			}
			k.storage = c.storageState
			p.applyLiveDecision(k)
		})
	case act:
		what, next := p.performImageAction(*c, who)
		p.emitStep(next, visit, func() string { return fmt.Sprint("image leader ", who, " ", what) })
	}
	if k.pc != idle {
		next := *c
		next.imageLeaders[who] = imageLeader{}
		p.emitFault(next, visit, fmt.Sprint("image leader ", who, " crashes"))
	}
}

func (p *acquireScenario) applyCachedDecision(k *imageLeader) {
	todo := p.decideImageCached(k.image, k.storage, k.holders, false)
	if todo.needsLive {
		k.pc = confirm
		if p.plantedBug != supersedesByCache && p.plantedBug != listsBeforeDeleting && p.plantedBug != listsBeforeServingMoves {
			k.holders = [maxVMs]holderState{} // they are listed again, live
		}
		k.storage = storageState{}
		return
	}
	p.startImageActions(k, todo)
}

func (p *acquireScenario) applyLiveDecision(k *imageLeader) {
	todo := p.decideImageCached(k.image, k.storage, k.holders, true)
	if todo.needsLive {
		panic("a live View must suffice")
	}
	p.startImageActions(k, todo)
}

func (p *acquireScenario) startImageActions(k *imageLeader, todo imageActions) {
	before := *k
	*k = imageLeader{pc: act, imageUnchanged: k.imageUnchanged, todo: todo}
	if p.plantedBug == listsBeforeDeleting || p.plantedBug == listsBeforeServingMoves {
		k.holders = before.holders
	}
	p.finishImageLeader(k)
}

// performImageAction carries out the next write of a decision.
func (p *acquireScenario) performImageAction(c clusterState, who int) (what string, next clusterState) {
	k := &c.imageLeaders[who]
	t := &k.todo
	switch {
	case t.removeFinalizer:
		if k.imageUnchanged && !c.gone {
			c.gone = true
			c.markImageWritten(-1)
		}
		*t, what = imageActions{}, "removes the finalizer"
	case t.createSnapshot.attempt != 0 && (!t.writeStatus || p.plantedBug == createsBeforeStoring):
		if n := t.snapshotNumber; n <= maxSnapshots && c.snapshots[n-1].attempt == 0 {
			c.snapshots[n-1] = t.createSnapshot
		}
		what = fmt.Sprint("creates VolumeSnapshot ", t.snapshotNumber)
		t.createSnapshot, t.snapshotNumber = attemptRef{}, 0
	case t.writeStatus && (c.gone || !k.imageUnchanged && p.plantedBug != storesUnguarded):
		*k = imageLeader{}
		return "stores a status: conflict", c
	case t.writeStatus:
		before := c.status
		c.status, t.writeStatus = t.status, false
		c.begunByOldPlan, t.beginsByOldPlan = c.begunByOldPlan || t.beginsByOldPlan, false
		for _, rev := range knownStatuses[c.status].Revisions {
			c.snapshotsNamed = max(c.snapshotsNamed, snapshotNumber(rev.VolumeSnapshot))
		}
		c.markImageWritten(who)
		what = "stores a status"
		if p.usesEarlyList(&knownStatuses[before], &knownStatuses[c.status]) {
			k.image, k.storage = c.imageState, c.storageState
			p.applyLiveDecision(k)
			return what, c
		}
	case t.attempts != 0:
		a := t.attempts & -t.attempts
		c.attempts, t.attempts = c.attempts&^a, t.attempts&^a
		what = fmt.Sprintf("deletes storage %04b", a)
	case t.snapshots == 0:
		prunes := t.deletesForPrune
		t.deleteImage, t.deletesForPrune, what = false, false, "deletes the image: conflict"
		if (k.imageUnchanged || p.plantedBug == deletesUnguarded) && !c.gone {
			stored := knownStatuses[c.status].Prune
			c.deletedForEndedPrune = c.deletedForEndedPrune || (prunes && !c.deleted && (stored == nil || stored.State != v1alpha1.PrunePending))
			p.requestImageDeletion(&c)
			what = "deletes the image"
		}
	default:
		n := bits.TrailingZeros8(t.snapshots)
		c.snapshots[n] = attemptRef{}
		t.snapshots &^= 1 << n
		what = fmt.Sprint("deletes VolumeSnapshot ", n+1)
	}
	p.finishImageLeader(k)
	return what, c
}

// usesEarlyList reports whether a leader with a planted bug decides by the list of VMs
// from before its last write.
func (p *acquireScenario) usesEarlyList(before, after *v1alpha1.VMDiskImageStatus) bool {
	switch p.plantedBug {
	case listsBeforeDeleting:
		return before.Phase != v1alpha1.PhaseDeleting && after.Phase == v1alpha1.PhaseDeleting
	case listsBeforeServingMoves:
		return before.Serving != nil && after.Serving != nil && *before.Serving != *after.Serving
	default:
		return false
	}
}

func (p *acquireScenario) finishImageLeader(k *imageLeader) {
	t := k.todo
	if t.createSnapshot.attempt == 0 && !t.writeStatus && t.attempts == 0 && t.snapshots == 0 && !t.removeFinalizer && !t.deleteImage {
		*k = imageLeader{}
	}
}
