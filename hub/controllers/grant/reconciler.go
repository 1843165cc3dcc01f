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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/controllers/poke"
	"github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/metrics"
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
	// pause between two looks at the whole: what comes in between is seen by one.
	pause = 200 * time.Millisecond
	// soon is when to look again after somebody else was faster.
	soon    = time.Second
	writers = 8
)

// Reports tells what the members have reported.
type Reports interface {
	Root(member string) report.Root
	// Filled: all that was stored has been read.
	Filled() bool
	OnChange(do func(member string))
	OnFilled(do func())
}

// Policy tells the fleet's policy.
type Policy interface {
	Current() policy.State
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

	again    poke.Source[reconcile.Request]
	began    time.Time
	last     time.Time
	book     *budget.Book // nil: what is stored has not been read
	memories map[string]*memory
	departed departures
	// kept: what has departed is stored.
	kept bool
	// marking is when the plan of a member is marked again.
	marking map[string]time.Time

	mu sync.Mutex
	// stored are the grants as they were read or written last.
	stored map[string]*v1alpha1.TransferGrant
	// deleted are the members whose grants were since.
	deleted []string
	// lost are the members of whose grants it is not known what is stored.
	lost map[string]time.Time // until when that is not looked at
	// waits is how long that was put off last, until a write goes through again.
	waits map[string]time.Duration
	// reads is how often what is stored was read for each.
	reads map[string]int
}

// mostWait is the longest wait before a grant that cannot be written is tried again.
const mostWait = 30 * time.Second

// Reconcile looks at the whole fleet.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (ctrl.Result, error) {
	if wait := pause - time.Since(r.last); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	state := r.Policy.Current()
	if !state.Known || !r.Reports.Filled() {
		return ctrl.Result{}, nil // both have it looked at again
	}
	defer func() { r.last = time.Now() }()
	if r.book == nil {
		if err := r.learn(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	r.drop()
	r.readLost(ctx)
	all, err := r.gather(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	var after time.Duration
	if state.Policy == nil || state.Policy.Budget() == nil {
		r.Shares.set(false, nil)
		r.Metrics.None()
		r.write(ctx, unlimited(r, all))
	} else {
		after = r.share(ctx, state.Policy, all)
	}
	if len(r.lost) > 0 && (after == 0 || after > soon) {
		after = soon
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// readLost reads live the grants of which it is not known what is stored. The book
// keeps what it has of these members, and takes in what is stored.
func (r *Reconciler) readLost(ctx context.Context) {
	for member, until := range r.lost {
		if time.Now().Before(until) {
			continue
		}
		g := &v1alpha1.TransferGrant{}
		key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}
		switch err := r.Live.Get(ctx, key, g); {
		case apierrors.IsNotFound(err):
			delete(r.stored, member)
		case err != nil:
			r.lose(ctx, member, fmt.Errorf("reading TransferGrant %s: %w", key, err))
			continue
		default:
			r.stored[member] = g
			r.book.Learn(member, storedIn(g), time.Now())
			r.kept = false // it may be of a cluster that has departed
		}
		r.reads[member]++
		delete(r.lost, member)
	}
}

// lose notes that it is not known what is stored of a member's grant.
func (r *Reconciler) lose(ctx context.Context, member string, err error) {
	wait := min(max(2*r.waits[member], soon), mostWait)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		wait = soon
		log.FromContext(ctx).Info("A TransferGrant is not what this process knows: it is read anew", "member", member)
	} else {
		log.FromContext(ctx).Error(err, "A TransferGrant is not written; what may be stored counts", "member", member, "again", wait)
	}
	r.waits[member] = wait
	r.lost[member] = time.Now().Add(wait)
}

// mark is what a grant bears that this process has written since it was read last:
// what another has decided before, or this one, and not written by then, is refused.
func (r *Reconciler) mark(member string) string {
	return fmt.Sprintf("%s/%d", r.Challenge, r.reads[member])
}

// drop forgets grants that were seen to be deleted: they are made anew.
func (r *Reconciler) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, member := range r.deleted {
		delete(r.stored, member)
	}
	r.deleted = nil
}

// learn reads live what grants there are. What is in a cache may be from before what
// the last elected process wrote.
func (r *Reconciler) learn(ctx context.Context) error {
	var list v1alpha1.TransferGrantList
	if err := r.Live.List(ctx, &list); err != nil {
		return fmt.Errorf("reading all TransferGrants: %w", err)
	}
	now := time.Now()
	if r.began.IsZero() {
		r.began = now
	}
	book := budget.NewBook()
	r.stored, r.lost = map[string]*v1alpha1.TransferGrant{}, map[string]time.Time{}
	r.waits, r.reads = map[string]time.Duration{}, map[string]int{}
	for i := range list.Items {
		g := &list.Items[i]
		member, is := report.MemberOf(g.Namespace)
		if !is || g.Name != v1alpha1.MailboxName {
			continue
		}
		r.stored[member] = g
		book.Learn(member, storedIn(g), now)
	}
	if err := r.recall(ctx, book); err != nil {
		return err
	}
	r.Shares.is(r.Challenge)
	r.book, r.memories, r.marking = book, map[string]*memory{}, map[string]time.Time{}
	return nil
}

// possible is annotationPossible.
type possible struct {
	Slots   int32            `json:"slots"`
	Sources map[string]int32 `json:"sources,omitempty"`
	Seconds int64            `json:"seconds"`
}

func storedIn(g *v1alpha1.TransferGrant) budget.Stored {
	s := budget.Stored{Cluster: string(g.Spec.ClusterUID), Unlimited: g.Spec.Unlimited, Grant: budget.Grant{Sequence: g.Spec.Sequence}}
	if l := g.Spec.Limits; l != nil {
		s.Nonce, s.Duration, s.Slots = l.Nonce, time.Duration(l.DurationSeconds)*time.Second, l.Slots
		for _, group := range l.Sources {
			if s.Sources == nil {
				s.Sources = map[string]int32{}
			}
			s.Sources[group.Name] = group.Slots
		}
	}
	var p possible
	if err := json.Unmarshal([]byte(g.Annotations[annotationPossible]), &p); err == nil {
		s.Possible, s.Left = budget.Share{Slots: p.Slots, Sources: p.Sources}, time.Duration(p.Seconds)*time.Second
	}
	return s
}

// gather reads all that is decided upon, of every member.
func (r *Reconciler) gather(ctx context.Context) ([]seen, error) {
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
	all := make([]seen, 0, len(members.Items))
	for i := range members.Items {
		m := &members.Items[i]
		namespace := v1alpha1.MemberNamespacePrefix + m.Name
		s := seen{member: m, root: r.Reports.Root(m.Name), plan: planOf[namespace], link: linkOf[namespace], challenge: r.Challenge, began: r.began}
		if room[namespace] && m.DeletionTimestamp.IsZero() && s.uid() != "" {
			holder, err := claim.Holder(ctx, r.Client, m, s.uid())
			if err != nil {
				return nil, err
			}
			s.writable, s.leaves = holder == "", holder != ""
		}
		s.leaves = s.leaves || !m.DeletionTimestamp.IsZero()
		s.fenced, s.granted = r.guarded(m.Name) && !r.another(&s), r.stored[m.Name] != nil
		all = append(all, s)
	}
	return all, nil
}

// share plans by the budget, and writes what comes of it.
func (r *Reconciler) share(ctx context.Context, p *fleet.Policy, all []seen) (after time.Duration) {
	b := p.Budget()
	rules := budget.Rules{Total: int64(b.Concurrency), Duration: b.GrantDuration}
	for _, s := range b.Sources {
		rules.Groups = append(rules.Groups, budget.Group{Name: s.Name, Concurrency: *s.Concurrency})
	}
	r.fence(ctx, all)
	r.markPlans(ctx, all)
	r.Shares.look()
	now, groups := time.Now(), b.Groups()
	there, inForce := make(map[string]*seen, len(all)), make(map[string]*budget.Bounds, len(all))
	for i := range all {
		s := &all[i]
		there[s.member.Name] = s
		m := r.memories[s.member.Name]
		if m != nil && m.member != s.member.UID {
			r.book.Remove(s.member.Name, now) // it was deleted, and made anew
		}
		if m == nil || m.member != s.member.UID {
			m = &memory{member: s.member.UID}
			r.memories[s.member.Name] = m
		}
		s.intended = r.Shares.intended(s.member.Name, s.plan)
		f := m.facts(s, p, groups, now)
		r.book.See(s.member.Name, f, now)
		inForce[s.member.Name] = f.InForce
	}
	for _, name := range r.book.Members() {
		if there[name] == nil {
			r.book.Remove(name, now)
			delete(r.memories, name)
		}
	}
	plan := r.book.Plan(rules, now)
	shares := make(map[string]share, len(plan.Accounts))
	for _, a := range plan.Accounts {
		if !a.Gone {
			one := share{transfers: transfersOf(a), inForce: inForce[a.Member]}
			one.safe, one.mayPlan = r.book.Safe(a.Member)
			shares[a.Member] = one
		}
	}
	r.Shares.set(true, shares)
	if !r.part(ctx, all, now) {
		after = soon
	}
	writes := make([]*v1alpha1.TransferGrant, len(plan.Grants))
	for i, next := range plan.Grants {
		writes[i] = r.object(next.Member)
		limit(writes[i], there[next.Member], next)
	}
	r.write(ctx, writes)
	r.Metrics.Set(rules, plan)
	if again := max(pause, plan.Again.Sub(now)+time.Millisecond); !plan.Again.IsZero() && (after == 0 || again < after) {
		after = again
	}
	for i := range all {
		if all[i].unread(now) || all[i].unplanned() {
			after = min(cmp.Or(after, soon), soon) // that it is waited for no longer
		}
	}
	return after
}

// object is a member's grant to be written over, or to be created.
func (r *Reconciler) object(member string) *v1alpha1.TransferGrant {
	if g := r.stored[member]; g != nil {
		return g.DeepCopy()
	}
	return &v1alpha1.TransferGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName},
		Spec:       v1alpha1.TransferGrantSpec{Sequence: r.book.Sequence(member)},
	}
}

// fence writes to every grant that this process has not written yet, as it is, and
// makes those that are not there, with nothing in them: another process that is
// about to write one finds that it has changed.
func (r *Reconciler) fence(ctx context.Context, all []seen) {
	var writes []*v1alpha1.TransferGrant
	for i := range all {
		s := &all[i]
		// What another cluster holds by its grant is stored before that is written over.
		parted := r.kept && r.book.Parted(s.member.Name, string(s.uid()))
		if s.fenced || r.another(s) && !parted {
			continue
		}
		g := r.object(s.member.Name)
		if s.leaves && g.ResourceVersion != "" {
			writes = append(writes, g)
			continue
		}
		if !s.writable {
			continue
		}
		if g.ResourceVersion == "" || g.Spec.ClusterUID != s.uid() {
			ahead := int64(0)
			if s.link != nil {
				ahead = s.link.Status.AheadGrant
			}
			if t := s.root.Report.Transfers; t != nil {
				ahead = max(ahead, t.Grant)
			}
			delete(g.Annotations, annotationPossible) // what the other cluster may have had
			g.Spec = v1alpha1.TransferGrantSpec{
				ClusterUID: s.uid(), Sequence: max(g.Spec.Sequence, ahead) + 1,
				Limits: &v1alpha1.TransferLimits{Nonce: budget.NoRequest, DurationSeconds: 1},
			}
		}
		writes = append(writes, g)
	}
	r.write(ctx, writes)
	for i := range all {
		if name := all[i].member.Name; r.guarded(name) && !r.another(&all[i]) {
			all[i].fenced = true
			r.book.Wrote(name, r.stored[name].Spec.Sequence)
		}
	}
}

// guarded tells whether a member's grant was written since it was read last.
func (r *Reconciler) guarded(member string) bool {
	g := r.stored[member]
	return g != nil && g.Annotations[annotationPlanner] == r.mark(member)
}

// limit writes what was decided into a grant.
func limit(g *v1alpha1.TransferGrant, s *seen, next budget.Next) {
	g.Spec = v1alpha1.TransferGrantSpec{
		ClusterUID: s.uid(), Sequence: next.Sequence,
		Limits: &v1alpha1.TransferLimits{Slots: next.Slots, Nonce: next.Nonce, DurationSeconds: int32(next.Duration / time.Second)},
	}
	for _, name := range sortedKeys(next.Sources) {
		g.Spec.Limits.Sources = append(g.Spec.Limits.Sources, v1alpha1.SourceGrant{Name: name, Slots: next.Sources[name]})
	}
	text, err := json.Marshal(possible{Slots: next.Possible.Slots, Sources: next.Possible.Sources, Seconds: int64(next.Left/time.Second) + 1})
	if err != nil {
		panic(err) // plain types of our own
	}
	metav1.SetMetaDataAnnotation(&g.ObjectMeta, annotationPossible, string(text))
}

// unlimited are the grants that are to be written where there is no budget. Their
// sequence rises above what the member is seen to have.
func unlimited(r *Reconciler, all []seen) (writes []*v1alpha1.TransferGrant) {
	for i := range all {
		s := &all[i]
		if !s.writable {
			continue
		}
		ahead := int64(0)
		if s.link != nil {
			ahead = s.link.Status.AheadGrant
		}
		g := r.object(s.member.Name)
		if g.ResourceVersion != "" && g.Spec.ClusterUID == s.uid() && g.Spec.Unlimited && g.Spec.Sequence >= ahead {
			continue
		}
		g.Spec = v1alpha1.TransferGrantSpec{ClusterUID: s.uid(), Unlimited: true, Sequence: max(g.Spec.Sequence, ahead) + 1}
		r.book.Wrote(s.member.Name, g.Spec.Sequence)
		writes = append(writes, g)
	}
	return writes
}

// write stores grants, each against the resourceVersion that this process knows. One
// that cannot be written holds up no other.
func (r *Reconciler) write(ctx context.Context, grants []*v1alpha1.TransferGrant) {
	failed := make([]error, len(grants))
	workqueue.ParallelizeUntil(ctx, writers, len(grants), func(i int) {
		g := grants[i]
		member, _ := report.MemberOf(g.Namespace)
		if _, is := r.lost[member]; is {
			return
		}
		metav1.SetMetaDataAnnotation(&g.ObjectMeta, annotationPlanner, r.mark(member))
		if g.ResourceVersion == "" {
			failed[i] = r.Live.Create(ctx, g)
		} else {
			failed[i] = r.Live.Update(ctx, g)
		}
		if failed[i] == nil {
			r.mu.Lock()
			r.stored[member] = g
			r.mu.Unlock()
			r.Metrics.Written()
		}
	})
	for i, g := range grants {
		member, _ := report.MemberOf(g.Namespace)
		if failed[i] != nil {
			r.lose(ctx, member, fmt.Errorf("writing TransferGrant %s/%s: %w", g.Namespace, g.Name, failed[i]))
		} else if _, is := r.lost[member]; !is {
			delete(r.waits, member)
		}
	}
}
