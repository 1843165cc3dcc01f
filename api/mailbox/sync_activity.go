package mailbox

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// syncActivity copies the activity, and deletes the hub's copy if the member has none. The
// sync of the report does not depend on it.
func (r Relay) syncActivity(ctx context.Context, source memberReport, copies map[string]*metav1.PartialObjectMetadata, result *UpResult) error {
	copied := copies[v1alpha1.ActivityName]
	valid := func(a *v1alpha1.ClusterReport) bool {
		return a != nil && a.Activity != nil && a.ClusterUID == source.root.ClusterUID
	}
	if !valid(source.activity) {
		if copied == nil {
			return nil
		}
		// The cache may be older than the copy.
		live, found, err := readObject(ctx, r.Member.Live, reportKind, r.Member, inMember, v1alpha1.ActivityName)
		if err != nil || found && valid(live) {
			return err
		}
		deleted, err := r.deleteCopy(ctx, copied)
		result.Written += deleted
		return err
	}
	if r.Copies.skipsActivity(source.activity) {
		return nil
	}
	written, err := r.syncPart(ctx, source.activity, copied, valid)
	if IsRefused(err) {
		r.Copies.recordRefusedActivity(source.activity)
		result.ActivityRefused = err
		return nil
	}
	if written {
		result.Written++
	}
	return err
}

// refusedActivityPause is how many changes of an activity are not sent after one that was
// refused: about ten minutes.
const refusedActivityPause = 30

// refusedActivity is an activity that the hub's API server refused.
type refusedActivity struct {
	// last is the newest version that was not sent, or refused.
	last objectVersion
	left int
}

// skipsActivity reports whether an activity is not sent because one before it was refused,
// for the same reason most probably: the hub's definitions are older. Some later one is tried
// again.
func (e *EqualCopies) skipsActivity(activity metav1.Object) bool {
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	version := versionOf(activity)
	if e.refused.left > 0 && e.refused.last != version {
		e.refused.last = version
		e.refused.left--
	}
	return e.refused.last == version
}

func (e *EqualCopies) recordRefusedActivity(activity metav1.Object) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = refusedActivity{last: versionOf(activity), left: refusedActivityPause}
}
