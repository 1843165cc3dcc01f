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
	// watchInterval is how often the members are gone through.
	watchInterval = 5 * time.Second
	// probeInterval is how soon a member is looked into again that nothing was found of,
	// maxProbeInterval at the latest one that is not reached time and again, movedProbeInterval one that
	// something was found of.
	probeInterval      = 15 * time.Second
	maxProbeInterval   = 2 * time.Minute
	movedProbeInterval = time.Minute
	// syncGrace is how long a report that is newer than the hub's copy may be so.
	syncGrace = 2 * time.Second
	// maxConcurrentProbes look at a time: a member that is down costs one of them a timeout.
	maxConcurrentProbes = 32
)

// ReportProbe reads the root of a member's report in the member.
type ReportProbe interface {
	Root(ctx context.Context, member *v1alpha1.MemberCluster) (*v1alpha1.ClusterReport, error)
}

// Watchdog looks, in the elected replica, into members that the hub hears nothing of
// or that the replica which carries for them does not reach. A member that is up, and
// whose report is newer than the hub's copy and stays so, is moved to another replica.
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

// probeResult is when a member was looked into last, and what was found.
type probeResult struct {
	probedAt time.Time
	// nextAfter for the next one.
	nextAfter time.Duration
	// sequence in the member that was not on the hub; 0: nothing was found.
	sequence int64
	message  string
}

// ForMember says what was found of a member and holds still; empty for nothing.
func (w *Watchdog) ForMember(member string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.probes[member]
	if last.sequence == 0 || w.Reports.Root(member).Sequence >= last.sequence {
		return ""
	}
	return last.message
}

// OnChange has something done, without blocking, when something is found of a member.
// Call it before the Watchdog is started.
func (w *Watchdog) OnChange(do func(member string)) { w.onChange = append(w.onChange, do) }

// NeedLeaderElection is true: the report of one member is not worth many looks.
func (w *Watchdog) NeedLeaderElection() bool { return true }

// Start goes through the members until ctx ends.
func (w *Watchdog) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.probeMembers(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Looking for members whose reports nobody carries")
		}
		_ = trigger.Sleep(ctx, watchInterval) // an end is seen above
	}
	return nil
}

func (w *Watchdog) probeMembers(ctx context.Context) error {
	if !w.Reports.HasSynced() {
		return nil
	}
	var list v1alpha1.MemberClusterList
	if err := w.Cached.List(ctx, &list); err != nil {
		return fmt.Errorf("listing MemberClusters: %w", err)
	}
	now := time.Now()
	var suspects []*v1alpha1.MemberCluster
	there := map[string]bool{}
	for i := range list.Items {
		m := &list.Items[i]
		there[m.Name] = true
		link, err := w.Links.Get(ctx, m.Name)
		if err != nil {
			return err
		}
		if w.isDue(m.Name, now) && isSuspect(m, link, w.Reports.Root(m.Name), w.Reports.StartedAt(), w.Assigner.Replica.Name(), now) {
			suspects = append(suspects, m)
		}
	}
	w.forgetMissing(there)
	workqueue.ParallelizeUntil(ctx, maxConcurrentProbes, len(suspects), func(i int) { w.probeMember(ctx, suspects[i]) })
	return nil
}

func (w *Watchdog) isDue(member string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, is := w.probes[member]
	return !is || now.Sub(last.probedAt) >= last.nextAfter
}

func (w *Watchdog) forgetMissing(there map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for member := range w.probes {
		if !there[member] {
			delete(w.probes, member)
		}
	}
}

// isSuspect tells whether a member is worth a look: a replica is to carry for it, and
// either nothing has come from it for as long as makes its agent unhealthy, or that
// replica says that it does not reach it. One that has never reported may have an agent
// whose first report does not come. What this replica has just failed to reach itself it
// need not try again.
func isSuspect(m *v1alpha1.MemberCluster, link *v1alpha1.MemberLink, root report.Root, since time.Time, self string, now time.Time) bool {
	if !m.DeletionTimestamp.IsZero() || link == nil || link.Spec.Mode != v1alpha1.LinkPush || link.Spec.Replica == "" {
		return false
	}
	status := &link.Status
	if status.Known && !status.Reachable && status.Carrier == link.Spec.Replica && link.Spec.Replica != self {
		return true
	}
	heard, silence := since, memberstatus.SilenceTimeout(&v1alpha1.ReportRoot{})
	if made := m.CreationTimestamp.Time; made.After(heard) {
		heard = made
	}
	if root.Report != nil {
		silence = memberstatus.SilenceTimeout(root.Report)
	}
	if root.ReceivedAt != nil {
		heard = *root.ReceivedAt
	}
	return now.Sub(heard) > silence
}

// probeMember reads the report in the member, and waits whether it comes.
func (w *Watchdog) probeMember(ctx context.Context, m *v1alpha1.MemberCluster) {
	found := probeResult{probedAt: time.Now(), nextAfter: probeInterval}
	root, err := w.Probe.Root(ctx, m)
	switch {
	case err != nil:
		found.nextAfter = w.nextProbeDelay(m.Name)
	case root.Root != nil && isSyncable(m, w.Reports.Root(m.Name), root):
		_ = trigger.Sleep(ctx, syncGrace) // at an end nothing is found any more
		if ctx.Err() == nil && w.Reports.Root(m.Name).Sequence < root.Sequence {
			found.sequence, found.nextAfter = root.Sequence, movedProbeInterval
		}
	}
	link, err := w.Links.Get(ctx, m.Name)
	if err != nil || link == nil {
		return
	}
	if found.sequence > 0 {
		found.message = w.moveMember(m, link)
		log.FromContext(ctx).Info("A report is not carried", "member", m.Name, "replica", link.Spec.Replica, "sequence", found.sequence, "message", found.message)
	}
	w.mu.Lock()
	if w.probes == nil {
		w.probes = map[string]probeResult{}
	}
	before := w.probes[m.Name]
	w.probes[m.Name] = found
	w.mu.Unlock()
	if before.message != found.message {
		for _, do := range w.onChange {
			do(m.Name)
		}
	}
}

// nextProbeDelay is how long to leave a member alone that was not reached once more.
func (w *Watchdog) nextProbeDelay(member string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(max(2*w.probes[member].nextAfter, probeInterval), maxProbeInterval)
}

// isSyncable tells whether the report in a member is one that is to be carried: that of
// another cluster than the one that is known is left there on purpose.
func isSyncable(m *v1alpha1.MemberCluster, copied report.Root, there *v1alpha1.ClusterReport) bool {
	if copied.Report != nil {
		return there.ClusterUID == copied.ClusterUID
	}
	known := memberstatus.ResolveClusterUID(m, "")
	return known == "" || there.ClusterUID == known
}

// moveMember has a member assigned to another replica, if there is one, and says so.
func (w *Watchdog) moveMember(m *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) (message string) {
	w.Metrics.CountStalledSync()
	from := link.Spec.Replica
	message = fmt.Sprintf("the member is up and reports, and replica %s of the hub, which is to carry its report, does not (the elected replica %s can read it): ", from, w.Assigner.Replica.Name())
	if w.Assigner.HasOtherReplica(from) {
		message += "it is moved to another replica. See the log of that one, and what is between it and the member"
		w.Assigner.MoveMember(m.Name, from)
	} else {
		message += "there is no other replica that it could be moved to. See its log, and restart it"
	}
	w.Events.Eventf(m, nil, corev1.EventTypeWarning, v1alpha1.ReasonReportNotCarried, "Watch", "%s", message)
	return message
}
