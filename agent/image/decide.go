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

// PreflightResult is what the source said when it was asked for the image, before
// anything was spent on it.
type PreflightResult struct {
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
	// SlotAges of them by their DataVolumes, which a wall clock that is put back does not make
	// less. Of one that is not there its own time counts.
	SlotAges map[string]time.Duration
	// ObjectsByAttempt is what exists of the image.
	ObjectsByAttempt map[int32]*AttemptObjects
	// Holders need the image.
	Holders []Holder
	// NamespaceTerminating: the namespace of the image is being deleted, so that the
	// image has to go whoever holds it. Only asked for where that matters.
	NamespaceTerminating bool
	// Plan is what the plan in force says about its stay. Not asked for an image that
	// is being deleted and that nobody holds.
	Plan PlannedState
	// Blocker keeps the next attempt from being started; nil for none.
	Blocker   *Blocker
	Preflight PreflightResult
	// QueuePosition in the queue, nil where it has none.
	QueuePosition *int32
	// WithheldReason is why it waits although the policy has a place for it; empty for no
	// such reason.
	WithheldReason v1alpha1.Reason
	// ArrivalKey is the place of the current revision by when it was first seen,
	// EndOfQueueKey a new place behind all others.
	ArrivalKey, EndOfQueueKey v1alpha1.OrderingKey
	// Live: all of this was read from the API server after Image was stored as it
	// is, and not from a cache.
	Live bool
}

// ObjectKind of an object that belongs to an image.
type ObjectKind string

// Kinds of objects that belong to an image.
const (
	DataVolume            ObjectKind = "DataVolume"
	PersistentVolumeClaim ObjectKind = "PersistentVolumeClaim"
	VolumeSnapshot        ObjectKind = "VolumeSnapshot"
)

// DeleteTarget is one object to delete. The UID is a precondition.
type DeleteTarget struct {
	Kind ObjectKind
	Name string
	UID  types.UID
	// Foreground has what it owns deleted before it.
	Foreground bool
}

// EndedAttempt tells of an attempt whose outcome this decision is the first to store.
type EndedAttempt struct {
	Slot    v1alpha1.Slot
	Outcome v1alpha1.Outcome
	Failure *v1alpha1.Failure
	// DownloadedBytes that the attempt is taken to have downloaded.
	DownloadedBytes int64
}

// Decision is what becomes of an image. It is carried out in the order of its
// fields; Delete only once Status is stored.
type Decision struct {
	// NeedsLiveRead: decide again with a live View. Nothing else is decided.
	NeedsLiveRead bool

	// ProbeSource: the source is to be asked for the image.
	ProbeSource bool
	// AddFinalizer: nothing further is carried out before it is there.
	AddFinalizer   bool
	CreateSnapshot *snapshotv1.VolumeSnapshot
	Status         v1alpha1.VMDiskImageStatus
	Delete         []DeleteTarget
	// RemoveFinalizer: nothing of the image is left. Status is not stored then.
	RemoveFinalizer bool
	// DeleteImage: nobody has held the image for as long as its spec says, or, with
	// Retired, as the plan says; or, with Pruned, the undo window of its prune has
	// ended. It is deleted only as it was decided on: by UID and resourceVersion.
	DeleteImage, ExpiredByPlan, Pruned bool

	// RequeueAfter is when to look again for what no event tells of; 0 for never.
	RequeueAfter time.Duration

	EndedAttempts []EndedAttempt
}

// step works out one Decision.
type step struct {
	View
	decision       Decision
	status         *v1alpha1.VMDiskImageStatus
	policy         policy.Policy
	targetRevision string
	now            metav1.Time
	// tearDown: marked, seen live to be held by nobody since, and, before anything
	// is deleted, stored as such.
	tearDown bool
	// activity is what the current revision is doing or waiting for.
	activity Blocker
}

// Decide works out what becomes of an image.
func Decide(v View) Decision {
	s := &step{View: v, policy: policy.Default(), targetRevision: v.Image.Spec.Revision(), now: metav1.NewTime(v.Now.UTC().Truncate(time.Second))}
	if v.Policy != nil {
		s.policy = *v.Policy
	}
	v.Image.Status.DeepCopyInto(&s.decision.Status)
	s.status = &s.decision.Status

	s.countReferences()
	s.ensureQueued()
	s.reconcileDelete()
	s.syncAttempts()
	s.resetProgress()
	if s.status.Phase != v1alpha1.PhaseDeleting {
		s.reconcileCurrent()
	}
	s.deleteUnused()
	s.removeFinalizer()
	s.expireUnreferenced()
	s.reconcilePrune()
	if s.decision.NeedsLiveRead && !v.Live {
		return Decision{NeedsLiveRead: true}
	}
	s.summarizeStatus()
	return s.decision
}

// ensureQueued gives the current revision a place, and starts it over where a person
// asked for that.
func (s *step) ensureQueued() {
	if s.Image.DeletionTimestamp == nil && !hasFinalizer(s.Image) {
		s.decision.AddFinalizer = true
	}
	retry := s.Image.Annotations[v1alpha1.AnnotationRetry]
	if len(retry) > maxRetryTokenLength {
		// Half a rune would be stored as another, and ask again for ever.
		retry = strings.ToValidUTF8(retry[:maxRetryTokenLength], "")
	}
	asked := retry != s.status.ObservedRetry
	retargeted := s.status.Revision != s.targetRevision
	// Being deleted raises the generation too, and is no edit.
	edited := s.status.ObservedGeneration != s.Image.Generation && s.Image.DeletionTimestamp == nil
	s.status.ObservedRetry = retry
	s.status.Revision = s.targetRevision

	s.moveTargetFirst()
	e := findRevision(s.status.Revisions, s.targetRevision)
	if e == nil {
		s.trimRevisions()
		s.status.Revisions = append([]v1alpha1.RevisionStatus{{
			Revision:       s.targetRevision,
			Source:         s.Image.Spec.URL,
			OrderingKey:    s.ArrivalKey,
			AttemptsBefore: s.status.LastAttempt,
		}}, s.status.Revisions...)
		s.status.QueuePosition = nil
		return
	}
	if asked || retargeted || (edited && hasFailedPermanently(e)) || (edited && hasSnapshotFailed(e)) {
		s.restartRevision(e, retargeted)
	}
}

const maxRetryTokenLength = 1024

// restartRevision forgets what counted against a revision. One that had left the
// queue returns to its end, one that was backing off keeps its place.
func (s *step) restartRevision(e *v1alpha1.RevisionStatus, retargeted bool) {
	e.Resyncs, e.ResyncsSince = 0, nil
	if hasSnapshotFailed(e) {
		e.Failure = nil
		e.SnapshotSince = nil
	}
	if e.Outcome != v1alpha1.OutcomeFailed {
		return
	}
	if hasFailedPermanently(e) || retargeted {
		e.OrderingKey = s.EndOfQueueKey
		s.status.QueuePosition = nil
	}
	e.AttemptsBefore = s.status.LastAttempt
	e.Failure = nil
	e.NotBefore = &s.now
}

// moveTargetFirst puts the current revision at the head of the list: of the others,
// trimRevisions drops the last first.
func (s *step) moveTargetFirst() {
	i := slices.IndexFunc(s.status.Revisions, func(e v1alpha1.RevisionStatus) bool { return e.Revision == s.targetRevision })
	if i > 0 {
		e := s.status.Revisions[i]
		s.status.Revisions = slices.Insert(slices.Delete(s.status.Revisions, i, i+1), 0, e)
	}
}

// trimRevisions keeps the list of revisions short. What is served, what runs and
// what is still being ended stays; of the rest the oldest goes, and sweep
// removes what it left.
//
// What runs stays also where no slot of it is seen: the slots in the cache may
// be late, and forgotten it would be begun a second time.
func (s *step) trimRevisions() {
	const room = 2 // for the current one, and for one that follow finds a slot of
	s.dropRevisions(v1alpha1.MaxRevisions-room, func(e v1alpha1.RevisionStatus) bool {
		return !s.isServing(e.Revision) && !s.hasSlot(e.Revision) && e.Attempt <= e.AttemptEnded
	})
	s.dropRevisions(v1alpha1.MaxRevisions-1, func(e v1alpha1.RevisionStatus) bool {
		return !s.isServing(e.Revision) && !s.hasSlot(e.Revision)
	})
}

// dropRevisions drops of those that may go the last, down to a number.
func (s *step) dropRevisions(most int, mayGo func(v1alpha1.RevisionStatus) bool) {
	for i := len(s.status.Revisions) - 1; i >= 0 && len(s.status.Revisions) > most; i-- {
		if mayGo(s.status.Revisions[i]) {
			s.status.Revisions = slices.Delete(s.status.Revisions, i, i+1)
		}
	}
}

// syncAttempts stores what became of the attempts that have slots, and of those that
// were begun and have lost theirs.
func (s *step) syncAttempts() {
	for _, slot := range s.Slots {
		if !s.lacksOutcome(slot) {
			continue
		}
		e := findRevision(s.status.Revisions, slot.Revision)
		if e == nil {
			s.status.Revisions = append(s.status.Revisions, v1alpha1.RevisionStatus{
				Revision: slot.Revision, OrderingKey: s.EndOfQueueKey, AttemptsBefore: slot.Attempt - 1,
			})
			e = &s.status.Revisions[len(s.status.Revisions)-1]
		}
		s.syncAttempt(e, slot)
	}
	for i := range s.status.Revisions {
		e := &s.status.Revisions[i]
		if e.Attempt <= e.AttemptEnded || s.hasSlot(e.Revision) {
			continue
		}
		if !s.Live {
			s.decision.NeedsLiveRead = true
			continue
		}
		slot := v1alpha1.Slot{Image: KeyOf(s.Image), Revision: e.Revision, Attempt: e.Attempt, DataVolume: e.DataVolume, StartedAt: timeOrZero(e.StartedAt)}
		if !s.ObjectsByAttempt[e.Attempt].CanDownload() {
			s.recordFailure(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: "its slot and its DataVolume are gone: the SyncLedger was changed by hand or restored"})
			continue
		}
		// The ledger takes an unfinished DataVolume up again. It looks for nothing
		// else, so what has become of the rest is told from here.
		s.syncAttempt(e, slot)
	}
}

// resetProgress drops what was told of another source, once what ended of it has
// been counted.
func (s *step) resetProgress() {
	e := findRevision(s.status.Revisions, s.targetRevision)
	if s.Image.Status.Revision != s.targetRevision && e.Outcome != v1alpha1.OutcomeSucceeded {
		s.status.Progress, s.status.BytesDone, s.status.BytesTotal = "", 0, 0
	}
}

// lacksOutcome tells that the outcome of a slot's attempt is still to be stored.
func (s *step) lacksOutcome(slot v1alpha1.Slot) bool {
	outcome, _ := attemptOutcome(s.status, slot)
	return outcome == ""
}

func (s *step) syncAttempt(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot) {
	o := s.ObjectsByAttempt[slot.Attempt]
	switch {
	case s.tearDown:
		s.recordFailure(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDeleted, Message: "the image is being deleted"})
		return
	case slot.Revision != s.targetRevision:
		s.recordFailure(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonSuperseded, Message: "the source was changed while it was imported"})
		return
	case slot.Ended && !o.ImportComplete():
		s.recordFailure(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: "its outcome was stored and is gone again: the status was changed by hand or restored"})
		return
	case o == nil || o.DataVolume == nil:
		switch {
		case o.ImportComplete():
			s.recordSuccess(e, slot)
		case e.Attempt < slot.Attempt:
			// Not begun: the ledger's to create.
		case !s.Live:
			s.decision.NeedsLiveRead = true
		default:
			s.recordFailure(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeLost, Message: fmt.Sprintf("DataVolume %s was deleted while it was imported", slot.DataVolume)})
		}
		return
	}
	s.recordStart(e, slot, o.DataVolume)
	if o.ImportComplete() {
		s.recordSuccess(e, slot)
		return
	}
	if f, failed := DetectFailure(o); failed {
		s.recordFailure(e, slot, f)
		return
	}
	s.watchProgress(e, slot, o)
}

// recordStart notes that the DataVolume of an attempt is there: from now on its
// absence is a loss.
func (s *step) recordStart(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot, dv *cdiv1.DataVolume) {
	if e.Attempt < slot.Attempt {
		e.Attempt = slot.Attempt
		e.DataVolume = dv.Name
		e.VolumeSnapshot, e.SnapshotAttempt, e.SnapshotSince = "", 0, nil
		e.NotBefore = nil
		e.StartedAt = &slot.StartedAt
		e.ProgressedAt = &s.now
		e.ImportPhase = string(dv.Status.Phase)
		s.status.Progress = string(dv.Status.Progress)
		s.status.BytesDone = 0
		s.status.QueuePosition = nil
	}
	s.status.LastAttempt = max(s.status.LastAttempt, slot.Attempt)
}

func (s *step) recordSuccess(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot) {
	e.Attempt = max(e.Attempt, slot.Attempt)
	e.AttemptEnded = slot.Attempt
	e.Outcome = v1alpha1.OutcomeSucceeded
	e.Failure, e.NotBefore = nil, nil
	e.ImportedAt = &s.now
	e.ImportPhase = string(cdiv1.Succeeded)
	s.status.LastAttempt = max(s.status.LastAttempt, slot.Attempt)
	s.setProgress("100.0%")
	s.decision.EndedAttempts = append(s.decision.EndedAttempts, EndedAttempt{Slot: slot, Outcome: e.Outcome, DownloadedBytes: s.status.BytesDone})
}

func (s *step) recordFailure(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot, f v1alpha1.Failure) {
	bytes := s.status.BytesDone
	if e.Attempt < slot.Attempt {
		bytes = 0
	}
	RecordFailure(s.status, s.Image.UID, e, slot.Attempt, f, s.policy, s.now)
	s.decision.EndedAttempts = append(s.decision.EndedAttempts, EndedAttempt{Slot: slot, Outcome: e.Outcome, Failure: e.Failure, DownloadedBytes: bytes})
}

// RecordFailure stores the failure of an attempt in a status: it is tried again after a
// backoff while the policy allows it and waiting can help. e is the attempt's
// entry of that status.
func RecordFailure(st *v1alpha1.VMDiskImageStatus, uid types.UID, e *v1alpha1.RevisionStatus, attempt int32, f v1alpha1.Failure, p policy.Policy, now metav1.Time) {
	e.Attempt = max(e.Attempt, attempt)
	e.AttemptEnded = attempt
	e.Outcome = v1alpha1.OutcomeFailed
	f.Time = now
	e.Failure = &f
	e.NotBefore = nil
	if used := attempt - e.AttemptsBefore; f.Reason.IsRetryable() && used <= p.RetryLimit {
		at := metav1.NewTime(now.Add(ComputeBackoff(p, uid, max(used, 1))))
		e.NotBefore = &at
	}
	st.LastAttempt = max(st.LastAttempt, attempt)
	st.Progress = ""
	st.BytesDone = 0
}

func timeOrZero(t *metav1.Time) metav1.Time {
	if t == nil {
		return metav1.Time{}
	}
	return *t
}

func (s *step) isServing(revision string) bool {
	return s.status.Serving != nil && s.status.Serving.Revision == revision
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

// requeueWithin asks for another look after d, at the latest.
func (s *step) requeueWithin(d time.Duration) {
	d = max(d, 10*time.Millisecond)
	if s.decision.RequeueAfter == 0 || d < s.decision.RequeueAfter {
		s.decision.RequeueAfter = d
	}
}
