package image

import (
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// resyncWindow is the time over which policy.ResyncLimit counts.
	resyncWindow = 24 * time.Hour
	// admissionGracePeriod is how long a slot may lack its DataVolume before the
	// status shows it. StartedAt has full seconds.
	admissionGracePeriod = 3 * time.Second
	// blockerRecheckInterval is how often a missing object is looked up: not all of
	// them are watched.
	blockerRecheckInterval = time.Minute
)

// reconcileCurrent decides what the current revision does next, or waits for.
func (d *decider) reconcileCurrent() {
	d.verifyServing()
	if UsesDataSource(&d.Image.Spec) {
		d.reconcileDataSource()
		return
	}
	rev := findRevision(d.status.Revisions, d.targetRevision)
	running := rev.Attempt > rev.AttemptEnded
	for i := range d.Slots {
		running = running || (d.Slots[i].Revision == d.targetRevision && d.lacksOutcome(d.Slots[i]))
	}
	switch {
	case running && d.justAdmitted(rev):
		d.QueuePosition = d.status.QueuePosition
		d.setActivity(storedWaitReason(d.status), "")
		d.requeueWithin(admissionGracePeriod)
	case running:
		d.importing = true
		described := d.describeImport(rev)
		d.setActivity(described.Reason, described.Message)
		d.activity.NeedsPerson = described.NeedsPerson
	case rev.Outcome == v1alpha1.OutcomeSucceeded:
		d.reconcileImported(rev)
	}
	if !running && rev.Outcome != v1alpha1.OutcomeSucceeded {
		d.awaitAdmission(rev)
	}
}

// justAdmitted reports whether the revision has a new slot whose DataVolume is
// about to be created. A status for that moment would cost each import a write
// while the next ones are admitted.
func (d *decider) justAdmitted(rev *v1alpha1.RevisionStatus) bool {
	if !hasQueuePosition(storedWaitReason(d.status)) {
		return false
	}
	for i := range d.Slots {
		slot := &d.Slots[i]
		if slot.Revision == d.targetRevision && rev.Attempt < slot.Attempt && d.Now.Sub(slot.StartedAt.Time) < admissionGracePeriod {
			return d.CreationProblem == nil || d.CreationProblem(*slot) == nil
		}
	}
	return false
}

// verifyServing stops serving from storage that is gone.
func (d *decider) verifyServing() {
	serving := d.status.Serving
	if serving == nil {
		return
	}
	if belongsToOthers(serving) {
		if serving.Revision != d.targetRevision && !d.FormerSourceExists {
			d.status.Serving = nil
		}
		return
	}
	objects := d.ObjectsByAttempt[serving.Attempt]
	exists := objects.claimExists()
	// CDI recreates a lost claim and downloads into it: an older revision must not
	// be kept for its snapshot alone.
	if rev := findRevision(d.status.Revisions, serving.Revision); !exists && rev != nil && rev.Revision != d.targetRevision && rev.AttemptEnded == serving.Attempt && rev.Outcome == v1alpha1.OutcomeSucceeded {
		if !d.requireLive() {
			return
		}
		d.failRevision(rev, v1alpha1.ReasonStorageLost, storageLostMessage(rev))
	}
	if serving.VolumeSnapshot != "" {
		snapshot := objects.findSnapshot(serving.VolumeSnapshot)
		exists = snapshot != nil && IsSnapshotReady(snapshot)
	}
	if !exists && d.requireLive() {
		d.status.Serving = nil
	}
}

// failRevision fails a revision until a person starts it over.
func (d *decider) failRevision(rev *v1alpha1.RevisionStatus, reason v1alpha1.Reason, message string) {
	rev.Outcome, rev.NotBefore = v1alpha1.OutcomeFailed, nil
	setFailure(rev, reason, message, d.now)
}

func storageLostMessage(rev *v1alpha1.RevisionStatus) string {
	return "the storage of its DataVolume " + rev.DataVolume + " is gone"
}

// reconcileImported re-syncs the lost storage of an imported revision, creates its
// snapshot, and then serves it.
func (d *decider) reconcileImported(rev *v1alpha1.RevisionStatus) {
	objects := d.ObjectsByAttempt[rev.AttemptEnded]
	if !objects.claimExists() {
		if !d.requireLive() {
			return
		}
		if d.spendResync(rev, storageLostMessage(rev)) {
			rev.NotBefore = &d.now
			rev.AttemptsBefore = d.status.LastAttempt
			rev.OrderingKey = d.EndOfQueueKey
			d.status.QueuePosition = nil
		}
		rev.Outcome = v1alpha1.OutcomeFailed
		return
	}
	if d.Image.Spec.SnapshotClass == "" {
		d.serveRevision(rev, objects, nil)
		return
	}
	d.reconcileSnapshot(rev, objects)
}

// spendResync spends one re-sync. It fails the revision, and returns false, where
// none is left.
func (d *decider) spendResync(rev *v1alpha1.RevisionStatus, lost string) bool {
	// A clock that was ahead moves the window and gives no re-sync back: with agents on nodes whose clocks
	// differ for good, each change of the leader would.
	since := storedtime.Since(d.now, rev.ResyncsSince)
	if rev.ResyncsSince == nil || storedtime.Remaining(d.Now, since.Time, resyncWindow) == 0 {
		rev.Resyncs, since = 0, &d.now
	}
	rev.ResyncsSince = since
	if rev.Resyncs >= d.policy.ResyncLimit {
		setFailure(rev, v1alpha1.ReasonResyncLimit,
			fmt.Sprintf("%s, and it was synced again %d times in 24 hours, the policy's resyncLimit. Find what deletes it", lost, rev.Resyncs), d.now)
		rev.NotBefore = nil
		return false
	}
	rev.Resyncs++
	setFailure(rev, v1alpha1.ReasonStorageLost, lost, d.now)
	return true
}

// serveRevision makes VMs clone their disks from a revision: from its snapshot, or
// from its claim where snapshot is nil.
func (d *decider) serveRevision(rev *v1alpha1.RevisionStatus, objects *AttemptObjects, snapshot *snapshotv1.VolumeSnapshot) {
	serving := &v1alpha1.Serving{Revision: rev.Revision, Attempt: rev.AttemptEnded, PersistentVolumeClaim: objects.Claim.Name, DiskSize: &d.Image.Spec.DiskSize, Architecture: d.Image.Spec.Architecture}
	if size, ok := objects.Claim.Status.Capacity[corev1.ResourceStorage]; ok {
		serving.RestoreSize = &size
	}
	d.status.Serving = serving
	if snapshot == nil {
		rev.VolumeSnapshot, rev.SnapshotAttempt, rev.SnapshotSince = "", 0, nil
		d.setActivity(v1alpha1.ReasonReady, "ready: disks are cloned from PersistentVolumeClaim "+serving.PersistentVolumeClaim)
		return
	}
	rev.SnapshotAttempt, rev.SnapshotSince = 1, nil
	serving.VolumeSnapshot = snapshot.Name
	if snapshot.Status.RestoreSize != nil {
		serving.RestoreSize = snapshot.Status.RestoreSize
	}
	d.setActivity(v1alpha1.ReasonReady, "ready: disks are cloned from VolumeSnapshot "+snapshot.Name)
}

// awaitAdmission states what keeps the next attempt of the current revision from
// starting.
func (d *decider) awaitAdmission(rev *v1alpha1.RevisionStatus) {
	if d.describeHoldUp(rev) || d.describePreflight() {
		return
	}
	if d.Preflight.Size > 0 && d.Preflight.Size <= maxDownloadBytes {
		d.status.BytesTotal = d.Preflight.Size
	}
	if failure := d.Preflight.Refused; failure != nil {
		d.recordFailure(rev, v1alpha1.Slot{Image: KeyOf(d.Image), Revision: rev.Revision, Attempt: NextAttempt(d.status.LastAttempt), StartedAt: d.now}, *failure)
		d.Preflight = PreflightResult{}
		d.awaitAdmission(rev)
		return
	}
	switch {
	case d.Policy == nil:
		d.setActivity(v1alpha1.ReasonPolicyMissing, "nothing is downloaded: there has never been a valid policy ConfigMap (see kubectl describe syncledger)")
	case d.Opening != nil && (d.policy.Concurrency == 0 || d.WithheldReason == v1alpha1.ReasonWaitingForWindow):
		d.awaitWindow()
	case d.policy.Concurrency == 0:
		d.setActivity(v1alpha1.ReasonPaused, "nothing is downloaded: the policy's concurrency is 0")
	case d.WithheldReason != "" && d.WithheldReason != v1alpha1.ReasonWaitingForWindow:
		d.setActivity(d.WithheldReason, "")
	default:
		d.setActivity(v1alpha1.ReasonWaitingForSlot, "")
	}
}

// describeHoldUp states which failure, former attempt or missing object the next attempt waits for; false for none.
func (d *decider) describeHoldUp(rev *v1alpha1.RevisionStatus) bool {
	if hasUsedUpRetries(rev, d.policy) {
		rev.NotBefore = nil
	}
	switch {
	case hasFailedPermanently(rev) && rev.Failure == nil: // not written by an agent
		d.setActivity(v1alpha1.ReasonImportFailed, "failed, and its status does not say why"+adviceFor(v1alpha1.ReasonImportFailed, &d.Image.Spec))
	case hasFailedPermanently(rev):
		d.showFailure(rev)
	case !hasAttemptLeft(d.status.LastAttempt):
		d.failRevision(rev, v1alpha1.ReasonImportFailed, fmt.Sprintf("status.lastAttempt is %d, which no agent writes: delete the image and create it again", d.status.LastAttempt))
		d.showFailure(rev)
	// A restarted revision has no failure, and its NotBefore may be in the future by
	// a clock that was set back. So may that of a failure, which then is in the future, too.
	case rev.NotBefore != nil && rev.Failure != nil && d.Now.Before(rev.NotBefore.Time) && !rev.Failure.Time.After(d.Now):
		d.requeueWithin(rev.NotBefore.Sub(d.Now))
		d.setActivity(v1alpha1.ReasonBackingOff, fmt.Sprintf("attempt %d of %d failed: %s: %s; the next starts after %s",
			max(1, rev.AttemptEnded-rev.AttemptsBefore), d.policy.RetryLimit+1, rev.Failure.Reason, rev.Failure.Message, rev.NotBefore.UTC().Format(time.RFC3339)))
	// CDI recreates a lost claim for its DataVolume and downloads into it. No slot
	// counts that download, so it has to end before a slot is given.
	case rev.AttemptEnded > 0 && !d.hasSlot(rev.Revision) && d.ObjectsByAttempt[rev.AttemptEnded].CanDownload():
		d.setActivity(v1alpha1.ReasonStorageLost, fmt.Sprintf("waits until the objects of attempt %d are deleted", rev.AttemptEnded))
	case d.Blocker != nil:
		d.requeueWithin(blockerRecheckInterval)
		d.setActivity(d.Blocker.Reason, d.Blocker.Message)
		d.activity.NeedsPerson = d.Blocker.NeedsPerson
	default:
		return false
	}
	return true
}

// describePreflight states that the source is asked first; false where its answer is known, or not needed.
func (d *decider) describePreflight() bool {
	if d.Image.Status.Revision == d.targetRevision && d.Image.Status.ObservedGeneration == d.Image.Generation && waitsForAdmission(storedWaitReason(&d.Image.Status)) {
		d.Preflight.Known = true // it was known when the image was stored as admissible
	}
	if _, probeable := PreflightURL(d.Image.Spec); probeable && d.policy.Preflight && !d.Preflight.Known {
		d.decision.ProbeSource = true
		message := "asks the source whether it has the image"
		if d.Preflight.Waiting {
			message = "waits for its turn to ask the source whether it has the image: the agent asks others of its namespace or host first"
		}
		d.setActivity(v1alpha1.ReasonChecking, message)
		return true
	}
	return false
}

// awaitWindow states when the next window of the policy opens.
func (d *decider) awaitWindow() {
	message := "waits for a window of the policy, which opens " + d.Opening.Describe() + "; until then "
	if d.policy.Concurrency == 0 {
		message += "nothing is downloaded"
	} else {
		message += fmt.Sprintf("its concurrency is %d", d.policy.Concurrency)
	}
	d.setActivity(v1alpha1.ReasonWaitingForWindow, message)
}
