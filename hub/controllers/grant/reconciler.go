package grant

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	policycontroller "github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters;memberlinks;clusterplans,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=transfergrants,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans,verbs=update
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=configmaps,verbs=get;create;update

// Annotations of TransferGrants and ClusterPlans on the hub, which do not travel to the
// member.
const (
	// annotationPlanner is the process that wrote the object; on a grant also the number of
	// its reading on which that process decided it.
	annotationPlanner = "pelotech.ot/planner"
	// annotationPossible is the maximum of all grants that the member may have had when
	// this one was written: the next leader sees only the newest grant.
	annotationPossible = "pelotech.ot/possible"
)

const (
	// minReconcileInterval between two reconciles of the fleet batches events.
	minReconcileInterval = 200 * time.Millisecond
	// retryDelay is the requeue delay while a grant or departure is not stored, or while
	// the state of a member is unknown.
	retryDelay = time.Second
	// heartbeatCheckInterval is how often heartbeats are looked at, and missing ones. They
	// change no share.
	heartbeatCheckInterval = 5 * time.Second
	// maxConcurrentWrites of grants and plans.
	maxConcurrentWrites = 8
)

// Reports knows what the members have reported.
type Reports interface {
	Root(member string) report.Root
	// HasSynced reports whether all stored reports have been read.
	HasSynced() bool
	OnChange(do func(member string))
	OnSynced(do func())
}

// Policy knows the fleet's policy.
type Policy interface {
	Current() policycontroller.State
	OnChange(do func())
}

// Reconciler writes the TransferGrants of all members.
type Reconciler struct {
	client.Client
	Live    client.Client
	Metrics *metrics.Grants
	Reports Reports
	Policy  Policy
	// Namespace of the hub.
	Namespace string
	// Challenge identifies this process.
	Challenge string
	Shares    *Shares
	// Raises counts grants above versions that this hub never wrote.
	Raises *plan.Raises

	requests       trigger.Source[reconcile.Request]
	startedAt      time.Time
	lastReconciled time.Time
	accountant     *budget.Accountant // nil until the stored grants are read
	policyCaches   map[string]*policyCache
	departures     departureStore
	// departuresStored: all departures are stored.
	departuresStored bool
	// nextPlanMark is when to annotate the plan of a member again.
	nextPlanMark map[string]time.Time
	// limited: a fleet-wide budget is set. It is set before anything is gathered, so an
	// event that was ignored without one is seen by what gathers first with it.
	limited atomic.Bool

	mu sync.Mutex
	// clusters are those that the members reported when they were last gathered.
	clusters map[string]types.UID
	// storedGrants are the grants as they were last read or written.
	storedGrants map[string]*v1alpha1.TransferGrant
	// deletedGrants are the members whose grants have been deleted.
	deletedGrants []string
	// unknownGrants are the members whose stored grant is unknown, with the time to read
	// it again.
	unknownGrants map[string]time.Time
	// retryDelays are the last retry delays of unknownGrants, until a write succeeds.
	retryDelays map[string]time.Duration
	// readNumbers has the number of the last reading of each grant that was read again; reads is the
	// number of the last of all, so that no grant has one twice.
	readNumbers map[string]int
	reads       int
}

// Reconcile shares the budget among all members.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (ctrl.Result, error) {
	if wait := minReconcileInterval - time.Since(r.lastReconciled); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	state := r.Policy.Current()
	if !state.Known || !r.Reports.HasSynced() {
		return ctrl.Result{}, nil // both enqueue the request once they are
	}
	defer func() { r.lastReconciled = time.Now() }()
	limited := state.Policy != nil && state.Policy.Budget(time.Now()) != nil
	r.limited.Store(limited)
	if r.accountant == nil {
		if err := r.loadGrants(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	r.dropDeletedGrants()
	r.rereadUnknownGrants(ctx)
	members, err := r.gatherMembers(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	var after time.Duration
	if !limited {
		r.Shares.publish(false, nil)
		r.Metrics.Reset()
		after = r.grantUnlimited(ctx, members)
	} else {
		after = trigger.Earliest(r.shareBudget(ctx, state.Policy, members), heartbeatCheckInterval)
	}
	if len(r.unknownGrants) > 0 {
		after = trigger.Earliest(after, retryDelay)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// gatherMembers reads everything that is known of every member.
func (r *Reconciler) gatherMembers(ctx context.Context) ([]memberState, error) {
	var members v1alpha1.MemberClusterList
	var plans v1alpha1.ClusterPlanList
	var links v1alpha1.MemberLinkList
	var namespaces corev1.NamespaceList
	for _, list := range []client.ObjectList{&members, &plans, &links, &namespaces} {
		if err := r.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing %T to share the budget: %w", list, err)
		}
	}
	planOf, linkOf, room := map[string]*v1alpha1.ClusterPlan{}, map[string]*v1alpha1.MemberLink{}, map[string]bool{}
	for i := range plans.Items {
		planOf[plans.Items[i].Namespace] = &plans.Items[i]
	}
	for i := range links.Items {
		linkOf[links.Items[i].Namespace] = &links.Items[i]
	}
	for i := range namespaces.Items {
		n := &namespaces.Items[i]
		room[n.Name] = n.DeletionTimestamp.IsZero() && v1alpha1.MemberNamespacePrefix+n.Labels[v1alpha1.LabelMember] == n.Name
	}
	all := make([]memberState, 0, len(members.Items))
	roots := r.readRoots(members.Items)
	for i := range members.Items {
		m := &members.Items[i]
		namespace := v1alpha1.MemberNamespacePrefix + m.Name
		s := memberState{member: m, root: roots[i], plan: planOf[namespace], link: linkOf[namespace], challenge: r.Challenge, startedAt: r.startedAt}
		if room[namespace] && m.DeletionTimestamp.IsZero() && s.clusterUID() != "" {
			holder, err := claim.FindHolder(ctx, r.Client, m, s.clusterUID())
			if err != nil {
				return nil, err
			}
			s.writable, s.isLeaving = holder == "", holder != ""
		}
		s.isLeaving = s.isLeaving || !m.DeletionTimestamp.IsZero()
		s.fenced, s.hasGrant = r.isFenced(m.Name) && !r.isForOtherCluster(&s), r.storedGrants[m.Name] != nil
		all = append(all, s)
	}
	r.forgetMissing(members.Items)
	return all, nil
}

// forgetMissing drops what only members that exist, and stored grants, need.
func (r *Reconciler) forgetMissing(members []v1alpha1.MemberCluster) {
	existing := make(map[string]bool, len(members))
	for i := range members {
		existing[members[i].Name] = true
	}
	for member := range r.unknownGrants {
		existing[member] = true
	}
	maps.DeleteFunc(r.nextPlanMark, func(member string, _ time.Time) bool { return !existing[member] })
	maps.DeleteFunc(r.retryDelays, func(member string, _ time.Duration) bool { return !existing[member] })
	maps.DeleteFunc(r.readNumbers, func(member string, _ int) bool { return !existing[member] && r.storedGrants[member] == nil })
}

// readRoots reads the reports of all members, and records their clusters for
// isOtherCluster.
func (r *Reconciler) readRoots(members []v1alpha1.MemberCluster) []report.Root {
	r.mu.Lock()
	defer r.mu.Unlock()
	roots := make([]report.Root, len(members))
	r.clusters = make(map[string]types.UID, len(members))
	for i := range members {
		roots[i] = r.Reports.Root(members[i].Name)
		r.clusters[members[i].Name] = roots[i].ClusterUID
	}
	return roots
}

// isOtherCluster reports whether a member reports another cluster than when it was last
// gathered.
func (r *Reconciler) isOtherCluster(member string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	gathered, ok := r.clusters[member]
	return !ok || gathered != r.Reports.Root(member).ClusterUID
}

// shareBudget allocates the budget and writes the grants. It returns when to do so again.
func (r *Reconciler) shareBudget(ctx context.Context, p *policy.Policy, members []memberState) time.Duration {
	r.fenceGrants(ctx, members)
	r.markPlans(ctx, members)
	r.Shares.beginAllocation()
	now := time.Now()
	rules, changesIn := budgetRules(p, now)
	reported := r.observeMembers(p, members, now)
	allocation := r.accountant.Allocate(rules, now)
	r.publishShares(&allocation, reported)
	released := r.releaseLeaving(ctx, members, now)
	r.writeGrants(ctx, r.allocatedGrants(allocation.Grants, members))
	r.Metrics.SetAllocation(rules, allocation)
	after := trigger.Earliest(requeueDelay(members, &allocation, released, now), changesIn)
	if len(r.departures.stored) > 0 {
		after = trigger.Earliest(after, writeOffInterval)
	}
	return after
}

// minGrantValidity is the shortest time that a grant is worth being written for. So long before
// a lower budget comes into force, grants are given within that one already.
const minGrantValidity = 15 * time.Second

// maxEdgeDelay bounds the wait for another budget: a clock that is set forward does not end
// it.
const maxEdgeDelay = time.Minute

// budgetRules returns the rules at a time, and in how long there may be others; 0 for never.
func budgetRules(p *policy.Policy, now time.Time) (rules budget.Rules, changesIn time.Duration) {
	b := p.Budget(now)
	if changes := b.ChangesAt(); !changes.IsZero() {
		changesIn = min(changes.Sub(now), maxEdgeDelay)
	}
	if left := b.FallsAt.Sub(now); !b.FallsAt.IsZero() && left <= minGrantValidity {
		b = p.Budget(b.FallsAt)
	} else if !b.FallsAt.IsZero() {
		changesIn = trigger.Earliest(changesIn, left-minGrantValidity)
	}
	rules = budget.Rules{Total: int64(b.Concurrency), Duration: b.GrantDuration, ExcessTolerance: b.ExcessTolerance, RisesAt: b.RisesAt}
	if !b.FallsAt.IsZero() {
		rules.EndsIn = b.FallsAt.Sub(now)
	}
	for _, s := range b.Sources {
		rules.Groups = append(rules.Groups, budget.Group{Name: s.Name, Concurrency: *s.Concurrency})
	}
	return rules, changesIn
}

// observeMembers updates the accounts, and returns the policy that each member reports.
func (r *Reconciler) observeMembers(p *policy.Policy, members []memberState, now time.Time) map[string]*budget.Bounds {
	reported := make(map[string]*budget.Bounds, len(members))
	groups := p.Budget(now).SourceGroups()
	for i := range members {
		s := &members[i]
		cache := r.policyCaches[s.member.Name]
		if cache != nil && cache.memberUID != s.member.UID {
			r.accountant.RemoveMember(s.member.Name, now) // the MemberCluster was recreated
		}
		if cache == nil || cache.memberUID != s.member.UID {
			cache = &policyCache{memberUID: s.member.UID}
			r.policyCaches[s.member.Name] = cache
		}
		s.intents = r.Shares.pendingIntents(s.member.Name, s.plan)
		facts := cache.buildFacts(s, p, groups, now)
		r.accountant.Observe(s.member.Name, facts, now)
		reported[s.member.Name] = facts.ReportedPolicy
	}
	for _, name := range r.accountant.Members() {
		if _, ok := reported[name]; !ok {
			r.accountant.RemoveMember(name, now)
			delete(r.policyCaches, name)
		}
	}
	return reported
}

// publishShares has the planner plan by the allocation.
func (r *Reconciler) publishShares(allocation *budget.Allocation, reported map[string]*budget.Bounds) {
	shares := make(map[string]share, len(allocation.Accounts))
	held := map[string]int64{"": allocation.Held}
	for _, a := range allocation.Accounts {
		for source, slots := range a.Sources {
			held[source] += int64(slots)
		}
		if a.Departed {
			continue
		}
		s := share{transfers: newMemberTransfers(a), reportedBounds: reported[a.Member]}
		s.safe, s.mayPlan = r.accountant.SafeShare(a.Member)
		shares[a.Member] = s
	}
	r.Shares.setHeldBySource(held)
	r.Shares.publish(true, shares)
}

// requeueDelay returns when the allocation may change without an event.
func requeueDelay(members []memberState, allocation *budget.Allocation, released bool, now time.Time) (after time.Duration) {
	if !released {
		after = retryDelay
	}
	if !allocation.RecheckAt.IsZero() {
		after = trigger.Earliest(after, max(minReconcileInterval, allocation.RecheckAt.Sub(now)+time.Millisecond))
	}
	for i := range members {
		if members[i].member.Spec.Quarantine == nil && (members[i].isReportUnread(now) || members[i].mayBePlannedElsewhere()) {
			return trigger.Earliest(after, retryDelay) // the wait for these members ends by time alone
		}
	}
	return after
}
