package image

import (
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const maxRetryTokenLength = 1024

// ensureQueued gives the current revision a place in the queue. It restarts the
// revision where a person asked for that, by annotation or by an edit.
func (d *decider) ensureQueued() {
	retry := d.Image.Annotations[v1alpha1.AnnotationRetry]
	if len(retry) > maxRetryTokenLength {
		// Half a rune would be stored as another one, and request a retry each time.
		retry = strings.ToValidUTF8(retry[:maxRetryTokenLength], "")
	}
	retryRequested := retry != d.status.ObservedRetry
	if d.observePlanRetry() {
		retryRequested = true
	}
	retargeted := d.status.Revision != d.targetRevision
	// A deletion raises the generation too, and is no edit.
	edited := d.status.ObservedGeneration != d.Image.Generation && d.Image.DeletionTimestamp == nil
	d.status.ObservedRetry = retry
	d.status.Revision = d.targetRevision

	d.moveTargetFirst()
	rev := findRevision(d.status.Revisions, d.targetRevision)
	if rev == nil {
		d.trimRevisions(2) // for this one, and for one that syncAttempts finds a slot of
		d.status.Revisions = append([]v1alpha1.RevisionStatus{{
			Revision:       d.targetRevision,
			Source:         sourceForPeople(d.Image.Spec.URL),
			OrderingKey:    d.ArrivalKey,
			AttemptsBefore: d.status.LastAttempt,
		}}, d.status.Revisions...)
		d.status.QueuePosition = nil
		return
	}
	if retryRequested || retargeted || (edited && hasFailedPermanently(rev)) || (edited && hasSnapshotFailed(rev)) {
		d.restartRevision(rev, retargeted)
	}
	if retryRequested {
		// The running attempt began before what the request is about: its failure is not the last one.
		rev.AttemptsBefore = max(rev.AttemptsBefore, d.runningAttempt(rev))
	}
}

// runningAttempt returns the number of a revision's attempt that has not ended; 0 for none.
func (d *decider) runningAttempt(rev *v1alpha1.RevisionStatus) (attempt int32) {
	if rev.Attempt > rev.AttemptEnded {
		attempt = rev.Attempt
	}
	for i := range d.Slots {
		if s := &d.Slots[i]; s.Revision == rev.Revision && !s.Ended && s.Attempt > rev.AttemptEnded {
			attempt = max(attempt, s.Attempt)
		}
	}
	return attempt
}

// observePlanRetry reports whether the plan starts a failed image over. Invariant: an image is
// started over once per token, also if its retries fail again: the token is stored with what
// it leads to. A cached plan may be an older one, with an older token.
func (d *decider) observePlanRetry() bool {
	token := d.Plan.Retry
	if token == "" || token == d.status.ObservedPlanRetry || !IsPlanned(d.Image) || d.Plan.Unknown || !d.requireLive() {
		return false
	}
	d.status.ObservedPlanRetry = token
	return true
}

// restartRevision forgets the failures of a revision. A revision that had left the
// queue returns to its end, one that was backing off keeps its place.
func (d *decider) restartRevision(rev *v1alpha1.RevisionStatus, retargeted bool) {
	rev.Resyncs, rev.ResyncsSince = 0, nil
	if hasSnapshotFailed(rev) {
		rev.Failure = nil
		rev.SnapshotSince = nil
	}
	if rev.Outcome != v1alpha1.OutcomeFailed {
		return
	}
	if hasFailedPermanently(rev) || retargeted {
		rev.OrderingKey = d.EndOfQueueKey
		d.status.QueuePosition = nil
	}
	rev.AttemptsBefore = d.status.LastAttempt
	rev.Failure = nil
	rev.NotBefore = &d.now
}

// moveTargetFirst moves the current revision to the head of the list:
// trimRevisions drops from its end.
func (d *decider) moveTargetFirst() {
	i := slices.IndexFunc(d.status.Revisions, func(rev v1alpha1.RevisionStatus) bool { return rev.Revision == d.targetRevision })
	if i > 0 {
		rev := d.status.Revisions[i]
		d.status.Revisions = slices.Insert(slices.Delete(d.status.Revisions, i, i+1), 0, rev)
	}
}

// trimRevisions makes room in the list of revisions. The current one, the one that serves,
// running ones and those that are being ended stay; of the others the oldest are dropped,
// and deleteUnused deletes their objects.
//
// A running revision stays even without a visible slot: the cached slots may be
// stale, and a forgotten attempt would be started a second time.
func (d *decider) trimRevisions(reserved int) {
	stays := func(revision string) bool {
		return revision == d.targetRevision || d.isServing(revision) || d.hasSlot(revision)
	}
	d.dropRevisions(v1alpha1.MaxRevisions-reserved, func(rev v1alpha1.RevisionStatus) bool {
		return !stays(rev.Revision) && rev.Attempt <= rev.AttemptEnded
	})
	d.dropRevisions(v1alpha1.MaxRevisions-1, func(rev v1alpha1.RevisionStatus) bool { return !stays(rev.Revision) })
}

// dropRevisions drops the last droppable revisions until maxRevisions are left.
func (d *decider) dropRevisions(maxRevisions int, droppable func(v1alpha1.RevisionStatus) bool) {
	for i := len(d.status.Revisions) - 1; i >= 0 && len(d.status.Revisions) > maxRevisions; i-- {
		if droppable(d.status.Revisions[i]) {
			d.status.Revisions = slices.Delete(d.status.Revisions, i, i+1)
		}
	}
}
