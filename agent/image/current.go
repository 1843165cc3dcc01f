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

// keep works on the current revision: what it does next, or what it waits for.
func (s *step) keep() {
	s.checkServing()
	e := find(s.st.Revisions, s.target)
	running := e.Attempt > e.AttemptEnded
	for i := range s.Slots {
		running = running || (s.Slots[i].Revision == s.target && s.open(s.Slots[i]))
	}
	switch {
	case running && s.justAdmitted(e):
		s.Position = s.st.QueuePosition
		s.wait = Blocker{Reason: waitingFor(s.st)}
		s.within(admissionDelay)
	case running:
		s.wait = Blocker{v1alpha1.ReasonImporting, s.importing(e)}
	case e.Outcome == v1alpha1.OutcomeSucceeded:
		s.keepImported(e)
	}
	if !running && e.Outcome != v1alpha1.OutcomeSucceeded {
		s.await(e)
	}
}

// admissionDelay is how long a slot may stand without its DataVolume before the
// status tells of it. StartedAt has full seconds.
const admissionDelay = 3 * time.Second

// justAdmitted tells that a slot was given and its DataVolume is about to be
// created: a status for that moment would cost each import a write, at the very
// time at which the next ones are admitted.
func (s *step) justAdmitted(e *v1alpha1.RevisionStatus) bool {
	if !queued(waitingFor(s.st)) {
		return false
	}
	for i := range s.Slots {
		slot := &s.Slots[i]
		if slot.Revision == s.target && e.Attempt < slot.Attempt && s.Now.Sub(slot.StartedAt.Time) < admissionDelay {
			return true
		}
	}
	return false
}

// checkServing stops serving from what is no longer there.
func (s *step) checkServing() {
	serving := s.st.Serving
	if serving == nil {
		return
	}
	o := s.Attempts[serving.Attempt]
	there := o != nil && o.Claim != nil && !lost(o.Claim)
	// CDI makes a claim again that has gone, and downloads into it: what an older
	// revision has left must not live on for the sake of its snapshot.
	if e := find(s.st.Revisions, serving.Revision); !there && e != nil && e.Revision != s.target && e.AttemptEnded == serving.Attempt && e.Outcome == v1alpha1.OutcomeSucceeded {
		if !s.Live {
			s.d.NeedsLive = true
			return
		}
		e.Outcome, e.NotBefore = v1alpha1.OutcomeFailed, nil
		e.Failure = &v1alpha1.Failure{Reason: v1alpha1.ReasonStorageLost, Message: "the storage of its DataVolume " + e.DataVolume + " is gone", Time: s.now}
	}
	if serving.VolumeSnapshot != "" {
		snap := o.snapshot(serving.VolumeSnapshot)
		there = snap != nil && ready(snap)
	}
	switch {
	case there:
	case !s.Live:
		s.d.NeedsLive = true
	default:
		s.st.Serving = nil
	}
}

// keepImported looks after a revision whose bytes have been imported: lost
// storage is synced again, a snapshot is made, and then it serves.
func (s *step) keepImported(e *v1alpha1.RevisionStatus) {
	o := s.Attempts[e.AttemptEnded]
	if o == nil || o.Claim == nil || lost(o.Claim) {
		if !s.Live {
			s.d.NeedsLive = true
			return
		}
		if s.mayResync(e, "the storage of its DataVolume "+e.DataVolume+" is gone") {
			e.NotBefore = &s.now
			e.AttemptsBefore = s.st.LastAttempt
			e.OrderingKey = s.FreshKey
			s.st.QueuePosition = nil
		}
		e.Outcome = v1alpha1.OutcomeFailed
		return
	}
	if s.Image.Spec.SnapshotClass == "" {
		s.serve(e, o, nil)
		return
	}
	s.keepSnapshot(e, o)
}

// mayResync spends one resync, or fails the revision where none is left.
func (s *step) mayResync(e *v1alpha1.RevisionStatus, what string) bool {
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

// keepSnapshot makes the VolumeSnapshot of an imported revision. No slot is
// needed for it. One that does not become ready is given up and another is
// made, as often as the policy retries.
func (s *step) keepSnapshot(e *v1alpha1.RevisionStatus, o *Objects) {
	snap := o.snapshot(e.VolumeSnapshot)
	fits := snap != nil && classOf(snap) == s.Image.Spec.SnapshotClass
	if fits && ready(snap) { // it needs its class no more
		s.serve(e, o, snap)
		return
	}
	if s.Blocker != nil && s.Blocker.Reason == v1alpha1.ReasonSnapshotClassMissing {
		e.SnapshotSince = nil
		s.within(blockerInterval)
		s.wait = *s.Blocker
		return
	}
	if snapshotFailed(e) {
		s.wait = Blocker{e.Failure.Reason, e.Failure.Message + advice(e.Failure.Reason)}
		return
	}
	served := s.Image.Status.Serving != nil && e.VolumeSnapshot != "" && s.Image.Status.Serving.VolumeSnapshot == e.VolumeSnapshot
	switch {
	case e.VolumeSnapshot == "":
		s.nextSnapshot(e, o)
	case snap != nil && !fits:
		e.SnapshotAttempt = 0 // another class has its own tries
		s.nextSnapshot(e, o)
	case served && (snap == nil || snap.DeletionTimestamp != nil):
		if !s.Live {
			s.d.NeedsLive = true
			return
		}
		if !s.mayResync(e, "its VolumeSnapshot "+e.VolumeSnapshot+" is gone") {
			e.VolumeSnapshot, e.SnapshotAttempt = "", 0
			s.wait = Blocker{e.Failure.Reason, e.Failure.Message + advice(e.Failure.Reason)}
			return
		}
		e.Failure = nil
		e.SnapshotAttempt = 0
		s.nextSnapshot(e, o)
	}
	if e.SnapshotSince == nil {
		e.SnapshotSince = &s.now
	}
	if snap = o.snapshot(e.VolumeSnapshot); snap != nil && ready(snap) {
		s.serve(e, o, snap) // of an agent that died before it could store the name
		return
	}
	left := s.policy.StallTimeout - max(0, s.Now.Sub(e.SnapshotSince.Time))
	if left <= 0 {
		if e.SnapshotAttempt > s.policy.RetryLimit {
			e.Failure = &v1alpha1.Failure{
				Reason: v1alpha1.ReasonSnapshotFailed, Time: s.now,
				Message: fmt.Sprintf("none of %d VolumeSnapshots became ready within %s%s. The import is kept: repair the CSI driver",
					e.SnapshotAttempt, s.policy.StallTimeout, snapshotError(snap)),
			}
			e.VolumeSnapshot, e.SnapshotAttempt = "", 0
			s.wait = Blocker{e.Failure.Reason, e.Failure.Message + advice(e.Failure.Reason)}
			return
		}
		s.nextSnapshot(e, o)
		left = s.policy.StallTimeout
	}
	s.within(left)
	if o.snapshot(e.VolumeSnapshot) == nil {
		s.d.CreateSnapshot = s.newSnapshot(e, o)
	}
	s.wait = Blocker{v1alpha1.ReasonSnapshotting, fmt.Sprintf("imported; VolumeSnapshot %s is not ready yet%s", e.VolumeSnapshot, snapshotError(snap))}
}

func (s *step) nextSnapshot(e *v1alpha1.RevisionStatus, o *Objects) {
	e.SnapshotAttempt++
	e.VolumeSnapshot = fmt.Sprintf("%s-%s", o.Claim.Name, strconv.FormatInt(s.Now.UnixMilli(), 36))
	e.SnapshotSince = &s.now
}

func (s *step) newSnapshot(e *v1alpha1.RevisionStatus, o *Objects) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		TypeMeta: metav1.TypeMeta{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   s.Image.Namespace,
			Name:        e.VolumeSnapshot,
			Labels:      Labels(KeyOf(s.Image), e.Revision, e.AttemptEnded),
			Annotations: map[string]string{v1alpha1.AnnotationImageName: s.Image.Name},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &o.Claim.Name},
			VolumeSnapshotClassName: &s.Image.Spec.SnapshotClass,
		},
	}
}

// serve makes a revision the one that VMs are cloned from.
func (s *step) serve(e *v1alpha1.RevisionStatus, o *Objects, snap *snapshotv1.VolumeSnapshot) {
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
	s.st.Serving = serving
	message := "ready: cloned from PersistentVolumeClaim " + serving.PersistentVolumeClaim
	if snap != nil {
		message = "ready: cloned from VolumeSnapshot " + snap.Name
	}
	s.wait = Blocker{v1alpha1.ReasonReady, message}
}

// await says what keeps the next attempt of the current revision from starting.
func (s *step) await(e *v1alpha1.RevisionStatus) {
	switch {
	case failedForGood(e) && e.Failure == nil: // not written by an agent
		s.wait = Blocker{v1alpha1.ReasonImportFailed, "failed, and its status does not say why" + advice(v1alpha1.ReasonImportFailed)}
		return
	case failedForGood(e):
		s.wait = Blocker{e.Failure.Reason, e.Failure.Message + advice(e.Failure.Reason)}
		return
	// What was started over has no failure, and by a clock that is behind the one
	// of that time its NotBefore is still to come.
	case e.NotBefore != nil && e.Failure != nil && s.Now.Before(e.NotBefore.Time):
		s.within(e.NotBefore.Sub(s.Now))
		s.wait = Blocker{v1alpha1.ReasonBackingOff, fmt.Sprintf("attempt %d of %d failed: %s: %s; the next starts after %s",
			e.AttemptEnded-e.AttemptsBefore, s.policy.RetryLimit+1, e.Failure.Reason, e.Failure.Message, e.NotBefore.UTC().Format(time.RFC3339))}
		return
	// CDI makes a lost claim again for its DataVolume and downloads into it. No
	// slot stands for that, so it has to be over before one is given.
	case e.AttemptEnded > 0 && !s.hasSlot(e.Revision) && s.Attempts[e.AttemptEnded].Importing():
		s.wait = Blocker{v1alpha1.ReasonStorageLost, fmt.Sprintf("what is left of attempt %d is removed before the next one", e.AttemptEnded)}
		return
	case s.Blocker != nil:
		s.within(blockerInterval)
		s.wait = *s.Blocker
		return
	}
	if admissible(s.Image, s.target) {
		s.Preflight.Known = true // it was known when it was stored that it may be admitted
	}
	if _, askable := PreflightURL(s.Image.Spec); askable && s.policy.Preflight && !s.Preflight.Known {
		s.d.AskSource = true
		s.wait = Blocker{v1alpha1.ReasonChecking, "the source is asked whether it has the image"}
		return
	}
	if s.Preflight.Size > 0 {
		s.st.BytesTotal = s.Preflight.Size
	}
	if f := s.Preflight.Refused; f != nil {
		s.fail(e, v1alpha1.Slot{Image: KeyOf(s.Image), Revision: e.Revision, Attempt: s.st.LastAttempt + 1, StartedAt: s.now}, *f)
		s.Preflight = Preflight{}
		s.await(e)
		return
	}
	switch {
	case s.Policy == nil:
		s.wait = Blocker{v1alpha1.ReasonPolicyMissing, "nothing is downloaded: there has never been a valid policy ConfigMap (see kubectl describe syncledger)"}
	case s.policy.Concurrency == 0:
		s.wait = Blocker{v1alpha1.ReasonPaused, "nothing is downloaded: the policy's concurrency is 0"}
	case s.Withheld != "":
		s.wait = Blocker{Reason: s.Withheld}
	default:
		s.wait = Blocker{Reason: v1alpha1.ReasonWaitingForSlot}
	}
}

// blockerInterval is how often a missing object is looked for that no watch
// tells of.
const blockerInterval = time.Minute

// admissible tells that an image was stored as one that may be admitted.
func admissible(img *v1alpha1.VMDiskImage, target string) bool {
	return img.Status.Revision == target && awaitsTurn(waitingFor(&img.Status))
}

// advice says what a person can do about a failure that waiting does not heal.
func advice(r v1alpha1.Reason) string {
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
func (s *step) watchProgress(e *v1alpha1.RevisionStatus, slot v1alpha1.Slot, o *Objects) {
	phase, progress := string(o.DataVolume.Status.Phase), string(o.DataVolume.Status.Progress)
	moved := phase != e.ImportPhase || progress != s.st.Progress
	since := s.Now.Sub(orZero(e.ProgressedAt).Time)
	// A status write for every percent of every import would be many; a tenth, or
	// a while, is soon enough. At the deadline what moved is always stored.
	interval := min(30*time.Second, s.policy.StallTimeout/3)
	if moved && (phase != e.ImportPhase || percent(progress)-percent(s.st.Progress) >= 10 || since >= interval) {
		e.ImportPhase = phase
		e.ProgressedAt = &s.now
		s.setBytes(progress)
		since = 0
	} else if moved {
		s.within(interval - since)
	}
	timeLeft := s.policy.AttemptTimeout - max(s.Ages[slot.DataVolume], s.Now.Sub(slot.StartedAt.Time))
	quietLeft := s.policy.StallTimeout - since
	switch {
	case timeLeft <= 0:
		s.fail(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonTimeout, Message: fmt.Sprintf("not done within attemptTimeout, %s: %s", s.policy.AttemptTimeout, cut(stuckOn(o)))})
	case quietLeft <= 0:
		s.fail(e, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonStalled, Message: fmt.Sprintf("nothing moved for stallTimeout, %s: %s", s.policy.StallTimeout, cut(stuckOn(o)))})
	default:
		s.within(min(timeLeft, quietLeft))
	}
}

func (s *step) importing(e *v1alpha1.RevisionStatus) string {
	attempt := e.Attempt
	for i := range s.Slots {
		if s.Slots[i].Revision == e.Revision && s.open(s.Slots[i]) {
			attempt = max(attempt, s.Slots[i].Attempt)
		}
	}
	// One that ran when a person started over is the first of those to come.
	n := max(1, attempt-e.AttemptsBefore)
	text := fmt.Sprintf("importing, attempt %d of %d", n, s.policy.RetryLimit+1)
	if o := s.Attempts[e.Attempt]; e.Attempt > e.AttemptEnded && o != nil && o.DataVolume != nil &&
		o.DataVolume.Status.Phase != cdiv1.ImportInProgress && o.DataVolume.Status.Phase != cdiv1.ImportScheduled {
		if c := condition(o.DataVolume, cdiv1.DataVolumeBound); c.Reason == cdiClaimInvalid {
			text += ": " + cut(stuckOn(o))
		}
	}
	return text
}

func (s *step) setBytes(progress string) {
	if s.st.BytesTotal == 0 {
		s.st.BytesTotal = s.Image.Spec.DiskSize.Value()
	}
	s.st.Progress = progress
	s.st.BytesDone = int64(float64(s.st.BytesTotal) * percent(progress) / 100)
}

// percent reads CDI's progress, "42.0%"; "N/A" and what is no number are 0.
func percent(progress string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSuffix(progress, "%"), 64)
	if err != nil || v < 0 || v > 100 {
		return 0
	}
	return v
}

func lost(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp != nil || claim.Status.Phase == corev1.ClaimLost
}

// ready asks for the bound content too: a snapshot has been seen to call itself
// ready without one.
func ready(snap *snapshotv1.VolumeSnapshot) bool {
	return snap.DeletionTimestamp == nil && snap.Status != nil &&
		snap.Status.ReadyToUse != nil && *snap.Status.ReadyToUse &&
		snap.Status.BoundVolumeSnapshotContentName != nil && *snap.Status.BoundVolumeSnapshotContentName != ""
}

func classOf(snap *snapshotv1.VolumeSnapshot) string {
	if snap.Spec.VolumeSnapshotClassName == nil {
		return ""
	}
	return *snap.Spec.VolumeSnapshotClassName
}

func snapshotError(snap *snapshotv1.VolumeSnapshot) string {
	if snap == nil || snap.Status == nil || snap.Status.Error == nil || snap.Status.Error.Message == nil {
		return ""
	}
	return ": " + cut(*snap.Status.Error.Message)
}

// snapshotFailed tells that a revision is imported and no further snapshot of it
// is tried.
func snapshotFailed(e *v1alpha1.RevisionStatus) bool {
	return e.Outcome == v1alpha1.OutcomeSucceeded && e.Failure != nil
}
