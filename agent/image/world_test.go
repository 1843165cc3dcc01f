package image_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
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

// state is what the API server holds, or what a cache showed of it.
type state struct {
	img     *v1alpha1.VMDiskImage // nil once it is gone
	slots   []v1alpha1.Slot
	lists   image.Lists
	holders []image.Holder
}

// come has VMs be those of some names. Who stays keeps what it has pinned.
func (w *world) come(names ...string) {
	before := w.holders
	w.holders = named(names...)
	for i := range w.holders {
		for _, h := range before {
			if h.Name == w.holders[i].Name {
				w.holders[i].Pin = h.Pin
			}
		}
	}
}

// acquire has a VM pin what serves, where it may: it has looked live.
func (w *world) acquire(name string) {
	for i := range w.holders {
		h := &w.holders[i]
		if w.img == nil || h.Name != name || h.Pin != nil || w.status().Serving == nil || w.status().Phase == v1alpha1.PhaseDeleting {
			continue
		}
		serving := w.status().Serving
		h.Pin = &v1alpha1.PinnedImage{
			ImageKey: image.KeyOf(w.img), Revision: serving.Revision, Attempt: serving.Attempt,
			PersistentVolumeClaim: serving.PersistentVolumeClaim, VolumeSnapshot: serving.VolumeSnapshot,
		}
	}
}

func (w *world) pinned() []*v1alpha1.PinnedImage {
	var pins []*v1alpha1.PinnedImage
	for _, h := range w.holders {
		if h.Pin != nil {
			pins = append(pins, h.Pin)
		}
	}
	return pins
}

// checkPinned holds what the agent deletes against what VMs are built from (S2).
func (w *world) checkPinned(target image.Target) {
	if w.going {
		return // outside of it
	}
	for _, pin := range w.pinned() {
		require.NotEqual(w.t, pin.VolumeSnapshot, target.Name, "a pinned VolumeSnapshot is deleted")
		if target.Name != pin.PersistentVolumeClaim {
			continue
		}
		claim := w.claim(target.Name)
		require.True(w.t, claim == nil || claim.DeletionTimestamp != nil || claim.Status.Phase == corev1.ClaimLost,
			"%s %s is deleted, which is pinned", target.Kind, target.Name)
	}
}

// named are holders that have pinned nothing.
func named(names ...string) []image.Holder {
	var holders []image.Holder
	for _, name := range names {
		holders = append(holders, image.Holder{Name: name})
	}
	return holders
}

// world is a cluster with one image and who works on it: the agent, around the
// functions that are tested, CDI, the snapshot controller, and people. Nothing
// moves unless a test moves it.
type world struct {
	// ages of slots that are more than the times tell.
	ages map[string]time.Duration
	t    require.TestingT
	now  time.Time
	state
	// cache is what the agent sees unless it reads live.
	cache state

	// policy in force, and the one that ends a disturbance of it.
	policy, usual *policy.Policy

	blocker *image.Blocker
	// going is the image's namespace.
	going bool
	// plan is what the plan says by now, seen what the cache shows of that.
	plan, seen image.Wish
	position   *int32
	withheld   v1alpha1.Reason
	answers    map[string]image.Preflight

	serial int64
	// last is the last decision that was carried out, live whether it took a live View.
	last image.Decision
	live bool
	// created counts the DataVolumes made for each attempt; rounds the attempts
	// made for each round of retries.
	created map[int32]int
	rounds  map[string]map[int32]bool
	// excuses for a new round: what people did, and what was lost.
	excuses int
}

func newWorld(t require.TestingT, img *apitest.ImageBuilder, p policy.Policy) *world {
	w := &world{
		t: t, now: apitest.Epoch.Add(time.Hour), policy: &p,
		answers: map[string]image.Preflight{}, created: map[int32]int{}, rounds: map[string]map[int32]bool{},
	}
	w.img = img.Obj()
	w.sync()
	return w
}

func (w *world) later(d time.Duration) { w.now = w.now.Add(d) }

func (w *world) status() *v1alpha1.VMDiskImageStatus { return &w.img.Status }

// current is the entry of the revision that the spec asks for.
func (w *world) current() *v1alpha1.RevisionStatus { return &w.img.Status.Revisions[0] }

func (w *world) condition(t string) metav1.Condition {
	for _, c := range w.img.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return metav1.Condition{}
}

// sync has the caches catch up.
func (w *world) sync() {
	w.syncImage()
	w.syncSlots()
	w.syncLists()
	w.syncHolders()
	w.syncPlan()
}

func (w *world) syncPlan()    { w.seen = w.plan }
func (w *world) syncImage()   { w.cache.img = w.img.DeepCopy() }
func (w *world) syncSlots()   { w.cache.slots = append([]v1alpha1.Slot(nil), w.slots...) }
func (w *world) syncHolders() { w.cache.holders = append([]image.Holder(nil), w.holders...) }
func (w *world) syncLists()   { w.cache.lists = copyLists(w.lists) }

func copyLists(l image.Lists) image.Lists {
	var c image.Lists
	for i := range l.DataVolumes {
		c.DataVolumes = append(c.DataVolumes, *l.DataVolumes[i].DeepCopy())
	}
	for i := range l.Claims {
		c.Claims = append(c.Claims, *l.Claims[i].DeepCopy())
	}
	for i := range l.Pods {
		c.Pods = append(c.Pods, *l.Pods[i].DeepCopy())
	}
	for i := range l.Snapshots {
		c.Snapshots = append(c.Snapshots, *l.Snapshots[i].DeepCopy())
	}
	return c
}

func (w *world) view(live bool) image.View {
	from, plan := w.cache, w.seen
	if live {
		from, plan = w.state, w.plan
	}
	w.serial++
	img := from.img.DeepCopy()
	key := v1alpha1.OrderingKey{Time: metav1.NewTime(w.now.Truncate(time.Second)), Sequence: w.serial}
	arrival := key
	arrival.Time = img.CreationTimestamp
	return image.View{
		Now: w.now, Ages: w.ages, Image: img, Policy: w.policy, Slots: append([]v1alpha1.Slot(nil), from.slots...),
		Attempts: image.ByAttempt(copyLists(from.lists)), Holders: from.holders, Blocker: w.blocker,
		Preflight: w.answers[question(img)], Position: w.position, Withheld: w.withheld,
		NamespaceGoing: w.going, Plan: plan,
		ArrivalKey: arrival, FreshKey: key, Live: live,
	}
}

// question is what a source is asked for an image: one URL, before one attempt.
func question(img *v1alpha1.VMDiskImage) string {
	return fmt.Sprint(img.Spec.URL, "#", img.Status.LastAttempt+1)
}

// answer has the source of the image answer.
func (w *world) answer(p image.Preflight) {
	p.Known = true
	w.answers[question(w.img)] = p
}

// reconcile decides with caches that have caught up.
func (w *world) reconcile() image.Decision {
	w.sync()
	w.reconcileCached(allWrites)
	w.sync()
	return w.last
}

// allWrites is more than a decision has writes.
const allWrites = 100

// reconcileCached decides by the caches as they are, live where that is asked
// for, and carries out as many writes as the agent lives for.
func (w *world) reconcileCached(writes int) {
	if w.cache.img == nil {
		return
	}
	v := w.view(false)
	w.live = false
	d := decideChecked(w.t, v)
	if d.NeedsLive {
		if w.img == nil {
			return
		}
		w.live = true
		v = w.view(true)
		d = decideChecked(w.t, v)
		require.False(w.t, d.NeedsLive, "a live View has to do")
	}
	w.last = d
	w.carryOut(v, d, writes)
}

func (w *world) carryOut(v image.View, d image.Decision, writes int) {
	was := v.Image.ResourceVersion
	conflict := func() bool { return w.img == nil || w.img.ResourceVersion != was }
	die := func() bool { writes--; return writes < 0 }
	if d.RemoveFinalizer {
		require.True(w.t, v.Live)
		if conflict() || die() {
			return
		}
		require.Empty(w.t, w.slots, "let go while it holds a slot")
		require.Equal(w.t, image.Lists{}, w.lists, "let go while something of it is left")
		w.img = nil
		return
	}
	if d.AddFinalizer {
		if conflict() || die() {
			return
		}
		w.img.Finalizers = append(w.img.Finalizers, v1alpha1.FinalizerImage)
		w.touch()
		return // the event of it brings the image back
	}
	if d.CreateSnapshot != nil {
		if die() {
			return
		}
		w.createSnapshot(d.CreateSnapshot)
	}
	if !sameJSON(d.Status, v.Image.Status) {
		if conflict() || die() {
			return
		}
		w.store(d.Status)
		was = w.img.ResourceVersion
	}
	for _, target := range d.Delete {
		if die() {
			return
		}
		w.checkPinned(target)
		w.delete(target)
	}
	if d.DeleteImage && !conflict() && !die() {
		w.deleteImage()
	}
}

// store keeps a status as the API server does, seconds and all.
func (w *world) store(next v1alpha1.VMDiskImageStatus) {
	data, err := json.Marshal(next)
	require.NoError(w.t, err)
	var st v1alpha1.VMDiskImageStatus
	require.NoError(w.t, json.Unmarshal(data, &st))
	checkStored(w.t, w.img, &st)
	w.img.Status = st
	w.touch()
}

func (w *world) touch() {
	n, _ := strconv.Atoi(w.img.ResourceVersion)
	w.img.ResourceVersion = strconv.Itoa(n + 1)
}

// edit changes the spec.
func (w *world) edit(change func(*v1alpha1.VMDiskImageSpec)) {
	change(&w.img.Spec)
	w.img.Generation++
	w.excuses++
	w.touch()
}

func (w *world) setURL(url string) { w.edit(func(s *v1alpha1.VMDiskImageSpec) { s.URL = url }) }

// retry sets the annotation that starts over.
func (w *world) retry(token string) {
	metav1.SetMetaDataAnnotation(&w.img.ObjectMeta, v1alpha1.AnnotationRetry, token)
	w.excuses++
	w.touch()
}

// hand has somebody label the image as one of the plan, or of nobody.
func (w *world) hand(planned string) {
	w.img.Labels = map[string]string{v1alpha1.LabelPlanned: planned}
	w.touch()
}

// deleteImage is what kubectl delete does; the API server raises the generation.
func (w *world) deleteImage() {
	switch {
	case w.img.DeletionTimestamp != nil:
	case len(w.img.Finalizers) == 0:
		w.img = nil
	default:
		at := metav1.NewTime(w.now)
		w.img.DeletionTimestamp = &at
		w.img.Generation++
		w.touch()
	}
}

// ledger takes the SyncLedger a step further, as its controller would.
func (w *world) ledger() queue.Step {
	v := queue.View{Now: w.now, Ledger: &v1alpha1.SyncLedgerStatus{Slots: w.slots}, Facts: map[string]queue.Facts{}}
	if w.policy != nil {
		v.Budget = w.policy.Concurrency
	}
	listed := map[string]bool{}
	for _, slot := range w.slots {
		listed[slot.DataVolume] = true
		v.Facts[queue.DataVolumeKey(slot)] = w.facts(slot)
	}
	for i := range w.lists.DataVolumes {
		dv := &w.lists.DataVolumes[i]
		if listed[dv.Name] || dv.Status.Phase == cdiv1.Succeeded {
			continue
		}
		slot := slotOf(dv)
		wanted := w.img != nil && image.MayRun(w.img, slot)
		v.Unlisted = append(v.Unlisted, queue.Unlisted{Slot: slot, Wanted: wanted})
		if !wanted {
			w.delete(image.Target{Kind: image.DataVolume, Name: dv.Name, UID: dv.UID})
		}
	}
	if w.img != nil {
		if c, may := image.CandidateOf(w.img); may {
			v.Candidates = []queue.Candidate{c}
		}
	}
	step := queue.Next(v)
	w.slots = step.Slots
	return step
}

func slotOf(dv *cdiv1.DataVolume) v1alpha1.Slot {
	n, _ := strconv.Atoi(dv.Labels[v1alpha1.LabelAttempt])
	return v1alpha1.Slot{
		Image: v1alpha1.ImageKey{
			Namespace: dv.Namespace, Name: dv.Annotations[v1alpha1.AnnotationImageName],
			UID: types.UID(dv.Labels[v1alpha1.LabelImageUID]),
		},
		Revision: dv.Labels[v1alpha1.LabelRevision], Attempt: int32(n), DataVolume: dv.Name, StartedAt: dv.CreationTimestamp,
	}
}

func (w *world) facts(slot v1alpha1.Slot) queue.Facts {
	f := queue.Facts{ImageGone: w.img == nil}
	if w.img != nil {
		f.Outcome, f.Begun = image.OutcomeOf(w.img, slot)
	}
	if o := image.ByAttempt(w.lists)[slot.Attempt]; o != nil {
		f.DataVolume, f.Complete, f.Remains = o.DataVolume != nil, o.Complete(), o.Importing()
	}
	return f
}

// rollForward creates the DataVolumes of slots that have none.
func (w *world) rollForward() {
	for _, slot := range w.slots {
		if w.img == nil || !queue.ShouldCreate(slot, w.facts(slot)) || w.img.Spec.Revision() != slot.Revision {
			continue
		}
		require.Greater(w.t, slot.Attempt, w.img.Status.LastAttempt, "attempt %d is begun a second time", slot.Attempt)
		for _, e := range w.img.Status.Revisions {
			if e.Revision == slot.Revision {
				w.count(fmt.Sprint(e.Revision, " after ", e.AttemptsBefore), slot.Attempt)
			}
		}
		dv := image.NewDataVolume(w.img, slot)
		dv.UID = w.uid()
		dv.CreationTimestamp = metav1.NewTime(w.now)
		w.lists.DataVolumes = append(w.lists.DataVolumes, *dv)
		claim := apitest.Claim(dv.Namespace+"/"+dv.Name).OwnedBy("DataVolume", dv.Name).Obj()
		claim.UID, claim.Labels = w.uid(), dv.Labels
		w.lists.Claims = append(w.lists.Claims, *claim)
		w.created[slot.Attempt]++
	}
}

// count notes an attempt of a round, and that people or losses, nobody else,
// start rounds.
func (w *world) count(round string, attempt int32) {
	if w.rounds[round] == nil {
		w.rounds[round] = map[int32]bool{}
	}
	w.rounds[round][attempt] = true
	if w.policy != nil { // without one, the default decides
		require.LessOrEqual(w.t, len(w.rounds[round]), int(w.policy.RetryLimit)+1, "too many attempts of %s", round)
	}
	require.LessOrEqual(w.t, len(w.rounds), 1+w.excuses, "started over without a reason: %v", w.rounds)
}

func (w *world) uid() types.UID {
	w.serial++
	return types.UID(fmt.Sprint("uid-", w.serial))
}

// createSnapshot creates a VolumeSnapshot, unless its name is taken.
func (w *world) createSnapshot(want *snapshotv1.VolumeSnapshot) {
	for i := range w.lists.Snapshots {
		if w.lists.Snapshots[i].Name == want.Name {
			return
		}
	}
	snap := want.DeepCopy()
	snap.UID = w.uid()
	w.lists.Snapshots = append(w.lists.Snapshots, *snap)
}
