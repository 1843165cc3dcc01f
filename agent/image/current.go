package image

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// resyncWindow is the time over which policy.ResyncLimit counts.
const resyncWindow = 24 * time.Hour

// reconcileCurrent works on the current revision: what it does next, or what it waits for.
func (s *step) reconcileCurrent() {
	s.verifyServing()
	e := findRevision(s.status.Revisions, s.targetRevision)
	running := e.Attempt > e.AttemptEnded
	for i := range s.Slots {
		running = running || (s.Slots[i].Revision == s.targetRevision && s.lacksOutcome(s.Slots[i]))
	}
	switch {
	case running && s.justAdmitted(e):
		s.QueuePosition = s.status.QueuePosition
		s.activity = Blocker{Reason: storedWaitReason(s.status)}
		s.requeueWithin(admissionGracePeriod)
	case running:
		s.activity = Blocker{v1alpha1.ReasonImporting, s.describeImport(e)}
	case e.Outcome == v1alpha1.OutcomeSucceeded:
		s.reconcileImported(e)
	}
	if !running && e.Outcome != v1alpha1.OutcomeSucceeded {
		s.awaitAdmission(e)
	}
}

// admissionGracePeriod is how long a slot may stand without its DataVolume before the
// status tells of it. StartedAt has full seconds.
const admissionGracePeriod = 3 * time.Second

// justAdmitted tells that a slot was given and its DataVolume is about to be
// created: a status for that moment would cost each import a write, at the very
// time at which the next ones are admitted.
func (s *step) justAdmitted(e *v1alpha1.RevisionStatus) bool {
	if !queued(storedWaitReason(s.status)) {
		return false
	}
	for i := range s.Slots {
		slot := &s.Slots[i]
		if slot.Revision == s.targetRevision && e.Attempt < slot.Attempt && s.Now.Sub(slot.StartedAt.Time) < admissionGracePeriod {
			return true
		}
	}
	return false
}

// verifyServing stops serving from what is no longer there.
func (s *step) verifyServing() {
	serving := s.status.Serving
	if serving == nil {
		return
	}
	o := s.ObjectsByAttempt[serving.Attempt]
	there := o != nil && o.Claim != nil && !isClaimLost(o.Claim)
	// CDI makes a claim again that has gone, and downloads into it: what an older
	// revision has left must not live on for the sake of its snapshot.
	if e := findRevision(s.status.Revisions, serving.Revision); !there && e != nil && e.Revision != s.targetRevision && e.AttemptEnded == serving.Attempt && e.Outcome == v1alpha1.OutcomeSucceeded {
		if !s.Live {
			s.decision.NeedsLiveRead = true
			return
		}
		e.Outcome, e.NotBefore = v1alpha1.OutcomeFailed, nil
		e.Failure = &v1alpha1.Failure{Reason: v1alpha1.ReasonStorageLost, Message: "the storage of its DataVolume " + e.DataVolume + " is gone", Time: s.now}
	}
	if serving.VolumeSnapshot != "" {
		snap := o.findSnapshot(serving.VolumeSnapshot)
		there = snap != nil && ready(snap)
	}
	switch {
	case there:
	case !s.Live:
		s.decision.NeedsLiveRead = true
	default:
		s.status.Serving = nil
	}
}

// reconcileImported looks after a revision whose bytes have been imported: lost
// storage is synced again, a snapshot is made, and then it serves.
func (s *step) reconcileImported(e *v1alpha1.RevisionStatus) {
	o := s.ObjectsByAttempt[e.AttemptEnded]
	if o == nil || o.Claim == nil || isClaimLost(o.Claim) {
		if !s.Live {
			s.decision.NeedsLiveRead = true
			return
		}
		if s.spendResync(e, "the storage of its DataVolume "+e.DataVolume+" is gone") {
			e.NotBefore = &s.now
			e.AttemptsBefore = s.status.LastAttempt
			e.OrderingKey = s.EndOfQueueKey
			s.status.QueuePosition = nil
		}
		e.Outcome = v1alpha1.OutcomeFailed
		return
	}
	if s.Image.Spec.SnapshotClass == "" {
		s.serveRevision(e, o, nil)
		return
	}
	s.reconcileSnapshot(e, o)
}

// spendResync spends one resync, or fails the revision where none is left.
func (s *step) spendResync(e *v1alpha1.RevisionStatus, what string) bool {
	if e.ResyncsSince == nil || s.Now.Sub(e.ResyncsSince.Time) > resyncWindow {
		e.Resyncs, e.ResyncsSince = 0, &s.now
	}
	if e.Resyncs >= s.policy.ResyncLimit {
		e.Failure = &v1alpha1.Failure{
			Reason:  v1alpha1.ReasonResyncLimit,
			Message: fmt.Sprintf("%s, and it was synced again %d times in 24 hours, the policy's resyncLimit. Find what deletes it", what, e.Resyncs),
			Time:    s.now,
		}
		e.NotBefore = nil
		return false
	}
	e.Resyncs++
	e.Failure = &v1alpha1.Failure{Reason: v1alpha1.ReasonStorageLost, Message: what, Time: s.now}
	return true
}

// reconcileSnapshot makes the VolumeSnapshot of an imported revision. No slot is
// needed for it. One that does not become ready is given up and another is
// made, as often as the policy retries.
func (s *step) reconcileSnapshot(e *v1alpha1.RevisionStatus, o *AttemptObjects) {
	snap := o.findSnapshot(e.VolumeSnapshot)
	fits := snap != nil && snapshotClassOf(snap) == s.Image.Spec.SnapshotClass
	if fits && ready(snap) { // it needs its class no more
		s.serveRevision(e, o, snap)
		return
	}
	if s.Blocker != nil && s.Blocker.Reason == v1alpha1.ReasonSnapshotClassMissing {
		e.SnapshotSince = nil
		s.requeueWithin(blockerRecheckInterval)
		s.activity = *s.Blocker
		return
	}
	if hasSnapshotFailed(e) {
		s.activity = Blocker{e.Failure.Reason, e.Failure.Message + adviceFor(e.Failure.Reason)}
		return
	}
	served := s.Image.Status.Serving != nil && e.VolumeSnapshot != "" && s.Image.Status.Serving.VolumeSnapshot == e.VolumeSnapshot
	switch {
	case e.VolumeSnapshot == "":
		s.startSnapshotAttempt(e, o)
	case snap != nil && !fits:
		e.SnapshotAttempt = 0 // another class has its own tries
		s.startSnapshotAttempt(e, o)
	case served && (snap == nil || snap.DeletionTimestamp != nil):
		if !s.Live {
			s.decision.NeedsLiveRead = true
			return
		}
		if !s.spendResync(e, "its VolumeSnapshot "+e.VolumeSnapshot+" is gone") {
			e.VolumeSnapshot, e.SnapshotAttempt = "", 0
			s.activity = Blocker{e.Failure.Reason, e.Failure.Message + adviceFor(e.Failure.Reason)}
			return
		}
		e.Failure = nil
		e.SnapshotAttempt = 0
		s.startSnapshotAttempt(e, o)
	}
	if e.SnapshotSince == nil {
		e.SnapshotSince = &s.now
	}
	if snap = o.findSnapshot(e.VolumeSnapshot); snap != nil && ready(snap) {
		s.serveRevision(e, o, snap) // of an agent that died before it could store the name
		return
	}
	left := s.policy.StallTimeout - max(0, s.Now.Sub(e.SnapshotSince.Time))
	if left <= 0 {
		if e.SnapshotAttempt > s.policy.RetryLimit {
			e.Failure = &v1alpha1.Failure{
				Reason: v1alpha1.ReasonSnapshotFailed, Time: s.now,
				Message: fmt.Sprintf("none of %d VolumeSnapshots became ready within %s%s. The import is kept: repair the CSI driver",
					e.SnapshotAttempt, s.policy.StallTimeout, snapshotErrorSuffix(snap)),
			}
			e.VolumeSnapshot, e.SnapshotAttempt = "", 0
			s.activity = Blocker{e.Failure.Reason, e.Failure.Message + adviceFor(e.Failure.Reason)}
			return
		}
		s.startSnapshotAttempt(e, o)
		left = s.policy.StallTimeout
	}
	s.requeueWithin(left)
	if o.findSnapshot(e.VolumeSnapshot) == nil {
		s.decision.CreateSnapshot = s.buildSnapshot(e, o)
	}
	s.activity = Blocker{v1alpha1.ReasonSnapshotting, fmt.Sprintf("imported; VolumeSnapshot %s is not ready yet%s", e.VolumeSnapshot, snapshotErrorSuffix(snap))}
}

func (s *step) startSnapshotAttempt(e *v1alpha1.RevisionStatus, o *AttemptObjects) {
	e.SnapshotAttempt++
	e.VolumeSnapshot = fmt.Sprintf("%s-%s", o.Claim.Name, strconv.FormatInt(s.Now.UnixMilli(), 36))
	e.SnapshotSince = &s.now
}

func (s *step) buildSnapshot(e *v1alpha1.RevisionStatus, o *AttemptObjects) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		TypeMeta: metav1.TypeMeta{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   s.Image.Namespace,
			Name:        e.VolumeSnapshot,
			Labels:      AttemptLabels(KeyOf(s.Image), e.Revision, e.AttemptEnded),
			Annotations: map[string]string{v1alpha1.AnnotationImageName: s.Image.Name},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &o.Claim.Name},
			VolumeSnapshotClassName: &s.Image.Spec.SnapshotClass,
		},
	}
}

// serveRevision makes a revision the one that VMs are cloned from.
func (s *step) serveRevision(e *v1alpha1.RevisionStatus, o *AttemptObjects, snap *snapshotv1.VolumeSnapshot) {
	serving := &v1alpha1.Serving{Revision: e.Revision, Attempt: e.AttemptEnded, PersistentVolumeClaim: o.Claim.Name, DiskSize: &s.Image.Spec.DiskSize}
	if size, told := o.Claim.Status.Capacity[corev1.ResourceStorage]; told {
		serving.RestoreSize = &size
	}
	if snap != nil {
		serving.VolumeSnapshot = snap.Name
		if snap.Status.RestoreSize != nil {
			serving.RestoreSize = snap.Status.RestoreSize
		}
		e.SnapshotAttempt, e.SnapshotSince = 1, nil
	} else {
		e.VolumeSnapshot, e.SnapshotAttempt, e.SnapshotSince = "", 0, nil
	}
	s.status.Serving = serving
	message := "ready: cloned from PersistentVolumeClaim " + serving.PersistentVolumeClaim
	if snap != nil {
		message = "ready: cloned from VolumeSnapshot " + snap.Name
	}
	s.activity = Blocker{v1alpha1.ReasonReady, message}
}

// awaitAdmission says what keeps the next attempt of the current revision from starting.
func (s *step) awaitAdmission(e *v1alpha1.RevisionStatus) {
	switch {
	case hasFailedPermanently(e) && e.Failure == nil: // not written by an agent
		s.activity = Blocker{v1alpha1.ReasonImportFailed, "failed, and its status does not say why" + adviceFor(v1alpha1.ReasonImportFailed)}
		return
	case hasFailedPermanently(e):
		s.activity = Blocker{e.Failure.Reason, e.Failure.Message + adviceFor(e.Failure.Reason)}
		return
	// What was started over has no failure, and by a clock that is behind the one
	// of that time its NotBefore is still to come.
	case e.NotBefore != nil && e.Failure != nil && s.Now.Before(e.NotBefore.Time):
		s.requeueWithin(e.NotBefore.Sub(s.Now))
		s.activity = Blocker{v1alpha1.ReasonBackingOff, fmt.Sprintf("attempt %d of %d failed: %s: %s; the next starts after %s",
			e.AttemptEnded-e.AttemptsBefore, s.policy.RetryLimit+1, e.Failure.Reason, e.Failure.Message, e.NotBefore.UTC().Format(time.RFC3339))}
		return
	// CDI makes a lost claim again for its DataVolume and downloads into it. No
	// slot stands for that, so it has to be over before one is given.
	case e.AttemptEnded > 0 && !s.hasSlot(e.Revision) && s.ObjectsByAttempt[e.AttemptEnded].CanDownload():
		s.activity = Blocker{v1alpha1.ReasonStorageLost, fmt.Sprintf("what is left of attempt %d is removed before the next one", e.AttemptEnded)}
		return
	case s.Blocker != nil:
		s.requeueWithin(blockerRecheckInterval)
		s.activity = *s.Blocker
		return
	}
	if isStoredAsAdmissible(s.Image, s.targetRevision) {
		s.Preflight.Known = true // it was known when it was stored that it may be admitted
	}
	if _, askable := PreflightURL(s.Image.Spec); askable && s.policy.Preflight && !s.Preflight.Known {
		s.decision.ProbeSource = true
		s.activity = Blocker{v1alpha1.ReasonChecking, "the source is asked whether it has the image"}
		return
	}
	if s.Preflight.Size > 0 {
		s.status.BytesTotal = s.Preflight.Size
	}
	if f := s.Preflight.Refused; f != nil {
		s.recordFailure(e, v1alpha1.Slot{Image: KeyOf(s.Image), Revision: e.Revision, Attempt: s.status.LastAttempt + 1, StartedAt: s.now}, *f)
		s.Preflight = PreflightResult{}
		s.awaitAdmission(e)
		return
	}
	switch {
	case s.Policy == nil:
		s.activity = Blocker{v1alpha1.ReasonPolicyMissing, "nothing is downloaded: there has never been a valid policy ConfigMap (see kubectl describe syncledger)"}
	case s.policy.Concurrency == 0:
		s.activity = Blocker{v1alpha1.ReasonPaused, "nothing is downloaded: the policy's concurrency is 0"}
	case s.WithheldReason != "":
		s.activity = Blocker{Reason: s.WithheldReason}
	default:
		s.activity = Blocker{Reason: v1alpha1.ReasonWaitingForSlot}
	}
}

// blockerRecheckInterval is how often a missing object is looked for that no watch
// tells of.
const blockerRecheckInterval = time.Minute

// isStoredAsAdmissible tells that an image was stored as one that may be admitted.
func isStoredAsAdmissible(img *v1alpha1.VMDiskImage, target string) bool {
	return img.Status.Revision == target && waitsForAdmission(storedWaitReason(&img.Status))
}

// adviceFor says what a person can do about a failure that waiting does not heal.
func adviceFor(r v1alpha1.Reason) string {
	const again = " Annotation " + v1alpha1.AnnotationRetry + " starts it over."
	switch r {
	case v1alpha1.ReasonNotFound:
		return ". Correct spec.url, or publish the image and change annotation " + v1alpha1.AnnotationRetry
	case v1alpha1.ReasonChecksumMismatch:
		return ". Correct spec.checksum, or publish the file it belongs to." + again
	case v1alpha1.ReasonDiskTooSmall:
		return ". Enlarge spec.diskSize"
	case v1alpha1.ReasonForbidden:
		return ". Check the credentials in spec.secretRef." + again
	case v1alpha1.ReasonQuotaExceeded:
		return ". Free or raise the quota of the namespace." + again
	default:
		return "." + again
	}
}

// watchProgress ends an attempt that takes too long or does not get on.
func (s *step) watchProgress(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot, o *AttemptObjects) {
	phase, progress := string(o.DataVolume.Status.Phase), string(o.DataVolume.Status.Progress)
	moved := phase != e.ImportPhase || progress != s.status.Progress
	since := s.Now.Sub(timeOrZero(e.ProgressedAt).Time)
	// A status write for every percent of every import would be many; a tenth, or
	// a while, is soon enough. At the deadline what moved is always stored.
	interval := min(30*time.Second, s.policy.StallTimeout/3)
	if moved && (phase != e.ImportPhase || parsePercent(progress)-parsePercent(s.status.Progress) >= 10 || since >= interval) {
		e.ImportPhase = phase
		e.ProgressedAt = &s.now
		s.setProgress(progress)
		since = 0
	} else if moved {
		s.requeueWithin(interval - since)
	}
	timeLeft := s.policy.AttemptTimeout - max(s.SlotAges[slot.DataVolume], s.Now.Sub(slot.StartedAt.Time))
	quietLeft := s.policy.StallTimeout - since
	switch {
	case timeLeft <= 0:
		s.recordFailure(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonTimeout, Message: fmt.Sprintf("not done within attemptTimeout, %s: %s", s.policy.AttemptTimeout, truncateMessage(describeStall(o)))})
	case quietLeft <= 0:
		s.recordFailure(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonStalled, Message: fmt.Sprintf("nothing moved for stallTimeout, %s: %s", s.policy.StallTimeout, truncateMessage(describeStall(o)))})
	default:
		s.requeueWithin(min(timeLeft, quietLeft))
	}
}

func (s *step) describeImport(e *v1alpha1.RevisionStatus) string {
	attempt := e.Attempt
	for i := range s.Slots {
		if s.Slots[i].Revision == e.Revision && s.lacksOutcome(s.Slots[i]) {
			attempt = max(attempt, s.Slots[i].Attempt)
		}
	}
	// One that ran when a person started over is the first of those to come.
	n := max(1, attempt-e.AttemptsBefore)
	text := fmt.Sprintf("importing, attempt %d of %d", n, s.policy.RetryLimit+1)
	if o := s.ObjectsByAttempt[e.Attempt]; e.Attempt > e.AttemptEnded && o != nil && o.DataVolume != nil &&
		o.DataVolume.Status.Phase != cdiv1.ImportInProgress && o.DataVolume.Status.Phase != cdiv1.ImportScheduled {
		if c := findCondition(o.DataVolume, cdiv1.DataVolumeBound); c.Reason == cdiReasonClaimInvalid {
			text += ": " + truncateMessage(describeStall(o))
		}
	}
	return text
}

func (s *step) setProgress(progress string) {
	if s.status.BytesTotal == 0 {
		s.status.BytesTotal = s.Image.Spec.DiskSize.Value()
	}
	s.status.Progress = progress
	s.status.BytesDone = int64(float64(s.status.BytesTotal) * parsePercent(progress) / 100)
}

// parsePercent reads CDI's progress, "42.0%"; "N/A" and what is no number are 0.
func parsePercent(progress string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSuffix(progress, "%"), 64)
	if err != nil || v < 0 || v > 100 {
		return 0
	}
	return v
}

func isClaimLost(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp != nil || claim.Status.Phase == corev1.ClaimLost
}

// ready asks for the bound content too: a snapshot has been seen to call itself
// ready without one.
func ready(snap *snapshotv1.VolumeSnapshot) bool {
	return snap.DeletionTimestamp == nil && snap.Status != nil &&
		snap.Status.ReadyToUse != nil && *snap.Status.ReadyToUse &&
		snap.Status.BoundVolumeSnapshotContentName != nil && *snap.Status.BoundVolumeSnapshotContentName != ""
}

func snapshotClassOf(snap *snapshotv1.VolumeSnapshot) string {
	if snap.Spec.VolumeSnapshotClassName == nil {
		return ""
	}
	return *snap.Spec.VolumeSnapshotClassName
}

func snapshotErrorSuffix(snap *snapshotv1.VolumeSnapshot) string {
	if snap == nil || snap.Status == nil || snap.Status.Error == nil || snap.Status.Error.Message == nil {
		return ""
	}
	return ": " + truncateMessage(*snap.Status.Error.Message)
}

// hasSnapshotFailed tells that a revision is imported and no further snapshot of it
// is tried.
func hasSnapshotFailed(e *v1alpha1.RevisionStatus) bool {
	return e.Outcome == v1alpha1.OutcomeSucceeded && e.Failure != nil
}
