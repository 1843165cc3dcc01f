// Package plan creates and changes the VMDiskImages that the ClusterPlan names, and passes
// what the plan says about keeping images to their controller. Package agent/plan decides.
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
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	policycontroller "github.com/pelotech/ot-fleet/agent/controllers/policy"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterplans,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers,verbs=get;list;watch

// FieldOwner of what the plan says about an image.
const FieldOwner = client.FieldOwner("ot-plan")

const (
	// missingRetryDelay is the wait after an image was refused because its namespace, or
	// quota in it, is missing: no event announces either.
	missingRetryDelay = 5 * time.Second
	// rejectedRetryDelay is the wait after the API server has rejected an image: most
	// likely only another plan helps, and that is tried at once.
	rejectedRetryDelay = 5 * time.Minute
	// policyReadDelay is the wait for the policy, which is read soon after the start.
	policyReadDelay = 200 * time.Millisecond
)

// Reconciler applies the plan to VMDiskImages.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live client.Reader
	// Mailbox reads the ClusterPlan.
	Mailbox cache.Cache
	Kinds   *apidiscovery.KindTracker
	Cluster *apidiscovery.ClusterIdentity
	// Policy in force, of which allowedNamespaces matters.
	Policy *policycontroller.InForce
	// Results gets the result of each image.
	Results *plan.Results
	// EnqueueImages requeues images.
	EnqueueImages func(...v1alpha1.ImageKey)
	// PlanFields are those of planned images that are followed.
	PlanFields func() []string
	// Nonces by which this process asks for its prunes, and Elapsed, how long it has been running.
	Nonces  *plan.PruneNonces
	Elapsed func() time.Duration
	// EnqueueReport requeues the report.
	EnqueueReport func()
	// Namespace of the agent, of its ClusterPlan and SyncLedger.
	Namespace string

	triggers trigger.Source[reconcile.Request]
	// served: ClusterPlans are served and watched.
	served atomic.Bool
	// namedImages are the images that the plan names, with their roles.
	namedImages   atomic.Pointer[map[plan.Key]imageRole]
	plannedStates plannedStateCache
	// The fields below belong to Reconcile, which runs one at a time.

	// applied is what was last applied to images, backoffs the images that were refused.
	applied  map[plan.Key]plan.AppliedState
	backoffs map[plan.Key]itemBackoff
	// writes delays namespaces where the last write failed, though the image was not refused.
	writes trigger.NamespaceBackoff
	// conflicts of writes in a row, by image.
	conflicts trigger.ConflictTracker
	// notifiedPlan is the plan whose images were requeued, prunedImages those it prunes.
	notifiedPlan planIdentity
	prunedImages map[plan.Key]bool
}

// imageRole is a set of bits.
type imageRole uint8

const (
	rolePlanned imageRole = 1 << iota
	rolePruned
)

// errStalePlan: the cache shows another plan than the one that applies.
var errStalePlan = errors.New("the plan has changed meanwhile")

// Reconcile applies the plan that the cache shows. Plan and ledger are read live before the
// first write: an older plan would recreate what a newer one no longer names.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcilePlan(ctx, false)
	if errors.Is(err, errStalePlan) {
		return r.reconcilePlan(ctx, true)
	}
	return result, err
}

// reconcilePlan reads the plan, requeues the images that it affects, applies it to its
// images, and stores the results. live: it reads past the cache.
func (r *Reconciler) reconcilePlan(ctx context.Context, live bool) (ctrl.Result, error) {
	p, verdict, err := r.readPlan(ctx, live)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case p != nil && !verdict.Accepted:
		r.notifiedPlan = planIdentity{}
		return ctrl.Result{}, nil // the images stay as the last plan left them
	}
	var spec v1alpha1.ClusterPlanSpec
	if p != nil {
		spec = p.Spec
	}
	r.updateNamedImages(&spec)
	if !live { // else the cache that PlannedState reads may not show this plan yet
		if err := r.enqueueAffectedImages(ctx, p); err != nil {
			return ctrl.Result{}, err
		}
	}
	pruned, err := r.findPrunedImages(ctx, spec.Prunes)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Results.SetPrunes(pruned)
	if p == nil {
		r.Results.SetItems(nil)
		return ctrl.Result{}, nil
	}
	if !r.Policy.Known() {
		return ctrl.Result{RequeueAfter: policyReadDelay}, nil // which namespaces are allowed is not known yet
	}
	return r.reconcileImages(ctx, p, live)
}

// reconcileImages applies the plan to its images. It stops at the first error that the images behind
// would meet too. Those keep their former results, as do images of a namespace where requests fail.
func (r *Reconciler) reconcileImages(ctx context.Context, p *v1alpha1.ClusterPlan, live bool) (ctrl.Result, error) {
	pass := &planPass{
		Reconciler: r, plan: p, allowedNamespaces: r.allowedNamespaces(), confirmed: live, now: time.Now(),
		before: r.Results.Items(), reports: map[plan.Key]v1alpha1.PlanItemReport{}, unavailableNamespaces: map[string]plan.Refusal{},
	}
	r.writes.StartReconcile(pass.now)
	images := make([]*v1alpha1.PlannedImage, len(p.Spec.Images))
	for i := range p.Spec.Images {
		images[i] = &p.Spec.Images[i]
	}
	var err error
	for _, want := range trigger.InTurn(&r.writes, images, func(i *v1alpha1.PlannedImage) (namespace, name string) { return i.Namespace, i.Name }) {
		if err == nil {
			err = pass.reconcileImage(ctx, want)
		}
		switch {
		case errors.Is(err, errStalePlan):
			return ctrl.Result{}, err
		case err != nil:
			pass.keepReport(want, plan.ClassifyRefusal(want, err).Report)
		}
	}
	r.Results.SetItems(pass.reports)
	pass.requeueWithin(r.writes.RequeueAfter)
	if err = errors.Join(err, r.writes.Err); err != nil && pass.requeueAfter > 0 {
		r.triggers.EnqueueAfter(r.request(), pass.requeueAfter) // the backoff of the error may be longer
	}
	return ctrl.Result{RequeueAfter: pass.requeueAfter}, err
}

// recordConflict counts the conflicts of an image in a row. It returns the delay of the next try; 0 where
// there were too many, so that err is an error as any other.
func (r *Reconciler) recordConflict(key plan.Key, err error) time.Duration {
	return r.conflicts.Record(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: key.Namespace, Name: key.Name}}, err, false)
}

func (r *Reconciler) allowedNamespaces() policy.Namespaces {
	if current := r.Policy.Current(); current != nil {
		return current.AllowedNamespaces
	}
	return nil
}

// readPlan returns the plan, nil for none, and whether it applies. live: it reads past every cache.
func (r *Reconciler) readPlan(ctx context.Context, live bool, options ...client.GetOption) (*v1alpha1.ClusterPlan, plan.Verdict, error) {
	plans, ledgers := client.Reader(r.Mailbox), client.Reader(r.Client)
	if live {
		plans, ledgers = r.Live, r.Live
	}
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

// updateNamedImages stores which images the plan names, and forgets what is known of others.
func (r *Reconciler) updateNamedImages(p *v1alpha1.ClusterPlanSpec) {
	roles := make(map[plan.Key]imageRole, len(p.Images)+len(p.Prunes))
	for i := range p.Images {
		roles[plan.KeyForImage(&p.Images[i])] |= rolePlanned
	}
	for i := range p.Prunes {
		roles[plan.KeyForPrune(&p.Prunes[i])] |= rolePruned
	}
	if former := r.namedImages.Swap(&roles); former != nil {
		for key := range *former {
			if roles[key]&rolePlanned == 0 {
				r.recordConflict(key, nil)
			}
		}
	}
	isUnplanned := func(key plan.Key) bool { return roles[key]&rolePlanned == 0 }
	maps.DeleteFunc(r.backoffs, func(key plan.Key, _ itemBackoff) bool { return isUnplanned(key) })
	maps.DeleteFunc(r.applied, func(key plan.Key, _ plan.AppliedState) bool { return isUnplanned(key) })
}
