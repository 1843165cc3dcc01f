package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/memberclient"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// mailboxSync is one sync of a member's mailbox: what it begins with, and what came of it.
type mailboxSync struct {
	member string
	relay  mailbox.Relay
	state  *connectionState
	began  time.Time
	// before are the findings of the syncs before this one.
	before mailbox.Findings
	// known is the member's cluster; if it is empty, the hub's copy of the report decides.
	known types.UID
	// holder is another member that the cluster belongs to; empty for none.
	holder string

	// uploadDelayed, downloadDelayed: the report, or plan and grant, were not copied now, since too
	// much was before.
	uploadDelayed, downloadDelayed bool

	up      mailbox.UpResult
	upErr   error
	down    mailbox.DownResult
	downErr error
}

// syncMailbox syncs up and down, and sets the findings in the status.
func (r *Reconciler) syncMailbox(ctx context.Context, member *v1alpha1.MemberCluster, connected *memberclient.Member, link *v1alpha1.MemberLink, status *v1alpha1.MemberLinkStatus) (time.Duration, error) {
	s, err := r.gatherSync(ctx, member, connected, link)
	if err != nil {
		return 0, err
	}
	r.syncUp(ctx, s) // first: the plan may depend on what the member reports
	if s.maySyncDown() {
		r.syncDown(ctx, s)
	}
	syncError, late := s.recordSync()
	s.decideFindings(syncError, late).SetStatus(status, link.Spec.Challenge)
	if ctx.Err() != nil {
		return 0, nil // the hub stops
	}
	retryDelay, err := s.state.failures.Result(s.upErr, s.downErr, r.Metrics.CountSyncError)
	now := time.Now()
	return trigger.Earliest(retryDelay, s.state.uploads.wait(now), s.state.downloads.wait(now)), err
}

// gatherSync returns a sync that has not begun to copy.
func (r *Reconciler) gatherSync(ctx context.Context, member *v1alpha1.MemberCluster, connected *memberclient.Member, link *v1alpha1.MemberLink) (*mailboxSync, error) {
	state := r.ensureState(member.Name, connected)
	s := &mailboxSync{member: member.Name, state: state, began: time.Now(), before: mailbox.FindingsFromStatus(&link.Status, link.Spec.Challenge)}
	s.before.Connection = r.Members.ConnectionID(member.Name, connected)
	s.relay = mailbox.Relay{
		Hub:             mailbox.Side{Cached: &state.mailbox, Live: r.Live, Namespace: link.Namespace},
		Member:          mailbox.Side{Cached: connected.GetCache(), Live: connected.GetClient(), Namespace: connected.Namespace},
		Copies:          &state.EqualCopies,
		Recheck:         s.before.NeedsRecheck(&state.EqualCopies, s.began),
		WholeReads:      r.wholeReads,
		SpareHeartbeats: r.Heartbeats.ReadByAll() && r.Replica.Heartbeats.HasRoom(member.Name),
	}
	// Whether the cluster belongs to another member may be known before a cluster is recorded.
	reported, err := getReportedCluster(ctx, connected)
	if err != nil {
		return nil, err
	}
	if s.holder, err = claim.FindHolder(ctx, r.Cached, member, memberstatus.ResolveClusterUID(member, reported)); err != nil {
		return nil, err
	}
	if s.holder == "" { // otherwise the member could become another cluster without anybody's consent
		s.known = memberstatus.ResolveClusterUID(member, "")
	}
	return s, nil
}

// getReportedCluster returns the cluster of the member's report; empty for no report.
func getReportedCluster(ctx context.Context, member *memberclient.Member) (types.UID, error) {
	root := &v1alpha1.ClusterReport{}
	err := member.GetCache().Get(ctx, client.ObjectKey{Namespace: member.Namespace, Name: v1alpha1.MailboxName}, root, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading the ClusterReport in the member: %w", err)
	}
	return root.ClusterUID, nil
}

// syncUp copies the report, unless too much of it was copied before.
func (r *Reconciler) syncUp(ctx context.Context, s *mailboxSync) {
	if s.uploadDelayed = s.state.uploads.wait(s.began) > 0; s.uploadDelayed {
		return
	}
	measured, upload := measureUpload(ctx)
	s.up, s.upErr = s.relay.SyncUp(measured, s.known)
	if s.up.Written > 0 && upload.requests == 0 {
		s.upErr = errors.Join(s.upErr, errNotMeasured)
	}
	s.state.uploads.recordSync(upload, s.up.Written, time.Now())
	r.Replica.Heartbeats.Set(s.member, s.up.Heartbeat)
	r.Metrics.CountSynced(mailbox.DirectionUp, s.up.Written)
	if s.up.ActivityRefused != nil {
		log.FromContext(ctx).Info("The hub's API server refuses the activity of a report; going on without it. Check that the CRDs are of the hub's version", "member", s.member, "error", s.up.ActivityRefused)
	}
}

// syncDown copies plan and grant, unless the copies change all the time.
func (r *Reconciler) syncDown(ctx context.Context, s *mailboxSync) {
	if s.downloadDelayed = s.state.downloads.wait(s.began) > 0; s.downloadDelayed {
		s.relay.Recheck.Down = false // nothing is rechecked now
		return
	}
	measured, download := measureUpload(ctx)
	s.down, s.downErr = s.relay.SyncDown(measured)
	s.state.downloads.recordSync(download, len(s.down.Written), time.Now())
	r.Metrics.CountSynced(mailbox.DirectionDown, len(s.down.Written))
}

// maySyncDown reports whether plan and grant are for the cluster that answers. Otherwise it may
// have those of another member.
func (s *mailboxSync) maySyncDown() bool {
	otherCluster := s.up.OtherCluster
	if s.uploadDelayed || s.upErr != nil {
		otherCluster = s.before.OtherCluster
	}
	return s.holder == "" && (otherCluster == "" || otherCluster == s.known)
}

// recordSync records what later syncs depend on. It returns why the mailbox is not synced, and
// why the report is late; empty if it is not.
func (s *mailboxSync) recordSync() (syncError, late string) {
	if s.uploadDelayed {
		return s.state.failures.Describe(nil, s.downErr, ""), ""
	}
	s.state.RecordSync(s.relay.Recheck, s.up, s.upErr, s.downErr, s.began)
	return s.state.failures.Describe(s.upErr, s.downErr, s.before.SyncError), s.state.uploads.describe(time.Now())
}

// errCopyDelayed: what is not copied now has shown nothing.
var errCopyDelayed = errors.New("it has changed too much to be copied now")

// decideFindings returns the findings after this sync.
func (s *mailboxSync) decideFindings(syncError, late string) mailbox.Findings {
	downErr := s.downErr
	if s.downloadDelayed {
		downErr = errCopyDelayed
	}
	if s.uploadDelayed {
		after := s.before.Merge(s.up, errCopyDelayed, s.down, downErr)
		after.SyncError = cmp.Or(syncError, s.before.SyncError) // what was said of the last one still holds
		return after
	}
	after := s.before.Merge(s.up, s.upErr, s.down, downErr)
	after.SyncError = cmp.Or(syncError, late)
	refused := hubclient.IsSameForAll(s.upErr) || s.before.ReportRefused && syncError == s.before.SyncError
	after.ReportRefused = after.SyncError != "" && (refused || late != "")
	return after
}
