package grant

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
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

// maxRetryDelay is the longest wait before a grant that cannot be written is tried again.
const maxRetryDelay = 30 * time.Second

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

// rereadUnknownGrants reads live the grants of which it is not known what is stored. The book
// keeps what it has of these members, and takes in what is stored.
func (r *Reconciler) rereadUnknownGrants(ctx context.Context) {
	for member, until := range r.unknownGrants {
		if time.Now().Before(until) {
			continue
		}
		g := &v1alpha1.TransferGrant{}
		key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}
		switch err := r.Live.Get(ctx, key, g); {
		case apierrors.IsNotFound(err):
			delete(r.storedGrants, member)
		case err != nil:
			r.markUnknown(ctx, member, fmt.Errorf("reading TransferGrant %s: %w", key, err))
			continue
		default:
			r.storedGrants[member] = g
			r.accountant.LearnGrant(member, parseStoredGrant(g), time.Now())
			r.departuresStored = false // it may be of a cluster that has departed
		}
		r.readCounts[member]++
		delete(r.unknownGrants, member)
	}
}

// markUnknown notes that it is not known what is stored of a member's grant.
func (r *Reconciler) markUnknown(ctx context.Context, member string, err error) {
	wait := min(max(2*r.retryDelays[member], conflictRetryDelay), maxRetryDelay)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		wait = conflictRetryDelay
		log.FromContext(ctx).Info("A TransferGrant is not what this process knows: it is read anew", "member", member)
	} else {
		log.FromContext(ctx).Error(err, "A TransferGrant is not written; what may be stored counts", "member", member, "again", wait)
	}
	r.retryDelays[member] = wait
	r.unknownGrants[member] = time.Now().Add(wait)
}

// plannerMark is what a grant bears that this process has written since it was read last:
// what another has decided before, or this one, and not written by then, is refused.
func (r *Reconciler) plannerMark(member string) string {
	return fmt.Sprintf("%s/%d", r.Challenge, r.readCounts[member])
}

// dropDeletedGrants forgets grants that were seen to be deleted: they are made anew.
func (r *Reconciler) dropDeletedGrants() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, member := range r.deletedGrants {
		delete(r.storedGrants, member)
	}
	r.deletedGrants = nil
}

// loadGrants reads live what grants there are. What is in a cache may be from before what
// the last elected process wrote.
func (r *Reconciler) loadGrants(ctx context.Context) error {
	var list v1alpha1.TransferGrantList
	if err := r.Live.List(ctx, &list); err != nil {
		return fmt.Errorf("reading all TransferGrants: %w", err)
	}
	now := time.Now()
	if r.startedAt.IsZero() {
		r.startedAt = now
	}
	book := budget.NewAccountant()
	r.storedGrants, r.unknownGrants = map[string]*v1alpha1.TransferGrant{}, map[string]time.Time{}
	r.retryDelays, r.readCounts = map[string]time.Duration{}, map[string]int{}
	for i := range list.Items {
		g := &list.Items[i]
		member, is := report.MemberForNamespace(g.Namespace)
		if !is || g.Name != v1alpha1.MailboxName {
			continue
		}
		r.storedGrants[member] = g
		book.LearnGrant(member, parseStoredGrant(g), now)
	}
	if err := r.loadDepartures(ctx, book); err != nil {
		return err
	}
	r.Shares.setChallenge(r.Challenge)
	r.accountant, r.policyCaches, r.nextPlanMark = book, map[string]*policyCache{}, map[string]time.Time{}
	return nil
}

// possibleShare is annotationPossible.
type possibleShare struct {
	Slots   int32            `json:"slots"`
	Sources map[string]int32 `json:"sources,omitempty"`
	Seconds int64            `json:"seconds"`
}

func parseStoredGrant(g *v1alpha1.TransferGrant) budget.StoredGrant {
	s := budget.StoredGrant{Cluster: string(g.Spec.ClusterUID), Unlimited: g.Spec.Unlimited, Grant: budget.Grant{Sequence: g.Spec.Sequence}}
	if l := g.Spec.Limits; l != nil {
		s.Nonce, s.Duration, s.Slots = l.Nonce, time.Duration(l.DurationSeconds)*time.Second, l.Slots
		for _, group := range l.Sources {
			if s.Sources == nil {
				s.Sources = map[string]int32{}
			}
			s.Sources[group.Name] = group.Slots
		}
	}
	var p possibleShare
	if err := json.Unmarshal([]byte(g.Annotations[annotationPossible]), &p); err == nil {
		s.MaxPossible, s.PossibleFor = budget.Share{Slots: p.Slots, Sources: p.Sources}, time.Duration(p.Seconds)*time.Second
	}
	return s
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

// grantObject is a member's grant to be written over, or to be created.
func (r *Reconciler) grantObject(member string) *v1alpha1.TransferGrant {
	if g := r.storedGrants[member]; g != nil {
		return g.DeepCopy()
	}
	return &v1alpha1.TransferGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName},
		Spec:       v1alpha1.TransferGrantSpec{Sequence: r.accountant.LastSequence(member)},
	}
}

// fenceGrants writes to every grant that this process has not written yet, as it is, and
// makes those that are not there, with nothing in them: another process that is
// about to write one finds that it has changed.
func (r *Reconciler) fenceGrants(ctx context.Context, all []memberState) {
	var writes []*v1alpha1.TransferGrant
	for i := range all {
		s := &all[i]
		// What another cluster holds by its grant is stored before that is written over.
		parted := r.departuresStored && r.accountant.TracksCluster(s.member.Name, string(s.clusterUID()))
		if s.fenced || r.isForOtherCluster(s) && !parted {
			continue
		}
		g := r.grantObject(s.member.Name)
		if s.isLeaving && g.ResourceVersion != "" {
			writes = append(writes, g)
			continue
		}
		if !s.writable {
			continue
		}
		if g.ResourceVersion == "" || g.Spec.ClusterUID != s.clusterUID() {
			ahead := int64(0)
			if s.link != nil {
				ahead = s.link.Status.AheadGrant
			}
			if t := s.root.Report.Transfers; t != nil {
				ahead = max(ahead, t.Grant)
			}
			delete(g.Annotations, annotationPossible) // what the other cluster may have had
			g.Spec = v1alpha1.TransferGrantSpec{
				ClusterUID: s.clusterUID(), Sequence: max(g.Spec.Sequence, ahead) + 1,
				Limits: &v1alpha1.TransferLimits{Nonce: budget.NoRequest, DurationSeconds: 1},
			}
		}
		writes = append(writes, g)
	}
	r.writeGrants(ctx, writes)
	for i := range all {
		if name := all[i].member.Name; r.isFenced(name) && !r.isForOtherCluster(&all[i]) {
			all[i].fenced = true
			r.accountant.RecordSequence(name, r.storedGrants[name].Spec.Sequence)
		}
	}
}

// isFenced tells whether a member's grant was written since it was read last.
func (r *Reconciler) isFenced(member string) bool {
	g := r.storedGrants[member]
	return g != nil && g.Annotations[annotationPlanner] == r.plannerMark(member)
}

// setLimits writes what was decided into a grant.
func setLimits(g *v1alpha1.TransferGrant, s *memberState, next budget.GrantWrite) {
	g.Spec = v1alpha1.TransferGrantSpec{
		ClusterUID: s.clusterUID(), Sequence: next.Sequence,
		Limits: &v1alpha1.TransferLimits{Slots: next.Slots, Nonce: next.Nonce, DurationSeconds: int32(next.Duration / time.Second)},
	}
	for _, name := range sortedKeys(next.Sources) {
		g.Spec.Limits.Sources = append(g.Spec.Limits.Sources, v1alpha1.SourceGrant{Name: name, Slots: next.Sources[name]})
	}
	text, err := json.Marshal(possibleShare{Slots: next.MaxPossible.Slots, Sources: next.MaxPossible.Sources, Seconds: int64(next.PossibleFor/time.Second) + 1})
	if err != nil {
		panic(err) // plain types of our own
	}
	metav1.SetMetaDataAnnotation(&g.ObjectMeta, annotationPossible, string(text))
}

// unlimitedGrants are the grants that are to be written where there is no budget. Their
// sequence rises above what the member is seen to have.
func unlimitedGrants(r *Reconciler, all []memberState) (writes []*v1alpha1.TransferGrant) {
	for i := range all {
		s := &all[i]
		if !s.writable {
			continue
		}
		ahead := int64(0)
		if s.link != nil {
			ahead = s.link.Status.AheadGrant
		}
		g := r.grantObject(s.member.Name)
		if g.ResourceVersion != "" && g.Spec.ClusterUID == s.clusterUID() && g.Spec.Unlimited && g.Spec.Sequence >= ahead {
			continue
		}
		g.Spec = v1alpha1.TransferGrantSpec{ClusterUID: s.clusterUID(), Unlimited: true, Sequence: max(g.Spec.Sequence, ahead) + 1}
		r.accountant.RecordSequence(s.member.Name, g.Spec.Sequence)
		writes = append(writes, g)
	}
	return writes
}

// writeGrants stores grants, each against the resourceVersion that this process knows. One
// that cannot be written holds up no other.
func (r *Reconciler) writeGrants(ctx context.Context, grants []*v1alpha1.TransferGrant) {
	failed := make([]error, len(grants))
	workqueue.ParallelizeUntil(ctx, maxConcurrentWrites, len(grants), func(i int) {
		g := grants[i]
		member, _ := report.MemberForNamespace(g.Namespace)
		if _, is := r.unknownGrants[member]; is {
			return
		}
		metav1.SetMetaDataAnnotation(&g.ObjectMeta, annotationPlanner, r.plannerMark(member))
		if g.ResourceVersion == "" {
			failed[i] = r.Live.Create(ctx, g)
		} else {
			failed[i] = r.Live.Update(ctx, g)
		}
		if failed[i] == nil {
			r.mu.Lock()
			r.storedGrants[member] = g
			r.mu.Unlock()
			r.Metrics.CountWrite()
		}
	})
	for i, g := range grants {
		member, _ := report.MemberForNamespace(g.Namespace)
		if failed[i] != nil {
			r.markUnknown(ctx, member, fmt.Errorf("writing TransferGrant %s/%s: %w", g.Namespace, g.Name, failed[i]))
		} else if _, is := r.unknownGrants[member]; !is {
			delete(r.retryDelays, member)
		}
	}
}
