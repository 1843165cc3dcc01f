package image

import (
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Preflight is what the source said when it was asked for the image, before
// anything was spent on it.
type Preflight struct {
	// Known: it has been asked, or need not be.
	Known bool
	// Refused: the source definitely does not give the image.
	Refused *v1alpha1.Failure
	// Size of the download in bytes; 0 where it was not told.
	Size int64
}

// Blocker is something an image needs and the cluster lacks.
type Blocker struct {
	Reason  v1alpha1.Reason
	Message string
}

// View is everything that a decision on an image rests on.
type View struct {
	Now    time.Time
	Image  *v1alpha1.VMDiskImage
	Policy *policy.Policy // nil where there has never been a valid one
	// Slots of the image in the SyncLedger.
	Slots []v1alpha1.Slot
	// Ages of them by their DataVolumes, which a wall clock that is put back does not make
	// less. Of one that is not there its own time counts.
	Ages map[string]time.Duration
	// Attempts is what exists of the image.
	Attempts map[int32]*Objects
	// Holders need the image.
	Holders []Holder
	// NamespaceGoing: the namespace of the image is being deleted, so that the
	// image has to go whoever holds it. Only asked for where that matters.
	NamespaceGoing bool
	// Plan is what the plan in force says about its stay. Not asked for an image that
	// is being deleted and that nobody holds.
	Plan Wish
	// Blocker keeps the next attempt from being started; nil for none.
	Blocker   *Blocker
	Preflight Preflight
	// Position in the queue, nil where it has none.
	Position *int32
	// Withheld is why it waits although the policy has a place for it; empty for no
	// such reason.
	Withheld v1alpha1.Reason
	// ArrivalKey is the place of the current revision by when it was first seen,
	// FreshKey a new place behind all others.
	ArrivalKey, FreshKey v1alpha1.OrderingKey
	// Live: all of this was read from the API server after Image was stored as it
	// is, and not from a cache.
	Live bool
}

// Kind of an object that belongs to an image.
type Kind string

// Kinds of objects that belong to an image.
const (
	DataVolume            Kind = "DataVolume"
	PersistentVolumeClaim Kind = "PersistentVolumeClaim"
	VolumeSnapshot        Kind = "VolumeSnapshot"
)

// Target is one object to delete. The UID is a precondition.
type Target struct {
	Kind Kind
	Name string
	UID  types.UID
	// Foreground has what it owns deleted before it.
	Foreground bool
}

// Ended tells of an attempt whose outcome this decision is the first to store.
type Ended struct {
	Slot    v1alpha1.Slot
	Outcome v1alpha1.Outcome
	Failure *v1alpha1.Failure
	// Bytes that the attempt is taken to have downloaded.
	Bytes int64
}

// Decision is what becomes of an image. It is carried out in the order of its
// fields; Delete only once Status is stored.
type Decision struct {
	// NeedsLive: decide again with a live View. Nothing else is decided.
	NeedsLive bool

	// AskSource: the source is to be asked for the image.
	AskSource bool
	// AddFinalizer: nothing further is carried out before it is there.
	AddFinalizer   bool
	CreateSnapshot *snapshotv1.VolumeSnapshot
	Status         v1alpha1.VMDiskImageStatus
	Delete         []Target
	// RemoveFinalizer: nothing of the image is left. Status is not stored then.
	RemoveFinalizer bool
	// DeleteImage: nobody has held the image for as long as its spec says, or, with
	// Retired, as the plan says; or, with Pruned, the undo window of its prune has
	// ended. It is deleted only as it was decided on: by UID and resourceVersion.
	DeleteImage, Retired, Pruned bool

	// After is when to look again for what no event tells of; 0 for never.
	After time.Duration

	Ended []Ended
}

// step works out one Decision.
type step struct {
	View
	d      Decision
	st     *v1alpha1.VMDiskImageStatus
	policy policy.Policy
	target string
	now    metav1.Time
	// tearDown: marked, seen live to be held by nobody since, and, before anything
	// is deleted, stored as such.
	tearDown bool
	// wait is what the current revision is doing or waiting for.
	wait Blocker
}

// Decide works out what becomes of an image.
func Decide(v View) Decision {
	s := &step{View: v, policy: policy.Default(), target: v.Image.Spec.Revision(), now: metav1.NewTime(v.Now.UTC().Truncate(time.Second))}
	if v.Policy != nil {
		s.policy = *v.Policy
	}
	v.Image.Status.DeepCopyInto(&s.d.Status)
	s.st = &s.d.Status

	s.hold()
	s.arrive()
	s.leave()
	s.follow()
	s.forgetBytes()
	if s.st.Phase != v1alpha1.PhaseDeleting {
		s.keep()
	}
	s.sweep()
	s.finish()
	s.expire()
	s.prune()
	if s.d.NeedsLive && !v.Live {
		return Decision{NeedsLive: true}
	}
	s.summarize()
	return s.d
}

// arrive gives the current revision a place, and starts it over where a person
// asked for that.
func (s *step) arrive() {
	if s.Image.DeletionTimestamp == nil && !hasFinalizer(s.Image) {
		s.d.AddFinalizer = true
	}
	retry := s.Image.Annotations[v1alpha1.AnnotationRetry]
	if len(retry) > maxRetryToken {
		// Half a rune would be stored as another, and ask again for ever.
		retry = strings.ToValidUTF8(retry[:maxRetryToken], "")
	}
	asked := retry != s.st.ObservedRetry
	retargeted := s.st.Revision != s.target
	// Being deleted raises the generation too, and is no edit.
	edited := s.st.ObservedGeneration != s.Image.Generation && s.Image.DeletionTimestamp == nil
	s.st.ObservedRetry = retry
	s.st.Revision = s.target

	s.putFirst()
	e := find(s.st.Revisions, s.target)
	if e == nil {
		s.makeRoom()
		s.st.Revisions = append([]v1alpha1.RevisionStatus{{
			Revision:       s.target,
			Source:         s.Image.Spec.URL,
			OrderingKey:    s.ArrivalKey,
			AttemptsBefore: s.st.LastAttempt,
		}}, s.st.Revisions...)
		s.st.QueuePosition = nil
		return
	}
	if asked || retargeted || (edited && failedForGood(e)) || (edited && snapshotFailed(e)) {
		s.startOver(e, retargeted)
	}
}

const maxRetryToken = 1024

// startOver forgets what counted against a revision. One that had left the
// queue returns to its end, one that was backing off keeps its place.
func (s *step) startOver(e *v1alpha1.RevisionStatus, retargeted bool) {
	e.Resyncs, e.ResyncsSince = 0, nil
	if snapshotFailed(e) {
		e.Failure = nil
		e.SnapshotSince = nil
	}
	if e.Outcome != v1alpha1.OutcomeFailed {
		return
	}
	if failedForGood(e) || retargeted {
		e.OrderingKey = s.FreshKey
		s.st.QueuePosition = nil
	}
	e.AttemptsBefore = s.st.LastAttempt
	e.Failure = nil
	e.NotBefore = &s.now
}

// putFirst puts the current revision at the head of the list: of the others,
// makeRoom drops the last first.
func (s *step) putFirst() {
	i := slices.IndexFunc(s.st.Revisions, func(e v1alpha1.RevisionStatus) bool { return e.Revision == s.target })
	if i > 0 {
		e := s.st.Revisions[i]
		s.st.Revisions = slices.Insert(slices.Delete(s.st.Revisions, i, i+1), 0, e)
	}
}

// makeRoom keeps the list of revisions short. What is served, what runs and
// what is still being ended stays; of the rest the oldest goes, and sweep
// removes what it left.
//
// What runs stays also where no slot of it is seen: the slots in the cache may
// be late, and forgotten it would be begun a second time.
func (s *step) makeRoom() {
	const room = 2 // for the current one, and for one that follow finds a slot of
	s.dropRevisions(v1alpha1.MaxRevisions-room, func(e v1alpha1.RevisionStatus) bool {
		return !s.serves(e.Revision) && !s.hasSlot(e.Revision) && e.Attempt <= e.AttemptEnded
	})
	s.dropRevisions(v1alpha1.MaxRevisions-1, func(e v1alpha1.RevisionStatus) bool {
		return !s.serves(e.Revision) && !s.hasSlot(e.Revision)
	})
}

// dropRevisions drops of those that may go the last, down to a number.
func (s *step) dropRevisions(most int, mayGo func(v1alpha1.RevisionStatus) bool) {
	for i := len(s.st.Revisions) - 1; i >= 0 && len(s.st.Revisions) > most; i-- {
		if mayGo(s.st.Revisions[i]) {
			s.st.Revisions = slices.Delete(s.st.Revisions, i, i+1)
		}
	}
}

// follow stores what became of the attempts that have slots, and of those that
// were begun and have lost theirs.
func (s *step) follow() {
	for _, slot := range s.Slots {
		if !s.open(slot) {
			continue
		}
		e := find(s.st.Revisions, slot.Revision)
		if e == nil {
			s.st.Revisions = append(s.st.Revisions, v1alpha1.RevisionStatus{
				Revision: slot.Revision, OrderingKey: s.FreshKey, AttemptsBefore: slot.Attempt - 1,
			})
			e = &s.st.Revisions[len(s.st.Revisions)-1]
		}
		s.followSlot(e, slot)
	}
	for i := range s.st.Revisions {
		e := &s.st.Revisions[i]
		if e.Attempt <= e.AttemptEnded || s.hasSlot(e.Revision) {
			continue
		}
		if !s.Live {
			s.d.NeedsLive = true
			continue
		}
		slot := v1alpha1.Slot{Image: KeyOf(s.Image), Revision: e.Revision, Attempt: e.Attempt, DataVolume: e.DataVolume, StartedAt: orZero(e.StartedAt)}
		if !s.Attempts[e.Attempt].Importing() {
			s.fail(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: "its slot and its DataVolume are gone: the SyncLedger was changed by hand or restored"})
			continue
		}
		// The ledger takes an unfinished DataVolume up again. It looks for nothing
		// else, so what has become of the rest is told from here.
		s.followSlot(e, slot)
	}
}

// forgetBytes drops what was told of another source, once what ended of it has
// been counted.
func (s *step) forgetBytes() {
	e := find(s.st.Revisions, s.target)
	if s.Image.Status.Revision != s.target && e.Outcome != v1alpha1.OutcomeSucceeded {
		s.st.Progress, s.st.BytesDone, s.st.BytesTotal = "", 0, 0
	}
}

// open tells that the outcome of a slot's attempt is still to be stored.
func (s *step) open(slot v1alpha1.Slot) bool {
	outcome, _ := outcomeOf(s.st, slot)
	return outcome == ""
}

func (s *step) followSlot(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot) {
	o := s.Attempts[slot.Attempt]
	switch {
	case s.tearDown:
		s.fail(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDeleted, Message: "the image is being deleted"})
		return
	case slot.Revision != s.target:
		s.fail(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonSuperseded, Message: "the source was changed while it was imported"})
		return
	case slot.Ended && !o.Complete():
		s.fail(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: "its outcome was stored and is gone again: the status was changed by hand or restored"})
		return
	case o == nil || o.DataVolume == nil:
		switch {
		case o.Complete():
			s.succeed(e, slot)
		case e.Attempt < slot.Attempt:
			// Not begun: the ledger's to create.
		case !s.Live:
			s.d.NeedsLive = true
		default:
			s.fail(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: fmt.Sprintf("DataVolume %s was deleted while it was imported", slot.DataVolume)})
		}
		return
	}
	s.begin(e, slot, o.DataVolume)
	if o.Complete() {
		s.succeed(e, slot)
		return
	}
	if f, failed := FailureOf(o); failed {
		s.fail(e, slot, f)
		return
	}
	s.watchProgress(e, slot, o)
}

// begin notes that the DataVolume of an attempt is there: from now on its
// absence is a loss.
func (s *step) begin(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot, dv *cdiv1.DataVolume) {
	if e.Attempt < slot.Attempt {
		e.Attempt = slot.Attempt
		e.DataVolume = dv.Name
		e.VolumeSnapshot, e.SnapshotAttempt, e.SnapshotSince = "", 0, nil
		e.NotBefore = nil
		e.StartedAt = &slot.StartedAt
		e.ProgressedAt = &s.now
		e.ImportPhase = string(dv.Status.Phase)
		s.st.Progress = string(dv.Status.Progress)
		s.st.BytesDone = 0
		s.st.QueuePosition = nil
	}
	s.st.LastAttempt = max(s.st.LastAttempt, slot.Attempt)
}

func (s *step) succeed(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot) {
	e.Attempt = max(e.Attempt, slot.Attempt)
	e.AttemptEnded = slot.Attempt
	e.Outcome = v1alpha1.OutcomeSucceeded
	e.Failure, e.NotBefore = nil, nil
	e.ImportedAt = &s.now
	e.ImportPhase = string(cdiv1.Succeeded)
	s.st.LastAttempt = max(s.st.LastAttempt, slot.Attempt)
	s.setBytes("100.0%")
	s.d.Ended = append(s.d.Ended, Ended{Slot: slot, Outcome: e.Outcome, Bytes: s.st.BytesDone})
}

func (s *step) fail(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot, f v1alpha1.Failure) {
	bytes := s.st.BytesDone
	if e.Attempt < slot.Attempt {
		bytes = 0
	}
	Fail(s.st, s.Image.UID, e, slot.Attempt, f, s.policy, s.now)
	s.d.Ended = append(s.d.Ended, Ended{Slot: slot, Outcome: e.Outcome, Failure: e.Failure, Bytes: bytes})
}

// Fail stores the failure of an attempt in a status: it is tried again after a
// backoff while the policy allows it and waiting can help. e is the attempt's
// entry of that status.
func Fail(st *v1alpha1.VMDiskImageStatus, uid types.UID, e *v1alpha1.RevisionStatus, attempt int32, f v1alpha1.Failure, p policy.Policy, now metav1.Time) {
	e.Attempt = max(e.Attempt, attempt)
	e.AttemptEnded = attempt
	e.Outcome = v1alpha1.OutcomeFailed
	f.Time = now
	e.Failure = &f
	e.NotBefore = nil
	if used := attempt - e.AttemptsBefore; f.Reason.HealsByWaiting() && used <= p.RetryLimit {
		at := metav1.NewTime(now.Add(Backoff(p, uid, max(used, 1))))
		e.NotBefore = &at
	}
	st.LastAttempt = max(st.LastAttempt, attempt)
	st.Progress = ""
	st.BytesDone = 0
}

func orZero(t *metav1.Time) metav1.Time {
	if t == nil {
		return metav1.Time{}
	}
	return *t
}

func (s *step) serves(revision string) bool {
	return s.st.Serving != nil && s.st.Serving.Revision == revision
}

func (s *step) hasSlot(revision string) bool {
	for i := range s.Slots {
		if s.Slots[i].Revision == revision {
			return true
		}
	}
	return false
}

func hasFinalizer(img *v1alpha1.VMDiskImage) bool {
	for _, f := range img.Finalizers {
		if f == v1alpha1.FinalizerImage {
			return true
		}
	}
	return false
}

// within asks for another look after d, at the latest.
func (s *step) within(d time.Duration) {
	d = max(d, 10*time.Millisecond)
	if s.d.After == 0 || d < s.d.After {
		s.d.After = d
	}
}
