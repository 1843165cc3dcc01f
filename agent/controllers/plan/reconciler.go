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

	"github.com/pelotech/ot-fleet/agent/apidiscovery"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterplans,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers,verbs=get;list;watch

// FieldOwner of what the plan says about an image.
const FieldOwner = client.FieldOwner("ot-plan")

const (
	// missingRetryDelay is the wait before an image is tried again for which its
	// namespace, or room in it, is missing: nothing tells the agent when it comes.
	missingRetryDelay = 5 * time.Second
	// rejectedRetryDelay is the wait before an image is tried again that the API server
	// has refused: what heals it is most likely another plan, which is tried at
	// once.
	rejectedRetryDelay = 5 * time.Minute
	// conflictRetryDelay is the wait before an image is looked at again that somebody
	// changed meanwhile.
	conflictRetryDelay = 100 * time.Millisecond
)

// Reconciler carries out what the plan says about images.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live client.Reader
	// Mailbox reads the ClusterPlan.
	Mailbox cache.Cache
	Kinds   *apidiscovery.KindTracker
	Cluster *apidiscovery.ClusterIdentity
	// Results is told what became of each image.
	Results *plan.Results
	// EnqueueImage has an image looked at again.
	EnqueueImage func(v1alpha1.ImageKey)
	// Namespace of the agent, of its ClusterPlan and SyncLedger.
	Namespace string

	// served: the kind is, and no event of it can be missed.
	served   atomic.Bool
	triggers chan event.GenericEvent
	// namedImages are the images that the plan names, for events of others to be passed
	// over.
	namedImages atomic.Pointer[map[plan.Key]imageRole]
	wishes      wishCache
	// applied is what was last applied to images, held those that are not to be
	// tried again yet, told the plan whose images have been told of, and pruned those
	// that it prunes. Only Reconcile touches them, one at a time.
	applied      map[plan.Key]plan.AppliedState
	backoffs     map[plan.Key]itemBackoff
	notifiedPlan planIdentity
	prunedImages map[plan.Key]bool
}

// itemBackoff keeps an image from being tried before its time, as long as nothing of it
// has changed.
type itemBackoff struct {
	specFingerprint string
	uid             types.UID
	generation      int64
	until           time.Time
	refusal         plan.Refusal
}

func newItemBackoff(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage, until time.Time, answer plan.Refusal) itemBackoff {
	h := itemBackoff{specFingerprint: plan.FingerprintSpec(want), until: until, refusal: answer}
	if there != nil {
		h.uid, h.generation = there.UID, there.Generation
	}
	return h
}

// errStalePlan tells that the cache shows another plan than the one to be gone by.
var errStalePlan = errors.New("the plan is another by now")

// Reconcile goes through the whole plan, as the cache shows it. Before the first
// write plan and ledger are read live: an older plan would bring back what a newer
// one no longer names, or a source that it has replaced.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcilePlan(ctx, r.Mailbox, r.Client, false)
	if errors.Is(err, errStalePlan) {
		return r.reconcilePlan(ctx, r.Live, r.Live, true)
	}
	return result, err
}

// reconcilePlan goes through the plan. It stops at the first answer that is none, for
// the images behind would wait for theirs as long. live: plan and ledger are read
// past the cache.
func (r *Reconciler) reconcilePlan(ctx context.Context, plans, ledgers client.Reader, live bool) (ctrl.Result, error) {
	p, verdict, err := r.readPlan(ctx, plans, ledgers)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case p != nil && !verdict.Accepted:
		r.notifiedPlan = planIdentity{}
		return ctrl.Result{}, nil // what was done under the last plan stays as it is
	}
	var spec v1alpha1.ClusterPlanSpec
	if p != nil {
		spec = p.Spec
	}
	r.updateNamedImages(&spec)
	if !live { // the cache that Wish reads may not show that one yet
		if err := r.enqueueAffectedImages(ctx, p); err != nil {
			return ctrl.Result{}, err
		}
	}
	gone, err := r.findPrunedImages(ctx, spec.Prunes)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Results.SetPrunes(gone)
	if p == nil {
		r.Results.SetItems(nil)
		return ctrl.Result{}, nil
	}
	pass := planPass{Reconciler: r, plan: p, confirmed: live, now: time.Now(), reports: map[plan.Key]v1alpha1.PlanItemReport{}, unavailableNamespaces: map[string]plan.Refusal{}}
	before := r.Results.Items()
	for i := range p.Spec.Images {
		want := &p.Spec.Images[i]
		if err == nil {
			if err = pass.reconcileImage(ctx, want); errors.Is(err, errStalePlan) {
				return ctrl.Result{}, err
			}
		} else if last, known := before[plan.KeyForImage(want)]; known {
			pass.reports[plan.KeyForImage(want)] = last
		} else {
			pass.setReport(want, plan.ClassifyRefusal(want, err).Report)
		}
	}
	r.Results.SetItems(pass.reports)
	return ctrl.Result{RequeueAfter: pass.requeueAfter}, err
}

// readPlan returns the plan, nil for none, and whether it may be gone by.
func (r *Reconciler) readPlan(ctx context.Context, plans, ledgers client.Reader, options ...client.GetOption) (*v1alpha1.ClusterPlan, plan.Verdict, error) {
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
	return p, plan.EvaluatePlan(p.Spec, own, acknowledged), nil
}

// imageRole is what an image is in a plan.
type imageRole uint8

const (
	rolePlanned imageRole = 1 << iota
	rolePruned
)

// updateNamedImages notes what the plan names, and forgets what it does not name any more.
func (r *Reconciler) updateNamedImages(p *v1alpha1.ClusterPlanSpec) {
	named := make(map[plan.Key]imageRole, len(p.Images)+len(p.Prunes))
	for i := range p.Images {
		named[plan.KeyForImage(&p.Images[i])] |= rolePlanned
	}
	for i := range p.Prunes {
		named[plan.KeyForPrune(&p.Prunes[i])] |= rolePruned
	}
	r.namedImages.Store(&named)
	unnamed := func(key plan.Key) bool { return named[key]&rolePlanned == 0 }
	maps.DeleteFunc(r.backoffs, func(key plan.Key, _ itemBackoff) bool { return unnamed(key) })
	maps.DeleteFunc(r.applied, func(key plan.Key, _ plan.AppliedState) bool { return unnamed(key) })
}

// planPass is one way through the plan.
type planPass struct {
	*Reconciler
	plan *v1alpha1.ClusterPlan
	// confirmed: the plan is the one to be gone by, as a live read has told.
	confirmed bool
	now       time.Time
	reports   map[plan.Key]v1alpha1.PlanItemReport
	// unavailableNamespaces are the namespaces in which nothing can be made.
	unavailableNamespaces map[string]plan.Refusal
	requeueAfter          time.Duration
}

func (p *planPass) requeueWithin(d time.Duration) {
	if p.requeueAfter == 0 || d < p.requeueAfter {
		p.requeueAfter = d
	}
}

// setReport notes what became of a planned image.
func (p *planPass) setReport(want *v1alpha1.PlannedImage, report v1alpha1.PlanItemReport) {
	report.Revision = want.Spec.Revision()
	p.reports[plan.KeyForImage(want)] = report
}

// reconcileImage takes one image as far as it gets. An error is one of asking, not the API
// server's judgement.
func (p *planPass) reconcileImage(ctx context.Context, want *v1alpha1.PlannedImage) error {
	key := plan.KeyForImage(want)
	there, err := p.getImage(ctx, p.Client, want)
	if err != nil {
		return err
	}
	action, report := p.nextAction(want, there)
	if action == plan.Leave {
		p.setReport(want, report)
		return nil
	}
	if answer, absent := p.unavailableNamespaces[want.Namespace]; absent {
		p.recordRefusal(want, there, answer)
		return nil
	}
	if h, held := p.backoffs[key]; held && h == newItemBackoff(want, there, h.until, h.refusal) && p.now.Before(h.until) {
		p.setReport(want, h.refusal.Report)
		p.requeueWithin(h.until.Sub(p.now))
		return nil
	}
	if err := p.confirmPlanLive(ctx); err != nil {
		return err
	}
	delete(p.backoffs, key)
	if action == plan.Create {
		err = p.Create(ctx, plan.NewImage(want), FieldOwner)
		if apierrors.IsAlreadyExists(err) { // the cache does not show it yet: whose it is, a live read tells
			action, err = plan.Change, nil
		}
	}
	if err == nil && action == plan.Change {
		report, err = p.updateImage(ctx, want)
	} else if err == nil {
		report = plan.AppliedReport()
	}
	switch {
	case err == nil:
		p.setReport(want, report)
		return nil
	case apierrors.IsConflict(err):
		p.setReport(want, plan.ClassifyRefusal(want, err).Report)
		p.requeueWithin(conflictRetryDelay)
		return nil
	}
	answer := plan.ClassifyRefusal(want, err)
	p.recordRefusal(want, there, answer)
	if answer.Transient {
		return fmt.Errorf("making VMDiskImage %s/%s as the plan says: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// confirmPlanLive reads live, once in a pass, whether its plan is to be gone by.
func (p *planPass) confirmPlanLive(ctx context.Context) error {
	if p.confirmed {
		return nil
	}
	now, verdict, err := p.readPlan(ctx, p.Live, p.Live)
	switch {
	case err != nil:
		return err
	case now == nil, now.UID != p.plan.UID, now.ResourceVersion != p.plan.ResourceVersion, !verdict.Accepted:
		return errStalePlan
	}
	p.confirmed = true
	return nil
}

// recordRefusal notes an image that the API server does not take.
func (p *planPass) recordRefusal(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage, answer plan.Refusal) {
	key := plan.KeyForImage(want)
	p.setReport(want, answer.Report)
	if answer.Transient {
		return
	}
	if answer.NamespaceUnavailable {
		p.unavailableNamespaces[want.Namespace] = answer
	}
	wait := missingRetryDelay
	if answer.Report.State == v1alpha1.PlanItemRejected {
		wait = rejectedRetryDelay
	}
	p.backoffs[key] = newItemBackoff(want, there, p.now.Add(wait), answer)
	p.requeueWithin(wait)
}

func (p *planPass) nextAction(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage) (plan.Action, v1alpha1.PlanItemReport) {
	var last *plan.AppliedState
	if applied, known := p.applied[plan.KeyForImage(want)]; known {
		last = &applied
	}
	return plan.NextAction(want, there, last)
}

// getImage returns the image of a planned one's name, nil for none.
func (p *planPass) getImage(ctx context.Context, from client.Reader, want *v1alpha1.PlannedImage) (*v1alpha1.VMDiskImage, error) {
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

// updateImage applies what the plan says to an image that is there, if it is one of
// the plan's: what is looked at is read live, and what is written names it.
func (p *planPass) updateImage(ctx context.Context, want *v1alpha1.PlannedImage) (v1alpha1.PlanItemReport, error) {
	there, err := p.getImage(ctx, p.Live, want)
	if err != nil {
		return v1alpha1.PlanItemReport{}, err
	}
	action, report := p.nextAction(want, there)
	switch action {
	case plan.Create: // gone meanwhile
		p.requeueWithin(conflictRetryDelay)
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
	configuration, err := plan.NewApplyConfiguration(want, there)
	if err != nil {
		return report, err
	}
	if err := p.Apply(ctx, client.ApplyConfigurationFromUnstructured(configuration), FieldOwner, client.ForceOwnership); err != nil {
		return report, err
	}
	p.applied[plan.KeyForImage(want)] = plan.AppliedState{UID: there.UID, SpecFingerprint: plan.FingerprintSpec(want), Generation: configuration.GetGeneration()}
	return plan.AppliedReport(), nil
}
