package hubclient

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxRefusalLength bounds what the hub's API server says about a report that it refuses.
const maxRefusalLength = 512

// minSyncFailures is how many syncs in a row have to fail before the member's status says
// so: it is written for each change.
const minSyncFailures = 2

// maxConflicts is more than replicas that sync the same mailbox have with each other.
const maxConflicts = 20

// SyncFailures counts the syncs in a row that failed because of the member.
type SyncFailures struct{ inARow, conflicts int }

// Result returns the retry delay after conflicts with another process, or the joined errors, whose
// directions onFailure gets. Describe has to count the sync before: conflicts that last are errors too,
// whose backoff spares the API servers.
func (f *SyncFailures) Result(up, down error, onFailure func(direction string)) (time.Duration, error) {
	var failed []error
	conflict := false
	for _, one := range []struct {
		direction string
		err       error
	}{{mailbox.DirectionUp, up}, {mailbox.DirectionDown, down}} {
		switch {
		case one.err == nil:
		case apierrors.IsConflict(one.err) && !f.conflictsPersist():
			conflict = true
		default:
			onFailure(one.direction)
			failed = append(failed, one.err)
		}
	}
	if conflict && len(failed) == 0 {
		return trigger.ConflictRetryDelay, nil
	}
	return 0, errors.Join(failed...)
}

// conflictsPersist reports whether so many syncs in a row ended in conflicts that nobody
// else's writes are the reason.
func (f *SyncFailures) conflictsPersist() bool { return f.conflicts >= maxConflicts }

// Describe returns why the mailbox is not synced, after one more sync; empty if it is.
// before is what was described last.
func (f *SyncFailures) Describe(up, down error, before string) string {
	failure := describeSyncErrors(up, down)
	if up == nil && down == nil {
		*f = SyncFailures{}
		return ""
	}
	if apierrors.IsConflict(up) || apierrors.IsConflict(down) {
		f.conflicts++
		if !f.conflictsPersist() {
			return before
		}
	}
	if failure == "" {
		return before
	}
	if f.inARow++; f.inARow < minSyncFailures {
		return before
	}
	return failure
}

// IsSameForAll reports whether a report is not copied for what it says, or for what its member answers:
// whoever copies it fails. One that gets no answer may be the only one.
func IsSameForAll(up error) bool {
	var inMember *mailbox.MemberError
	if errors.As(up, &inMember) {
		kind, _ := ClassifyError(inMember.Unwrap())
		return kind != NetworkFailure || errors.As(up, new(mailbox.ReportError))
	}
	return mailbox.IsRefused(up)
}

// describeSyncErrors says what is wrong with a member whose mailbox is not synced, by the
// errors of mailbox.Relay; empty if the member is not the reason. It is always the same
// for the same cause.
func describeSyncErrors(up, down error) string {
	for _, err := range []error{up, down} {
		var inMember *mailbox.MemberError
		switch {
		case errors.As(err, &inMember):
			_, why := ClassifyError(inMember.Unwrap())
			return "the mailbox is not synced: " + inMember.Doing + ": " + why + "; check which server answers for the member, and the permissions of its credential"
		case err != nil && mailbox.IsRefused(err):
			return "the hub refuses a part of the member's report, so what it shows is older: " + v1alpha1.SanitizeText(err.Error(), maxRefusalLength) + ". Check that ot-agent wrote it, its version, and which quotas and webhooks its namespace has on the hub"
		}
	}
	return ""
}
