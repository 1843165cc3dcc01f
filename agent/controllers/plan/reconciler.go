// Package plan makes the VMDiskImages that the ClusterPlan names. What is to be
// done about each is decided by package agent/plan.
package plan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pelotech/ot-fleet/agent/identity"
	"github.com/pelotech/ot-fleet/agent/kinds"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterplans,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers,verbs=get;list;watch

// FieldOwner of what the plan says about an image.
const FieldOwner = client.FieldOwner("ot-plan")

const (
	// absentDelay is the wait before an image is tried again for which its
	// namespace, or room in it, is missing: nothing tells the agent when it comes.
	absentDelay = 5 * time.Second
	// rejectedDelay is the wait before an image is tried again that the API server
	// has refused: what heals it is most likely another plan, which is tried at
	// once.
	rejectedDelay = 5 * time.Minute
	// changedDelay is the wait before an image is looked at again that somebody
	// changed meanwhile.
	changedDelay = 100 * time.Millisecond
)

// Reconciler carries out what the plan says about images.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live client.Reader
	// Mailbox reads the ClusterPlan.
	Mailbox cache.Cache
	Kinds   *kinds.Served
	Cluster *identity.Cluster
	// Results is told what became of each image.
	Results *plan.Results
	// Refresh has an image looked at again.
	Refresh func(v1alpha1.ImageKey)
	// Namespace of the agent, of its ClusterPlan and SyncLedger.
	Namespace string

	// served: the kind is, and no event of it can be missed.
	served atomic.Bool
	pokes  chan event.GenericEvent
	// named are the images that the plan names, for events of others to be passed
	// over.
	named  atomic.Pointer[map[plan.Key]role]
	wishes wishes
	// applied is what was last applied to images, held those that are not to be
	// tried again yet, told the plan whose images have been told of, and pruned those
	// that it prunes. Only Reconcile touches them, one at a time.
	applied map[plan.Key]plan.Applied
	held    map[plan.Key]hold
	told    told
	pruned  map[plan.Key]bool
}

// hold keeps an image from being tried before its time, as long as nothing of it
// has changed.
type hold struct {
	spec       string
	uid        types.UID
	generation int64
	until      time.Time
	answer     plan.Answer
}

func holdOf(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage, until time.Time, answer plan.Answer) hold {
	h := hold{spec: plan.Fingerprint(want), until: until, answer: answer}
	if there != nil {
		h.uid, h.generation = there.UID, there.Generation
	}
	return h
}

// errOutdated tells that the cache shows another plan than the one to be gone by.
var errOutdated = errors.New("the plan is another by now")

// Reconcile goes through the whole plan, as the cache shows it. Before the first
// write plan and ledger are read live: an older plan would bring back what a newer
// one no longer names, or a source that it has replaced.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	result, err := r.follow(ctx, r.Mailbox, r.Client, false)
	if errors.Is(err, errOutdated) {
		return r.follow(ctx, r.Live, r.Live, true)
	}
	return result, err
}

// follow goes through the plan. It stops at the first answer that is none, for
// the images behind would wait for theirs as long. live: plan and ledger are read
// past the cache.
func (r *Reconciler) follow(ctx context.Context, plans, ledgers client.Reader, live bool) (ctrl.Result, error) {
	p, verdict, err := r.read(ctx, plans, ledgers)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case p != nil && !verdict.Accepted:
		r.told = told{}
		return ctrl.Result{}, nil // what was done under the last plan stays as it is
	}
	var spec v1alpha1.ClusterPlanSpec
	if p != nil {
		spec = p.Spec
	}
	r.begin(&spec)
	if !live { // the cache that Wish reads may not show that one yet
		if err := r.tellConcerned(ctx, p); err != nil {
			return ctrl.Result{}, err
		}
	}
	gone, err := r.gone(ctx, spec.Prunes)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Results.SetPrunes(gone)
	if p == nil {
		r.Results.Set(nil)
		return ctrl.Result{}, nil
	}
	pass := pass{Reconciler: r, plan: p, confirmed: live, now: time.Now(), items: map[plan.Key]v1alpha1.PlanItemReport{}, absent: map[string]plan.Answer{}}
	before := r.Results.Get()
	for i := range p.Spec.Images {
		want := &p.Spec.Images[i]
		if err == nil {
			if err = pass.do(ctx, want); errors.Is(err, errOutdated) {
				return ctrl.Result{}, err
			}
		} else if last, known := before[plan.KeyOf(want)]; known {
			pass.items[plan.KeyOf(want)] = last
		} else {
			pass.tell(want, plan.Refused(want, err).Report)
		}
	}
	r.Results.Set(pass.items)
	return ctrl.Result{RequeueAfter: pass.wait}, err
}

// read returns the plan, nil for none, and whether it may be gone by.
func (r *Reconciler) read(ctx context.Context, plans, ledgers client.Reader, options ...client.GetOption) (*v1alpha1.ClusterPlan, plan.Verdict, error) {
	p := &v1alpha1.ClusterPlan{}
	key := types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.MailboxName}
	if err := plans.Get(ctx, key, p, options...); apierrors.IsNotFound(err) {
		return nil, plan.Verdict{}, nil
	} else if err != nil {
		return nil, plan.Verdict{}, fmt.Errorf("reading ClusterPlan %s: %w", key, err)
	}
	ledger := &v1alpha1.SyncLedger{}
	key.Name = v1alpha1.LedgerName
	if err := ledgers.Get(ctx, key, ledger, options...); client.IgnoreNotFound(err) != nil {
		return nil, plan.Verdict{}, fmt.Errorf("reading SyncLedger %s: %w", key, err)
	}
	own, err := r.Cluster.UID(ctx)
	if err != nil {
		return nil, plan.Verdict{}, err
	}
	var acknowledged *v1alpha1.PlanVersion
	if ledger.Status != nil {
		acknowledged = ledger.Status.Plan
	}
	return p, plan.Judge(p.Spec, own, acknowledged), nil
}

// role is what an image is in a plan.
type role uint8

const (
	toBeThere role = 1 << iota
	toBePruned
)

// begin notes what the plan names, and forgets what it does not name any more.
func (r *Reconciler) begin(p *v1alpha1.ClusterPlanSpec) {
	named := make(map[plan.Key]role, len(p.Images)+len(p.Prunes))
	for i := range p.Images {
		named[plan.KeyOf(&p.Images[i])] |= toBeThere
	}
	for i := range p.Prunes {
		named[plan.KeyOfPrune(&p.Prunes[i])] |= toBePruned
	}
	r.named.Store(&named)
	unnamed := func(key plan.Key) bool { return named[key]&toBeThere == 0 }
	maps.DeleteFunc(r.held, func(key plan.Key, _ hold) bool { return unnamed(key) })
	maps.DeleteFunc(r.applied, func(key plan.Key, _ plan.Applied) bool { return unnamed(key) })
}

// pass is one way through the plan.
type pass struct {
	*Reconciler
	plan *v1alpha1.ClusterPlan
	// confirmed: the plan is the one to be gone by, as a live read has told.
	confirmed bool
	now       time.Time
	items     map[plan.Key]v1alpha1.PlanItemReport
	// absent are the namespaces in which nothing can be made.
	absent map[string]plan.Answer
	wait   time.Duration
}

func (p *pass) within(d time.Duration) {
	if p.wait == 0 || d < p.wait {
		p.wait = d
	}
}

// tell notes what became of a planned image.
func (p *pass) tell(want *v1alpha1.PlannedImage, report v1alpha1.PlanItemReport) {
	report.Revision = want.Spec.Revision()
	p.items[plan.KeyOf(want)] = report
}

// do takes one image as far as it gets. An error is one of asking, not the API
// server's judgement.
func (p *pass) do(ctx context.Context, want *v1alpha1.PlannedImage) error {
	key := plan.KeyOf(want)
	there, err := p.look(ctx, p.Client, want)
	if err != nil {
		return err
	}
	action, report := p.next(want, there)
	if action == plan.Leave {
		p.tell(want, report)
		return nil
	}
	if answer, absent := p.absent[want.Namespace]; absent {
		p.refused(want, there, answer)
		return nil
	}
	if h, held := p.held[key]; held && h == holdOf(want, there, h.until, h.answer) && p.now.Before(h.until) {
		p.tell(want, h.answer.Report)
		p.within(h.until.Sub(p.now))
		return nil
	}
	if err := p.confirm(ctx); err != nil {
		return err
	}
	delete(p.held, key)
	if action == plan.Create {
		err = p.Create(ctx, plan.New(want), FieldOwner)
		if apierrors.IsAlreadyExists(err) { // the cache does not show it yet: whose it is, a live read tells
			action, err = plan.Change, nil
		}
	}
	if err == nil && action == plan.Change {
		report, err = p.change(ctx, want)
	} else if err == nil {
		report = plan.Done()
	}
	switch {
	case err == nil:
		p.tell(want, report)
		return nil
	case apierrors.IsConflict(err):
		p.tell(want, plan.Refused(want, err).Report)
		p.within(changedDelay)
		return nil
	}
	answer := plan.Refused(want, err)
	p.refused(want, there, answer)
	if answer.Transient {
		return fmt.Errorf("making VMDiskImage %s/%s as the plan says: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// confirm reads live, once in a pass, whether its plan is to be gone by.
func (p *pass) confirm(ctx context.Context) error {
	if p.confirmed {
		return nil
	}
	now, verdict, err := p.read(ctx, p.Live, p.Live)
	switch {
	case err != nil:
		return err
	case now == nil, now.UID != p.plan.UID, now.ResourceVersion != p.plan.ResourceVersion, !verdict.Accepted:
		return errOutdated
	}
	p.confirmed = true
	return nil
}

// refused notes an image that the API server does not take.
func (p *pass) refused(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage, answer plan.Answer) {
	key := plan.KeyOf(want)
	p.tell(want, answer.Report)
	if answer.Transient {
		return
	}
	if answer.Namespace {
		p.absent[want.Namespace] = answer
	}
	wait := absentDelay
	if answer.Report.State == v1alpha1.PlanItemRejected {
		wait = rejectedDelay
	}
	p.held[key] = holdOf(want, there, p.now.Add(wait), answer)
	p.within(wait)
}

func (p *pass) next(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage) (plan.Action, v1alpha1.PlanItemReport) {
	var last *plan.Applied
	if applied, known := p.applied[plan.KeyOf(want)]; known {
		last = &applied
	}
	return plan.Next(want, there, last)
}

// look returns the image of a planned one's name, nil for none.
func (p *pass) look(ctx context.Context, from client.Reader, want *v1alpha1.PlannedImage) (*v1alpha1.VMDiskImage, error) {
	img := &v1alpha1.VMDiskImage{}
	err := from.Get(ctx, types.NamespacedName{Namespace: want.Namespace, Name: want.Name}, img)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading VMDiskImage %s/%s: %w", want.Namespace, want.Name, err)
	}
	return img, nil
}

// change applies what the plan says to an image that is there, if it is one of
// the plan's: what is looked at is read live, and what is written names it.
func (p *pass) change(ctx context.Context, want *v1alpha1.PlannedImage) (v1alpha1.PlanItemReport, error) {
	there, err := p.look(ctx, p.Live, want)
	if err != nil {
		return v1alpha1.PlanItemReport{}, err
	}
	action, report := p.next(want, there)
	switch action {
	case plan.Create: // gone meanwhile
		p.within(changedDelay)
		return report, nil
	case plan.Leave:
		return report, nil
	}
	// An image is created with its fields, not applied, so that it is never
	// somebody else's. The field owner's former rights become those of an apply,
	// or what the plan no longer says would stay.
	owned, err := csaupgrade.UpgradeManagedFieldsPatch(there, sets.New(string(FieldOwner)), string(FieldOwner))
	if err != nil {
		return report, fmt.Errorf("reading who owns the fields of VMDiskImage %s/%s: %w", want.Namespace, want.Name, err)
	}
	if owned != nil {
		if err := p.Patch(ctx, there, client.RawPatch(types.JSONPatchType, owned), FieldOwner); err != nil {
			return report, err
		}
	}
	configuration, err := plan.Configuration(want, there)
	if err != nil {
		return report, err
	}
	if err := p.Apply(ctx, client.ApplyConfigurationFromUnstructured(configuration), FieldOwner, client.ForceOwnership); err != nil {
		return report, err
	}
	p.applied[plan.KeyOf(want)] = plan.Applied{UID: there.UID, Spec: plan.Fingerprint(want), Generation: configuration.GetGeneration()}
	return plan.Done(), nil
}
