package shard

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// watchInterval is the wait between two passes over the members.
	watchInterval = 5 * time.Second
	// A member is probed again after probeInterval if nothing was found, after up to
	// maxProbeInterval if it is repeatedly not reached, and after movedProbeInterval if
	// it was moved. One that only this replica reaches is probed in every pass: its next
	// report proves that it has to move.
	probeInterval      = 15 * time.Second
	maxProbeInterval   = 2 * time.Minute
	movedProbeInterval = time.Minute
	// HeartbeatTick is how long heartbeats wait for each other before they are synced.
	HeartbeatTick = 2 * time.Second
	// syncGrace is how long a report may be newer than the hub's copy, beyond the time until a replica
	// publishes its heartbeats.
	syncGrace = HeartbeatTick + 2*time.Second
	// maxConcurrentProbes of members: a member that is down occupies a probe for its
	// timeout. One that waits whether a report is synced occupies none.
	maxConcurrentProbes = 32
)

// ReportProbe reads the root of a member's report in the member.
type ReportProbe interface {
	Root(ctx context.Context, member *v1alpha1.MemberCluster) (*v1alpha1.ClusterReport, error)
}

// Watchdog probes, in the elected replica, members that do not report or that their
// replica does not reach. It moves a member to another replica if it is up and its report
// stays newer than the hub's copy.
type Watchdog struct {
	Cached   client.Reader
	Probe    ReportProbe
	Reports  *report.Store
	Links    *Links
	Assigner *Assigner
	Events   events.EventRecorder
	Metrics  *metrics.Shards

	mu       sync.Mutex
	probes   map[string]probeResult
	onChange []func(member string)
}

// probeResult is the last probe of a member.
type probeResult struct {
	probedAt time.Time
	// nextAfter is the wait before the next probe.
	nextAfter time.Duration
	// sequence of the report in the member that was not on the hub; 0: nothing was found.
	sequence int64
	message  string
}

// ForMember returns the finding of a member while it holds; empty for none.
func (w *Watchdog) ForMember(member string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.probes[member]
	if last.sequence == 0 || w.Reports.Root(member).Sequence >= last.sequence {
		return ""
	}
	return last.message
}

// OnChange registers a function that is called when the finding of a member changes. It
// must not block. Call OnChange before the Watchdog is started.
func (w *Watchdog) OnChange(do func(member string)) { w.onChange = append(w.onChange, do) }

// NeedLeaderElection is true: one replica is enough to probe.
func (w *Watchdog) NeedLeaderElection() bool { return true }

// Start probes the members until ctx ends.
func (w *Watchdog) Start(ctx context.Context) error {
	poller := &trigger.Poller{Check: func(ctx context.Context) time.Duration {
		if err := w.probeMembers(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Failed to probe silent members; retrying", "retryAfter", watchInterval)
		}
		return watchInterval
	}}
	return poller.Start(ctx)
}

func (w *Watchdog) probeMembers(ctx context.Context) error {
	if !w.Reports.HasSynced() {
		return nil
	}
	var list v1alpha1.MemberClusterList
	if err := w.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing MemberClusters: %w", err)
	}
	now := time.Now()
	var targets []probeTarget
	existing := map[string]bool{}
	for i := range list.Items {
		m := &list.Items[i]
		existing[m.Name] = true
		link, err := w.Links.Get(ctx, m.Name)
		if err != nil {
			return err
		}
		root := w.Reports.Root(m.Name)
		switch {
		case !isSyncExpected(m, link):
			w.resetProbe(m.Name, now)
		case !isSuspect(m, link, root, w.Reports.StartedAt(), w.Assigner.Replica.Name(), now):
			w.forgetResolved(m.Name, link, root.Sequence)
		case w.isDue(m.Name, now):
			targets = append(targets, probeTarget{m, link.Spec.Replica})
		}
	}
	w.forgetMissing(existing)
	w.probeAll(ctx, targets)
	return nil
}

// probeAll probes members. Those whose report the hub lacks are waited for together, without keeping others from
// being read.
func (w *Watchdog) probeAll(ctx context.Context, targets []probeTarget) {
	var waits sync.WaitGroup
	workqueue.ParallelizeUntil(ctx, maxConcurrentProbes, len(targets), func(i int) {
		t := targets[i]
		if r := w.readReport(ctx, t.member); r.sequence > 0 {
			waits.Go(func() { w.recordFinding(ctx, t, r) })
		} else {
			w.recordFinding(ctx, t, r)
		}
	})
	waits.Wait()
}

// probeTarget is a member to probe, with the replica that it is assigned to.
type probeTarget struct {
	member  *v1alpha1.MemberCluster
	replica string
}

func (w *Watchdog) isDue(member string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, probed := w.probes[member]
	return !probed || now.Sub(last.probedAt) >= last.nextAfter
}

// forgetResolved drops the last probe of a member that is synced again: what happens to it
// next is not delayed by what was found before.
func (w *Watchdog) forgetResolved(member string, link *v1alpha1.MemberLink, copied int64) {
	if link == nil || link.Status.Carrier != link.Spec.Replica || !link.Status.Reachable {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if copied >= w.probes[member].sequence {
		delete(w.probes, member)
	}
}

// resetProbe drops what was found of a member. It is not probed at once when it is to be synced again:
// its replica has to connect first.
func (w *Watchdog) resetProbe(member string, now time.Time) {
	w.mu.Lock()
	if w.probes == nil {
		w.probes = map[string]probeResult{}
	}
	found := w.probes[member].message
	w.probes[member] = probeResult{probedAt: now, nextAfter: probeInterval}
	w.mu.Unlock()
	if found != "" {
		w.notifyChange(member)
	}
}

func (w *Watchdog) notifyChange(member string) {
	for _, do := range w.onChange {
		do(member)
	}
}

func (w *Watchdog) forgetMissing(existing map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for member := range w.probes {
		if !existing[member] {
			delete(w.probes, member)
		}
	}
}

// isSyncExpected reports whether a replica has to sync a member, and another one may where it does
// not. What the hub refuses of a report, and what a member refuses, is the same for all.
func isSyncExpected(m *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) bool {
	if !m.DeletionTimestamp.IsZero() || m.Spec.Quarantine != nil || link == nil || link.Spec.Mode != v1alpha1.LinkPush || link.Spec.Replica == "" {
		return false
	}
	status := &link.Status
	switch {
	case status.Carrier != link.Spec.Replica || !status.Known:
		return true
	case status.Reachable: // else the finding is of a former connection
		return !status.ReportRefused
	default: // a certificate is judged by the replica's clock, and behind its node's proxy
		return status.Reason != v1alpha1.ReasonOverLimits && status.Reason != v1alpha1.ReasonUnauthorized
	}
}

// isSuspect reports whether to probe a member that is to be synced: either it has been silent
// for long enough to be unhealthy, or its replica does not reach it. The
// first report of a member that has never reported may be stuck. A member that this very
// replica does not reach is not probed again.
func isSuspect(m *v1alpha1.MemberCluster, link *v1alpha1.MemberLink, root report.Root, since time.Time, self string, now time.Time) bool {
	if isMissedByOther(link, self) {
		return true
	}
	heard, silence := since, memberstatus.SilenceTimeout(&v1alpha1.ReportRoot{})
	if created := m.CreationTimestamp.Time; created.After(heard) {
		heard = created
	}
	if root.Report != nil {
		silence = memberstatus.SilenceTimeout(root.Report)
	}
	if root.ReceivedAt != nil {
		heard = *root.ReceivedAt
	}
	return now.Sub(heard) > silence
}

// isMissedByOther reports whether a member is assigned to another replica than this one,
// which does not reach it.
func isMissedByOther(link *v1alpha1.MemberLink, self string) bool {
	status := &link.Status
	return status.Known && !status.Reachable && status.Carrier == link.Spec.Replica && link.Spec.Replica != self
}

// ProbeMember reads the report in the member, and waits whether it is synced. What is found is
// held against the replica that was assigned before, and no other.
func (w *Watchdog) ProbeMember(ctx context.Context, m *v1alpha1.MemberCluster, replica string) {
	w.recordFinding(ctx, probeTarget{m, replica}, w.readReport(ctx, m))
}

// reading is what a probe reads in a member.
type reading struct {
	readAt time.Time
	// sequence of a report that has to be synced, and that the hub lacks; 0 for none.
	sequence int64
	err      error
}

func (w *Watchdog) readReport(ctx context.Context, m *v1alpha1.MemberCluster) reading {
	r := reading{readAt: time.Now()}
	root, err := w.Probe.Root(ctx, m)
	if err != nil {
		r.err = err
		return r
	}
	if copied := w.Reports.Root(m.Name); root.Root != nil && copied.Sequence < root.Sequence && isSyncable(m, copied, root) {
		r.sequence = root.Sequence
	}
	return r
}

// recordFinding waits whether a report that the hub lacks is synced, and records what is found.
func (w *Watchdog) recordFinding(ctx context.Context, t probeTarget, r reading) {
	m, found := t.member, probeResult{probedAt: r.readAt, nextAfter: probeInterval}
	switch {
	case r.err != nil:
		found.nextAfter = w.nextProbeDelay(m.Name)
	case r.sequence > 0:
		_ = trigger.Sleep(ctx, syncGrace+w.Assigner.Replica.RetryPeriod) // after the end of ctx nothing is found
		if ctx.Err() == nil && w.Reports.Root(m.Name).Sequence < r.sequence {
			found.sequence, found.nextAfter = r.sequence, movedProbeInterval
		}
	}
	link, err := w.Links.Get(ctx, m.Name)
	if err != nil || link == nil {
		return
	}
	if link.Spec.Replica != t.replica {
		found.sequence, found.nextAfter = 0, probeInterval
	}
	switch {
	case r.err == nil && found.sequence == 0 && isMissedByOther(link, w.Assigner.Replica.Name()):
		found.nextAfter = 0
	case found.sequence > 0:
		found.message = w.moveMember(m, link)
		log.FromContext(ctx).Info("Replica does not sync the report of a member that is up", "member", m.Name, "replica", link.Spec.Replica, "sequence", found.sequence, "message", found.message)
	}
	w.mu.Lock()
	if w.probes == nil {
		w.probes = map[string]probeResult{}
	}
	before := w.probes[m.Name]
	w.probes[m.Name] = found
	w.mu.Unlock()
	if before.message != found.message {
		w.notifyChange(m.Name)
	}
}

// nextProbeDelay returns the wait after a failed probe.
func (w *Watchdog) nextProbeDelay(member string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(max(2*w.probes[member].nextAfter, probeInterval), maxProbeInterval)
}

// isSyncable reports whether the report in a member has to be synced. That of another
// cluster is not copied on purpose.
func isSyncable(m *v1alpha1.MemberCluster, copied report.Root, reported *v1alpha1.ClusterReport) bool {
	if copied.Report != nil {
		return reported.ClusterUID == copied.ClusterUID
	}
	known := memberstatus.ResolveClusterUID(m, "")
	return known == "" || reported.ClusterUID == known
}

// moveMember has a member assigned to another replica if there is one, and returns the
// message.
func (w *Watchdog) moveMember(m *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) (message string) {
	w.Metrics.CountStalledSync()
	from := link.Spec.Replica
	message = fmt.Sprintf("the member is up and reports, but replica %s of the hub does not sync its report, which the elected replica %s can read: ", from, w.Assigner.Replica.Name())
	if w.Assigner.HasOtherReplica(m.Name, from) {
		message += "the member moves to another replica. Check the log of the former replica and its network path to the member"
		w.Assigner.MoveMember(m.Name, from)
	} else {
		message += "there is no other replica to move the member to. Check the log of the replica, and restart it"
	}
	w.Events.Eventf(m, nil, corev1.EventTypeWarning, v1alpha1.ReasonReportNotCarried, "Watch", "%s", message)
	return message
}
