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
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// clusterSnapshot is the state of the API server, or of a cache.
type clusterSnapshot struct {
	img     *v1alpha1.VMDiskImage // nil once gone
	slots   []v1alpha1.Slot
	lists   image.ObjectLists
	holders []image.Holder
}

// setHolders replaces the VMs. Those that stay keep their pins.
func (w *simulation) setHolders(names ...string) {
	before := w.holders
	w.holders = holdersNamed(names...)
	for i := range w.holders {
		for _, h := range before {
			if h.Name == w.holders[i].Name {
				w.holders[i].Pins = h.Pins
			}
		}
	}
}

// acquireImage makes a VM pin the serving revision after a live read.
func (w *simulation) acquireImage(name string) {
	for i := range w.holders {
		h := &w.holders[i]
		if w.img == nil || h.Name != name || h.Pins != nil || w.status().Serving == nil || w.status().Phase == v1alpha1.PhaseDeleting {
			continue
		}
		serving := w.status().Serving
		h.Pins = []*v1alpha1.PinnedImage{{
			ImageKey: image.KeyOf(w.img), Revision: serving.Revision, Attempt: serving.Attempt,
			PersistentVolumeClaim: serving.PersistentVolumeClaim, VolumeSnapshot: serving.VolumeSnapshot,
		}}
	}
}

func (w *simulation) listPins() []*v1alpha1.PinnedImage {
	var pins []*v1alpha1.PinnedImage
	for _, h := range w.holders {
		pins = append(pins, h.Pins...)
	}
	return pins
}

// checkPinned: the agent deletes no storage that VMs are built from (S2).
func (w *simulation) checkPinned(target image.DeleteTarget) {
	if w.namespaceTerminating {
		return // S2 does not apply
	}
	for _, pin := range w.listPins() {
		require.NotEqual(w.t, pin.VolumeSnapshot, target.Name, "a pinned VolumeSnapshot is deleted")
		if target.Name != pin.PersistentVolumeClaim {
			continue
		}
		claim := w.findClaim(target.Name)
		require.True(w.t, claim == nil || claim.DeletionTimestamp != nil || claim.Status.Phase == corev1.ClaimLost,
			"%s %s is deleted, which is pinned", target.Kind, target.Name)
	}
}

// holdersNamed returns holders without pins.
func holdersNamed(names ...string) []image.Holder {
	var holders []image.Holder
	for _, name := range names {
		holders = append(holders, image.Holder{Name: name})
	}
	return holders
}

// simulation is a cluster with one image and its participants: the agent, CDI, the
// snapshot controller and people. Nothing happens unless a test makes it happen.
type simulation struct {
	// slotAges that exceed what startedAt tells.
	slotAges map[string]time.Duration
	t        require.TestingT
	now      time.Time
	clusterSnapshot
	// cache is what the agent reads unless it reads live.
	cache clusterSnapshot

	// policy in force, and the one that is restored in the end.
	policy, undisturbedPolicy *policy.Policy

	blocker *image.Blocker
	// childRefusal: the API server refuses to create snapshots.
	childRefusal         string
	namespaceTerminating bool
	// plan in force, and as the cache shows it.
	plan, cachedPlan image.PlannedState
	queuePosition    *int32
	withheldReason   v1alpha1.Reason
	opening          *policy.Opening
	clockAhead       time.Duration
	probeAnswers     map[string]image.PreflightResult

	serial int64
	// lastDecision that was carried out, and whether it needed a live View.
	lastDecision image.Decision
	lastViewLive bool
	// createdDataVolumes per attempt, and the attempts of each round of retries.
	createdDataVolumes map[int32]int
	attemptsByRound    map[string]map[int32]bool
	// retryLimitAtStart is the one in force when an attempt got its slot.
	retryLimitAtStart map[int32]int32
	// excuses for a new round of retries: edits by people, and losses.
	excuses int
}

func newSimulation(t require.TestingT, img *apitest.ImageBuilder, p policy.Policy) *simulation {
	w := &simulation{
		t: t, now: apitest.Epoch.Add(time.Hour), policy: &p,
		probeAnswers: map[string]image.PreflightResult{}, createdDataVolumes: map[int32]int{}, attemptsByRound: map[string]map[int32]bool{}, retryLimitAtStart: map[int32]int32{},
	}
	w.img = img.Obj()
	w.syncCaches()
	return w
}

func (w *simulation) advanceClock(d time.Duration) { w.now = w.now.Add(d) }

func (w *simulation) status() *v1alpha1.VMDiskImageStatus { return &w.img.Status }

// currentRevision returns the entry of the revision of the spec.
func (w *simulation) currentRevision() *v1alpha1.RevisionStatus { return &w.img.Status.Revisions[0] }

func (w *simulation) condition(t string) metav1.Condition {
	for _, c := range w.img.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return metav1.Condition{}
}

// syncCaches updates all caches.
func (w *simulation) syncCaches() {
	w.syncImage()
	w.syncSlots()
	w.syncLists()
	w.syncHolders()
	w.syncPlan()
}

func (w *simulation) syncPlan()    { w.cachedPlan = w.plan }
func (w *simulation) syncImage()   { w.cache.img = w.img.DeepCopy() }
func (w *simulation) syncSlots()   { w.cache.slots = append([]v1alpha1.Slot(nil), w.slots...) }
func (w *simulation) syncHolders() { w.cache.holders = append([]image.Holder(nil), w.holders...) }
func (w *simulation) syncLists()   { w.cache.lists = copyLists(w.lists) }

func copyLists(l image.ObjectLists) image.ObjectLists {
	var c image.ObjectLists
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

func (w *simulation) buildView(live bool) image.View {
	from, plan := w.cache, w.cachedPlan
	if live {
		from, plan = w.clusterSnapshot, w.plan
	}
	w.serial++
	img := from.img.DeepCopy()
	key := v1alpha1.OrderingKey{Time: metav1.NewTime(w.now.Truncate(time.Second)), Sequence: w.serial}
	arrival := key
	arrival.Time = img.CreationTimestamp
	return image.View{
		Now: w.now, SlotAges: w.slotAges, Image: img, Policy: w.policy, Slots: append([]v1alpha1.Slot(nil), from.slots...),
		ObjectsByAttempt: image.GroupByAttempt(copyLists(from.lists)), Holders: from.holders, Blocker: w.blocker, ChildRefusal: w.childRefusal,
		Preflight: w.probeAnswers[probeQuestion(img)], QueuePosition: w.queuePosition, WithheldReason: w.withheldReason, Opening: w.opening,
		NamespaceTerminating: w.namespaceTerminating, Plan: plan,
		ArrivalKey: arrival, EndOfQueueKey: key, ClockAhead: w.clockAhead, Live: live,
	}
}

// probeQuestion identifies a probe: a URL and an attempt.
func probeQuestion(img *v1alpha1.VMDiskImage) string {
	return fmt.Sprint(img.Spec.URL, "#", img.Status.LastAttempt+1)
}

// answerProbe makes the source of the image answer.
func (w *simulation) answerProbe(p image.PreflightResult) {
	p.Known = true
	w.probeAnswers[probeQuestion(w.img)] = p
}

// reconcile decides with current caches.
func (w *simulation) reconcile() image.Decision {
	w.syncCaches()
	w.reconcileCached(allWrites)
	w.syncCaches()
	return w.lastDecision
}

// allWrites exceeds the number of writes of a decision.
const allWrites = 100

// reconcileCached decides by the caches as they are, live where requested. The agent
// crashes after a number of writes.
func (w *simulation) reconcileCached(writes int) {
	if w.cache.img == nil {
		return
	}
	v := w.buildView(false)
	w.lastViewLive = false
	d := decideChecked(w.t, v)
	if d.NeedsLiveRead {
		if w.img == nil {
			return
		}
		w.lastViewLive = true
		v = w.buildView(true)
		d = decideChecked(w.t, v)
		require.False(w.t, d.NeedsLiveRead, "a live View must suffice")
	}
	w.lastDecision = d
	w.carryOutDecision(v, d, writes)
}

func (w *simulation) carryOutDecision(v image.View, d image.Decision, writes int) {
	was := v.Image.ResourceVersion
	conflict := func() bool { return w.img == nil || w.img.ResourceVersion != was }
	die := func() bool { writes--; return writes < 0 }
	if d.RemoveFinalizer {
		require.True(w.t, v.Live)
		if conflict() || die() {
			return
		}
		require.Empty(w.t, w.slots, "the finalizer is removed while a slot exists")
		require.Equal(w.t, image.ObjectLists{}, w.lists, "the finalizer is removed while objects exist")
		w.img = nil
		return
	}
	if d.AddFinalizer {
		if conflict() || die() {
			return
		}
		w.img.Finalizers = append(w.img.Finalizers, v1alpha1.FinalizerImage)
		w.bumpResourceVersion()
		return // its event triggers the next decision
	}
	if !sameJSON(d.Status, v.Image.Status) {
		if conflict() || die() {
			return
		}
		w.storeStatus(d.Status)
		was = w.img.ResourceVersion
	}
	if d.CreateSnapshot != nil && w.childRefusal == "" {
		if die() {
			return
		}
		w.createSnapshot(d.CreateSnapshot)
	}
	for _, target := range d.Delete {
		if die() {
			return
		}
		w.checkPinned(target)
		w.markForDeletion(target)
	}
	if d.DeleteImage && !conflict() && !die() {
		w.deleteImage()
	}
}

// storeStatus stores a status as the API server does, with times in full seconds.
func (w *simulation) storeStatus(next v1alpha1.VMDiskImageStatus) {
	schemacheck.RequireStorable(w.t, "VMDiskImage", &next)
	data, err := json.Marshal(next)
	require.NoError(w.t, err)
	var st v1alpha1.VMDiskImageStatus
	require.NoError(w.t, json.Unmarshal(data, &st))
	checkStored(w.t, w.img, &st)
	w.img.Status = st
	w.bumpResourceVersion()
}

func (w *simulation) bumpResourceVersion() {
	n, _ := strconv.Atoi(w.img.ResourceVersion)
	w.img.ResourceVersion = strconv.Itoa(n + 1)
}

// editSpec changes the spec.
func (w *simulation) editSpec(change func(*v1alpha1.VMDiskImageSpec)) {
	change(&w.img.Spec)
	w.img.Generation++
	w.excuses++
	w.bumpResourceVersion()
}

func (w *simulation) setURL(url string) {
	w.editSpec(func(s *v1alpha1.VMDiskImageSpec) { s.URL = url })
}

// requestRetry sets the retry annotation.
func (w *simulation) requestRetry(token string) {
	metav1.SetMetaDataAnnotation(&w.img.ObjectMeta, v1alpha1.AnnotationRetry, token)
	w.excuses++
	w.bumpResourceVersion()
}

// requestPlanRetry makes a plan that starts the image over.
func (w *simulation) requestPlanRetry(token string) {
	w.plan = image.PlannedState{Keep: true, Retry: token}
	w.excuses++
}

// setPlannedLabel sets the label that makes the image a planned one.
func (w *simulation) setPlannedLabel(planned string) {
	w.img.Labels = map[string]string{v1alpha1.LabelPlanned: planned}
	w.bumpResourceVersion()
}

// deleteImage deletes the image; the API server raises the generation.
func (w *simulation) deleteImage() {
	switch {
	case w.img.DeletionTimestamp != nil:
	case len(w.img.Finalizers) == 0:
		w.img = nil
	default:
		at := metav1.NewTime(w.now)
		w.img.DeletionTimestamp = &at
		w.img.Generation++
		w.bumpResourceVersion()
	}
}

// stepLedger makes one decision on the SyncLedger, as its controller does.
func (w *simulation) stepLedger() ledger.Decision {
	v := ledger.View{Now: w.now, Ledger: &v1alpha1.SyncLedgerStatus{Slots: w.slots}, Facts: map[string]ledger.SlotFacts{}}
	if w.policy != nil {
		v.Budget = w.policy.Concurrency
	}
	listed := map[string]bool{}
	for _, slot := range w.slots {
		listed[slot.DataVolume] = true
		v.Facts[ledger.DataVolumeKey(slot)] = w.slotFacts(slot)
	}
	for i := range w.lists.DataVolumes {
		dv := &w.lists.DataVolumes[i]
		if listed[dv.Name] || dv.Status.Phase == cdiv1.Succeeded {
			continue
		}
		slot := slotOf(dv)
		wanted := w.img != nil && image.IsAdoptable(w.img, slot)
		v.Unlisted = append(v.Unlisted, ledger.UnlistedDataVolume{Slot: slot, Adoptable: wanted})
		if !wanted {
			w.markForDeletion(image.DeleteTarget{Kind: image.KindDataVolume, Name: dv.Name, UID: dv.UID})
		}
	}
	if w.img != nil {
		if c, may := image.CandidateOf(w.img, w.policy); may {
			v.Candidates = []ledger.Candidate{c}
		}
	}
	step := ledger.Decide(v)
	w.slots = step.Slots
	for _, slot := range step.Admitted {
		require.Contains(w.t, w.img.Finalizers, v1alpha1.FinalizerImage, "an image that can vanish at once gets a slot")
		w.retryLimitAtStart[slot.Attempt] = w.policy.RetryLimit // without a policy the budget is 0
	}
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

func (w *simulation) slotFacts(slot v1alpha1.Slot) ledger.SlotFacts {
	f := ledger.SlotFacts{ImageGone: w.img == nil}
	if w.img != nil {
		f.Outcome, f.Started = image.OutcomeOf(w.img, slot)
	}
	if o := image.GroupByAttempt(w.lists)[slot.Attempt]; o != nil {
		f.DataVolumeExists, f.ImportComplete, f.ObjectsRemain = o.DataVolume != nil, o.ImportComplete(), o.CanDownload()
	}
	return f
}

// createMissingDataVolumes creates the DataVolumes of slots that have none.
func (w *simulation) createMissingDataVolumes() {
	for _, slot := range w.slots {
		if w.img == nil || !ledger.ShouldCreateDataVolume(slot, w.slotFacts(slot)) || w.img.Spec.Revision() != slot.Revision {
			continue
		}
		require.Greater(w.t, slot.Attempt, w.img.Status.LastAttempt, "attempt %d is started a second time", slot.Attempt)
		for _, e := range w.img.Status.Revisions {
			if e.Revision == slot.Revision {
				w.countAttempt(fmt.Sprint(e.Revision, " after ", e.AttemptsBefore), slot.Attempt)
			}
		}
		dv := image.NewDataVolume(w.img, slot)
		dv.UID = w.newUID()
		dv.CreationTimestamp = metav1.NewTime(w.now)
		w.lists.DataVolumes = append(w.lists.DataVolumes, *dv)
		claim := apitest.PersistentVolumeClaim(dv.Namespace+"/"+dv.Name).OwnedBy("DataVolume", dv.Name).Obj()
		claim.UID, claim.Labels = w.newUID(), dv.Labels
		w.lists.Claims = append(w.lists.Claims, *claim)
		w.createdDataVolumes[slot.Attempt]++
	}
}

// countAttempt counts an attempt of a round of retries, and checks that only people and
// losses start rounds.
func (w *simulation) countAttempt(round string, attempt int32) {
	if w.attemptsByRound[round] == nil {
		w.attemptsByRound[round] = map[int32]bool{}
	}
	w.attemptsByRound[round][attempt] = true
	if limit, admitted := w.retryLimitAtStart[attempt]; admitted {
		require.LessOrEqual(w.t, len(w.attemptsByRound[round]), int(limit)+1, "too many attempts of %s (S4)", round)
	}
	require.LessOrEqual(w.t, len(w.attemptsByRound), 1+w.excuses, "restarted without a reason: %v", w.attemptsByRound)
}

func (w *simulation) newUID() types.UID {
	w.serial++
	return types.UID(fmt.Sprint("uid-", w.serial))
}

// createSnapshot creates a VolumeSnapshot, unless its name is taken.
func (w *simulation) createSnapshot(want *snapshotv1.VolumeSnapshot) {
	for i := range w.lists.Snapshots {
		if w.lists.Snapshots[i].Name == want.Name {
			return
		}
	}
	snap := want.DeepCopy()
	snap.UID = w.newUID()
	w.lists.Snapshots = append(w.lists.Snapshots, *snap)
}
