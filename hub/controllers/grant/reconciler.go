package grant

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	// annotationPlanner is the process that wrote it; of a grant, also how often that had
	// read it.
	annotationPlanner = "pelotech.ot/planner"
	// annotationPossible has what its member may have had by all grants when it was
	// written: the next process to be elected sees the newest one alone.
	annotationPossible = "pelotech.ot/possible"
)

const (
	// minReconcileInterval between two looks at the whole: what comes in between is seen by one.
	minReconcileInterval = 200 * time.Millisecond
	// conflictRetryDelay is when to look again after somebody else was faster.
	conflictRetryDelay  = time.Second
	maxConcurrentWrites = 8
)

// Reports tells what the members have reported.
type Reports interface {
	Root(member string) report.Root
	// Filled: all that was stored has been read.
	HasSynced() bool
	OnChange(do func(member string))
	OnSynced(do func())
}

// Policy tells the fleet's policy.
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
	// Namespace is the hub's own.
	Namespace string
	// Challenge is this process's identity.
	Challenge string
	Shares    *Shares

	requests       trigger.Source[reconcile.Request]
	startedAt      time.Time
	lastReconciled time.Time
	accountant     *budget.Accountant // nil: what is stored has not been read
	policyCaches   map[string]*policyCache
	departures     departureStore
	// kept: what has departed is stored.
	departuresStored bool
	// nextPlanMark is when the plan of a member is marked again.
	nextPlanMark map[string]time.Time

	mu sync.Mutex
	// storedGrants are the grants as they were read or written last.
	storedGrants map[string]*v1alpha1.TransferGrant
	// deletedGrants are the members whose grants were since.
	deletedGrants []string
	// unknownGrants are the members of whose grants it is not known what is stored.
	unknownGrants map[string]time.Time // until when that is not looked at
	// retryDelays is how long that was put off last, until a write goes through again.
	retryDelays map[string]time.Duration
	// readCounts is how often what is stored was read for each.
	readCounts map[string]int
}

// Reconcile looks at the whole fleet.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (ctrl.Result, error) {
	if wait := minReconcileInterval - time.Since(r.lastReconciled); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	state := r.Policy.Current()
	if !state.Known || !r.Reports.HasSynced() {
		return ctrl.Result{}, nil // both have it looked at again
	}
	defer func() { r.lastReconciled = time.Now() }()
	if r.accountant == nil {
		if err := r.loadGrants(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	r.dropDeletedGrants()
	r.rereadUnknownGrants(ctx)
	all, err := r.gatherMembers(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	var after time.Duration
	if state.Policy == nil || state.Policy.Budget() == nil {
		r.Shares.publish(false, nil)
		r.Metrics.Reset()
		r.writeGrants(ctx, unlimitedGrants(r, all))
	} else {
		after = r.shareBudget(ctx, state.Policy, all)
	}
	if len(r.unknownGrants) > 0 && (after == 0 || after > conflictRetryDelay) {
		after = conflictRetryDelay
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// gatherMembers reads all that is decided upon, of every member.
func (r *Reconciler) gatherMembers(ctx context.Context) ([]memberState, error) {
	var members v1alpha1.MemberClusterList
	var plans v1alpha1.ClusterPlanList
	var links v1alpha1.MemberLinkList
	var namespaces corev1.NamespaceList
	for _, list := range []client.ObjectList{&members, &plans, &links, &namespaces} {
		if err := r.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing what grants rest on: %w", err)
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
	for i := range members.Items {
		m := &members.Items[i]
		namespace := v1alpha1.MemberNamespacePrefix + m.Name
		s := memberState{member: m, root: r.Reports.Root(m.Name), plan: planOf[namespace], link: linkOf[namespace], challenge: r.Challenge, startedAt: r.startedAt}
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
	return all, nil
}

// shareBudget plans by the budget, and writes what comes of it.
func (r *Reconciler) shareBudget(ctx context.Context, p *policy.Policy, all []memberState) (after time.Duration) {
	b := p.Budget()
	rules := budget.Rules{Total: int64(b.Concurrency), Duration: b.GrantDuration}
	for _, s := range b.Sources {
		rules.Groups = append(rules.Groups, budget.Group{Name: s.Name, Concurrency: *s.Concurrency})
	}
	r.fenceGrants(ctx, all)
	r.markPlans(ctx, all)
	r.Shares.beginAllocation()
	now, groups := time.Now(), b.SourceGroups()
	there, inForce := make(map[string]*memberState, len(all)), make(map[string]*budget.Bounds, len(all))
	for i := range all {
		s := &all[i]
		there[s.member.Name] = s
		m := r.policyCaches[s.member.Name]
		if m != nil && m.memberUID != s.member.UID {
			r.accountant.RemoveMember(s.member.Name, now) // it was deleted, and made anew
		}
		if m == nil || m.memberUID != s.member.UID {
			m = &policyCache{memberUID: s.member.UID}
			r.policyCaches[s.member.Name] = m
		}
		s.intendedBounds = r.Shares.pendingBounds(s.member.Name, s.plan)
		f := m.buildFacts(s, p, groups, now)
		r.accountant.Observe(s.member.Name, f, now)
		inForce[s.member.Name] = f.ReportedPolicy
	}
	for _, name := range r.accountant.Members() {
		if there[name] == nil {
			r.accountant.RemoveMember(name, now)
			delete(r.policyCaches, name)
		}
	}
	plan := r.accountant.Allocate(rules, now)
	shares := make(map[string]share, len(plan.Accounts))
	for _, a := range plan.Accounts {
		if !a.Departed {
			one := share{transfers: newMemberTransfers(a), reportedBounds: inForce[a.Member]}
			one.safe, one.mayPlan = r.accountant.SafeShare(a.Member)
			shares[a.Member] = one
		}
	}
	r.Shares.publish(true, shares)
	if !r.releaseLeaving(ctx, all, now) {
		after = conflictRetryDelay
	}
	writes := make([]*v1alpha1.TransferGrant, len(plan.Grants))
	for i, next := range plan.Grants {
		writes[i] = r.grantObject(next.Member)
		setLimits(writes[i], there[next.Member], next)
	}
	r.writeGrants(ctx, writes)
	r.Metrics.SetAllocation(rules, plan)
	if again := max(minReconcileInterval, plan.RecheckAt.Sub(now)+time.Millisecond); !plan.RecheckAt.IsZero() && (after == 0 || again < after) {
		after = again
	}
	for i := range all {
		if all[i].isReportUnread(now) || all[i].mayBePlannedElsewhere() {
			after = min(cmp.Or(after, conflictRetryDelay), conflictRetryDelay) // that it is waited for no longer
		}
	}
	return after
}
