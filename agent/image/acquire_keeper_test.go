package image_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// keeping is what is left to do of a Decision on the image.
type keeping struct {
	needsLive bool
	create    taken
	write     bool
	status    uint16
	// deletes are attempts and snapshots, as bits.
	attempts, snapshots uint8
	letGo               bool
	expires, prunes     bool
}

// What the model has met, by number. Number 0 is none, or empty.
var (
	statuses  = []v1alpha1.VMDiskImageStatus{{}}
	numbers   = map[string]uint16{}
	decisions = map[imageQuestion]keeping{}
)

// store gives a status a number, without what nothing is decided by.
func store(st *v1alpha1.VMDiskImageStatus) uint16 {
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
	for _, c := range st.Conditions {
		if c.Type == v1alpha1.ConditionImported {
			kept.Conditions = []metav1.Condition{{Type: c.Type, Status: c.Status, Reason: c.Reason}}
		}
	}
	data, err := json.Marshal(kept)
	if err != nil {
		panic(err)
	}
	n, known := numbers[string(data)]
	if !known {
		var own v1alpha1.VMDiskImageStatus
		if err := json.Unmarshal(data, &own); err != nil {
			panic(err)
		}
		n = uint16(len(statuses))
		numbers[string(data)] = n
		statuses = append(statuses, own)
	}
	return n
}

var imageKey = v1alpha1.ImageKey{Namespace: "ns", Name: "a", UID: "uid-of-a"}

// object is the VMDiskImage.
func (p *play) object(i imageObject) *v1alpha1.VMDiskImage {
	url, class, _ := strings.Cut(p.specs[i.edits], "/")
	generation := int64(1) + int64(i.edits)
	b := apitest.Image("ns/a").WithUID(imageKey.UID).WithURL("https://images.example.com/" + url).WithSnapshotClass(class).
		WithFinalizer().WithStatus(*statuses[i.status].DeepCopy())
	if i.deleted {
		generation++
		b.Deleted(apitest.Epoch)
	}
	img := b.WithGeneration(generation).Obj()
	img.Labels = map[string]string{v1alpha1.LabelPlanned: image.Planned}
	return img
}

func (p *play) classOf(edits uint8) string {
	_, class, _ := strings.Cut(p.specs[edits], "/")
	return class
}

func (p *play) revision(edits uint8) string {
	return p.object(imageObject{edits: edits}).Spec.Revision()
}

func (p *play) slotOf(t taken) v1alpha1.Slot {
	return v1alpha1.Slot{
		Image: imageKey, Revision: p.revision(t.by), Attempt: int32(t.attempt),
		DataVolume: queue.DataVolumeName(imageKey, int32(t.attempt)), StartedAt: metav1.NewTime(apitest.Epoch),
	}
}

func (p *play) isOver(i imageObject, slot taken) bool {
	outcome, _ := image.OutcomeOf(p.object(i), p.slotOf(slot))
	return outcome != ""
}

// clock gives every snapshot a name of its own: it moves on with each.
func clock(made uint8) time.Time {
	return apitest.Epoch.Add(time.Hour + time.Duration(made)*time.Millisecond)
}

func snapshotOf(attempt, number uint8) string {
	return queue.DataVolumeName(imageKey, int32(attempt)) + "-" + strconv.FormatInt(clock(number-1).UnixMilli(), 36)
}

// snapshotName is the number of a snapshot, by its name.
func snapshotName(name string) uint8 {
	i := strings.LastIndex(name, "-")
	if name == "" || i < 0 {
		return 0
	}
	at, err := strconv.ParseInt(name[i+1:], 36, 64)
	if err != nil {
		panic(err)
	}
	return uint8(at-clock(0).UnixMilli()) + 1
}

func (p *play) objects(s storage) map[int32]*image.Objects {
	var l image.Lists
	for a := uint8(1); a <= 8; a++ {
		if s.attempts&(1<<(a-1)) == 0 {
			continue
		}
		slot := p.slotOf(taken{attempt: a})
		dv := image.NewDataVolume(p.object(imageObject{}), slot)
		dv.UID, dv.Status.Phase = types.UID("uid-of-"+dv.Name), cdiv1.Succeeded
		claim := apitest.Claim("ns/"+dv.Name).OwnedBy("DataVolume", dv.Name).Bound("1Gi").ImporterPhase(corev1.PodSucceeded).Obj()
		claim.UID, claim.Labels = "uid-of-claim", dv.Labels
		l.DataVolumes, l.Claims = append(l.DataVolumes, *dv), append(l.Claims, *claim)
	}
	for n, t := range s.snapshots {
		if t.attempt == 0 {
			continue
		}
		snap := readyVolumeSnapshot(snapshotOf(t.attempt, uint8(n)+1), p.classOf(t.by))
		snap.Labels = image.Labels(imageKey, "", int32(t.attempt))
		l.Snapshots = append(l.Snapshots, *snap)
	}
	return image.ByAttempt(l)
}

// imageQuestion is all that a decision on the image rests on.
type imageQuestion struct {
	play    string
	flaw    flaw
	image   imageObject
	storage storage
	holders [mostMachines]held
	live    bool
}

// keep asks image.Decide.
func (p *play) keep(i imageObject, s storage, h [mostMachines]held, live bool) keeping {
	q := imageQuestion{strings.Join(p.specs, " "), p.flaw, i, s, h, live}
	todo, known := decisions[q]
	if !known {
		todo = p.decideImage(i, s, h, live)
		decisions[q] = todo
	}
	return todo
}

func (p *play) decideImage(i imageObject, s storage, h [mostMachines]held, live bool) keeping {
	rules := policy.Default()
	rules.Preflight = false
	v := image.View{
		Now: clock(s.made), Image: p.object(i), Policy: &rules, Attempts: p.objects(s),
		Preflight:  image.Preflight{Known: true},
		ArrivalKey: v1alpha1.OrderingKey{Time: metav1.NewTime(apitest.Epoch)}, FreshKey: v1alpha1.OrderingKey{Time: metav1.NewTime(apitest.Epoch)},
		Live: live,
	}
	if s.retired {
		v.Plan.Retired = new(time.Duration)
	}
	if s.pruned != 0 {
		v.Plan.Prune = p.prune(s.pruned)
	}
	if s.slot.attempt > 0 {
		v.Slots = []v1alpha1.Slot{p.slotOf(s.slot)}
	}
	for n, m := range h {
		if !m.there {
			continue
		}
		holder := image.Holder{Name: fmt.Sprint("ns/", n)}
		if m.pin != 0 && p.flaw != retiresUnlisted {
			holder.Pin = p.pinned(m.pin)
		}
		v.Holders = append(v.Holders, holder)
	}
	v.NamespaceGoing = i.going && i.deleted && len(v.Holders) > 0
	unmarked := p.flaw == tearsDownUnmarked && live && i.deleted && v.Image.Status.Phase == v1alpha1.PhaseDeleting && len(v.Holders) == 0
	v.Image.Status.TearDown = v.Image.Status.TearDown || unmarked

	d := image.Decide(v)
	if unmarked {
		d.Status.TearDown = false
	}
	if d.NeedsLive {
		return keeping{needsLive: true}
	}
	if d.RemoveFinalizer {
		return keeping{letGo: true}
	}
	todo := keeping{status: store(&d.Status), expires: d.DeleteImage, prunes: d.Pruned}
	todo.write = todo.status != i.status
	if d.CreateSnapshot != nil {
		todo.create = taken{attempt: attemptIn(d.CreateSnapshot.Labels), by: i.edits}
	}
	for _, t := range d.Delete {
		if t.Kind == image.VolumeSnapshot {
			todo.snapshots |= 1 << (snapshotName(t.Name) - 1)
			continue
		}
		for a := uint8(1); a <= 8; a++ {
			if t.Name == queue.DataVolumeName(imageKey, int32(a)) {
				todo.attempts |= 1 << (a - 1)
			}
		}
	}
	return todo
}

// prune is an ImagePrune of the first source, without an undo window: that time passes
// at any moment is all that one would add. That the image was referenced since it was
// reported stands against nothing here, so that more is deleted.
func (p *play) prune(number uint8) *v1alpha1.PlannedPrune {
	return &v1alpha1.PlannedPrune{
		Namespace: imageKey.Namespace, Name: imageKey.Name, ImageUID: imageKey.UID, Revision: p.revision(0), UID: pruneUID(number),
		UnreferencedSince: math.MaxInt64, Others: true,
	}
}

func pruneUID(number uint8) types.UID { return types.UID(fmt.Sprint("prune-", number)) }

func attemptIn(labels map[string]string) uint8 {
	n, err := strconv.Atoi(labels[v1alpha1.LabelAttempt])
	if err != nil {
		panic(err)
	}
	return uint8(n)
}

// keeperMoves are what a leader of the images' controller can do next.
func (p *play) keeperMoves(c *cluster, who int, do func(step)) {
	k := c.keepers[who]
	emit := func(what string, change func(*cluster, *keeper)) {
		next := *c
		change(&next, &next.keepers[who])
		p.emit(next, do, func() string { return fmt.Sprint("keeper ", who, " ", what) })
	}
	switch k.pc {
	case nobody:
		return
	case idle, listed, read:
		if k.pc != listed {
			emit("sees machines in its cache", func(c *cluster, k *keeper) {
				k.holders = c.holders()
				if k.pc == idle {
					k.pc = listed
					return
				}
				p.decided(k)
			})
		}
		if k.pc != read && !c.gone {
			emit("sees the image in its cache", func(c *cluster, k *keeper) {
				k.image, k.storage, k.fresh = c.imageObject, c.storage, true
				if k.pc == idle {
					k.pc = read
					return
				}
				p.decided(k)
			})
		}
	case confirm:
		emit("reads the image live", func(_ *cluster, k *keeper) {
			if k.pc = relist; !k.fresh {
				*k = keeper{}
			}
		})
	case relist:
		emit("lists machines live", func(c *cluster, k *keeper) {
			if p.flaw != retiresByCache {
				k.holders = c.holders()
			}
			k.storage = c.storage
			p.decidedLive(k)
		})
	case act:
		what, next := p.keeperActs(*c, who)
		p.emit(next, do, func() string { return fmt.Sprint("keeper ", who, " ", what) })
	}
	if k.pc != idle {
		next := *c
		next.keepers[who] = keeper{}
		do(step{next: next, fault: true, what: func() string { return fmt.Sprint("keeper ", who, " crashes") }})
	}
}

func (p *play) decided(k *keeper) {
	todo := p.keep(k.image, k.storage, k.holders, false)
	if todo.needsLive {
		k.pc = confirm
		if p.flaw != retiresByCache && p.flaw != listsBeforeMark && p.flaw != listsBeforeServingMoves {
			k.holders = [mostMachines]held{} // they are listed again
		}
		k.storage = storage{}
		return
	}
	p.begin(k, todo)
}

func (p *play) decidedLive(k *keeper) {
	todo := p.keep(k.image, k.storage, k.holders, true)
	if todo.needsLive {
		panic("a live View has to do")
	}
	p.begin(k, todo)
}

func (p *play) begin(k *keeper, todo keeping) {
	before := *k
	*k = keeper{pc: act, fresh: k.fresh, todo: todo}
	if p.flaw == listsBeforeMark || p.flaw == listsBeforeServingMoves {
		k.holders = before.holders
	}
	p.finishIfDone(k)
}

// keeperActs carries out the next write of a decision.
func (p *play) keeperActs(c cluster, who int) (what string, next cluster) {
	k := &c.keepers[who]
	t := &k.todo
	switch {
	case t.letGo:
		if k.fresh && !c.gone {
			c.gone = true
			c.changed(-1)
		}
		*t, what = keeping{}, "removes the finalizer"
	case t.create.attempt != 0:
		if n := c.made; n < mostSnapshots {
			c.snapshots[n] = t.create
			c.made++
		}
		t.create, what = taken{}, "creates a VolumeSnapshot"
	case t.write && (c.gone || !k.fresh && p.flaw != storesUnguarded):
		*k = keeper{}
		return "stores a status: conflict", c
	case t.write:
		before := c.status
		c.status, t.write = t.status, false
		c.changed(who)
		what = "stores a status"
		if p.earlyList(&statuses[before], &statuses[c.status]) {
			k.image, k.storage = c.imageObject, c.storage
			p.decidedLive(k)
			return what, c
		}
	case t.attempts != 0:
		a := t.attempts & -t.attempts
		c.attempts, t.attempts = c.attempts&^a, t.attempts&^a
		what = fmt.Sprintf("deletes storage %04b", a)
	case t.snapshots == 0:
		prunes := t.prunes
		t.expires, t.prunes, what = false, false, "deletes the image: conflict"
		if (k.fresh || p.flaw == deletesUnguarded) && !c.gone {
			stored := statuses[c.status].Prune
			c.wronged = c.wronged || (prunes && !c.deleted && (stored == nil || stored.State != v1alpha1.PrunePending))
			p.remove(&c)
			what = "deletes the image"
		}
	default:
		n := bits.TrailingZeros8(t.snapshots)
		c.snapshots[n] = taken{}
		t.snapshots &^= 1 << n
		what = fmt.Sprint("deletes VolumeSnapshot ", n+1)
	}
	p.finishIfDone(k)
	return what, c
}

// earlyList tells that a leader with that flaw goes on by the list of machines
// from before what it has just stored.
func (p *play) earlyList(before, after *v1alpha1.VMDiskImageStatus) bool {
	switch p.flaw {
	case listsBeforeMark:
		return before.Phase != v1alpha1.PhaseDeleting && after.Phase == v1alpha1.PhaseDeleting
	case listsBeforeServingMoves:
		return before.Serving != nil && after.Serving != nil && *before.Serving != *after.Serving
	default:
		return false
	}
}

func (p *play) finishIfDone(k *keeper) {
	t := k.todo
	if t.create.attempt == 0 && !t.write && t.attempts == 0 && t.snapshots == 0 && !t.letGo && !t.expires {
		*k = keeper{}
	}
}
