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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/pace"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// watchEvery is how often the members are gone through.
	watchEvery = 5 * time.Second
	// lookAgain is how soon a member is looked into again that nothing was found of,
	// darkLast at the latest one that is not reached time and again, movedAgain one that
	// something was found of.
	lookAgain  = 15 * time.Second
	darkLast   = 2 * time.Minute
	movedAgain = time.Minute
	// onItsWay is how long a report that is newer than the hub's copy may be so.
	onItsWay = 2 * time.Second
	// watchers look at a time: a member that is down costs one of them a timeout.
	watchers = 32
)

// Glance reads the root of a member's report in the member.
type Glance interface {
	Root(ctx context.Context, member *v1alpha1.MemberCluster) (*v1alpha1.ClusterReport, error)
}

// Watchdog looks, in the elected replica, into members that the hub hears nothing of
// or that the replica which carries for them does not reach. A member that is up, and
// whose report is newer than the hub's copy and stays so, is moved to another replica.
type Watchdog struct {
	Cached   client.Reader
	Glance   Glance
	Reports  *report.Store
	Links    *Links
	Assigner *Assigner
	Events   events.EventRecorder
	Metrics  *metrics.Shards

	mu      sync.Mutex
	looked  map[string]look
	changed []func(member string)
}

// look is when a member was looked into last, and what was found.
type look struct {
	at time.Time
	// wait for the next one.
	wait time.Duration
	// sequence in the member that was not on the hub; 0: nothing was found.
	sequence int64
	message  string
}

// Of says what was found of a member and holds still; empty for nothing.
func (w *Watchdog) Of(member string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.looked[member]
	if last.sequence == 0 || w.Reports.Root(member).Sequence >= last.sequence {
		return ""
	}
	return last.message
}

// OnChange has something done, without blocking, when something is found of a member.
// Call it before the Watchdog is started.
func (w *Watchdog) OnChange(do func(member string)) { w.changed = append(w.changed, do) }

// NeedLeaderElection is true: the report of one member is not worth many looks.
func (w *Watchdog) NeedLeaderElection() bool { return true }

// Start goes through the members until ctx ends.
func (w *Watchdog) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.watch(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Looking for members whose reports nobody carries")
		}
		_ = pace.Pause(ctx, watchEvery) // an end is seen above
	}
	return nil
}

func (w *Watchdog) watch(ctx context.Context) error {
	if !w.Reports.Filled() {
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
		link, err := w.Links.Of(ctx, m.Name)
		if err != nil {
			return err
		}
		if w.due(m.Name, now) && suspect(m, link, w.Reports.Root(m.Name), w.Reports.Since(), w.Assigner.Replica.Name(), now) {
			suspects = append(suspects, m)
		}
	}
	w.forget(there)
	workqueue.ParallelizeUntil(ctx, watchers, len(suspects), func(i int) { w.look(ctx, suspects[i]) })
	return nil
}

func (w *Watchdog) due(member string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, is := w.looked[member]
	return !is || now.Sub(last.at) >= last.wait
}

func (w *Watchdog) forget(there map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for member := range w.looked {
		if !there[member] {
			delete(w.looked, member)
		}
	}
}

// suspect tells whether a member is worth a look: a replica is to carry for it, and
// either nothing has come from it for as long as makes its agent unhealthy, or that
// replica says that it does not reach it. One that has never reported may have an agent
// whose first report does not come. What this replica has just failed to reach itself it
// need not try again.
func suspect(m *v1alpha1.MemberCluster, link *v1alpha1.MemberLink, root report.Root, since time.Time, self string, now time.Time) bool {
	if !m.DeletionTimestamp.IsZero() || link == nil || link.Spec.Mode != v1alpha1.LinkPush || link.Spec.Replica == "" {
		return false
	}
	status := &link.Status
	if status.Known && !status.Reachable && status.Carrier == link.Spec.Replica && link.Spec.Replica != self {
		return true
	}
	heard, silence := since, fleet.Silence(&v1alpha1.ReportRoot{})
	if made := m.CreationTimestamp.Time; made.After(heard) {
		heard = made
	}
	if root.Report != nil {
		silence = fleet.Silence(root.Report)
	}
	if root.ReceivedAt != nil {
		heard = *root.ReceivedAt
	}
	return now.Sub(heard) > silence
}

// look reads the report in the member, and waits whether it comes.
func (w *Watchdog) look(ctx context.Context, m *v1alpha1.MemberCluster) {
	found := look{at: time.Now(), wait: lookAgain}
	root, err := w.Glance.Root(ctx, m)
	switch {
	case err != nil:
		found.wait = w.longer(m.Name)
	case root.Root != nil && carriable(m, w.Reports.Root(m.Name), root):
		_ = pace.Pause(ctx, onItsWay) // at an end nothing is found any more
		if ctx.Err() == nil && w.Reports.Root(m.Name).Sequence < root.Sequence {
			found.sequence, found.wait = root.Sequence, movedAgain
		}
	}
	link, err := w.Links.Of(ctx, m.Name)
	if err != nil || link == nil {
		return
	}
	if found.sequence > 0 {
		found.message = w.move(m, link)
		log.FromContext(ctx).Info("A report is not carried", "member", m.Name, "replica", link.Spec.Replica, "sequence", found.sequence, "message", found.message)
	}
	w.mu.Lock()
	if w.looked == nil {
		w.looked = map[string]look{}
	}
	before := w.looked[m.Name]
	w.looked[m.Name] = found
	w.mu.Unlock()
	if before.message != found.message {
		for _, do := range w.changed {
			do(m.Name)
		}
	}
}

// longer is how long to leave a member alone that was not reached once more.
func (w *Watchdog) longer(member string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return min(max(2*w.looked[member].wait, lookAgain), darkLast)
}

// carriable tells whether the report in a member is one that is to be carried: that of
// another cluster than the one that is known is left there on purpose.
func carriable(m *v1alpha1.MemberCluster, copied report.Root, there *v1alpha1.ClusterReport) bool {
	if copied.Report != nil {
		return there.ClusterUID == copied.ClusterUID
	}
	known := fleet.ClusterUID(m, "")
	return known == "" || there.ClusterUID == known
}

// move has a member assigned to another replica, if there is one, and says so.
func (w *Watchdog) move(m *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) (message string) {
	w.Metrics.NotCarriedFound()
	from := link.Spec.Replica
	message = fmt.Sprintf("the member is up and reports, and replica %s of the hub, which is to carry its report, does not (the elected replica %s can read it): ", from, w.Assigner.Replica.Name())
	if w.Assigner.Others(from) {
		message += "it is moved to another replica. See the log of that one, and what is between it and the member"
		w.Assigner.Move(m.Name, from)
	} else {
		message += "there is no other replica that it could be moved to. See its log, and restart it"
	}
	w.Events.Eventf(m, nil, corev1.EventTypeWarning, v1alpha1.ReasonNotCarried, "Watch", "%s", message)
	return message
}
