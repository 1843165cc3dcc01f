// Package ledger admits images: it gives the slots of the SyncLedger to the images at the
// head of the queue, creates their DataVolumes, and frees the slots again. Package
// agent/ledger decides what is written.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/events"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/clock"
	policycontroller "github.com/pelotech/ot-fleet/agent/controllers/policy"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=transfergrants,verbs=get;list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// conflictRetryDelay is the requeue delay after a write conflict.
	conflictRetryDelay = 20 * time.Millisecond
	// admissionRetryDelay is the wait before a DataVolume that the admission policy has
	// refused is created again: the policy reads the ledger from a cache. It grows with the
	// age of the refusal to maxAdmissionRetryDelay.
	admissionRetryDelay    = 15 * time.Millisecond
	maxAdmissionRetryDelay = time.Second
	// maxKeepOrderFor is how long a DataVolume that cannot be created keeps the later ones of its namespace
	// waiting. An API server that has restarted refuses all for half a minute, until it knows the kinds
	// that admission policies read.
	maxKeepOrderFor = time.Minute
	// maxClaimRetryDelay is the longest wait before rereading a slot whose only leftovers are claims made by CDI.
	maxClaimRetryDelay = 10 * time.Second
)

// Reconciler writes the SyncLedger and acts on it.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live    client.Reader
	Events  events.EventRecorder
	Queue   *ledger.Queue
	Kinds   *apidiscovery.KindTracker
	Metrics *metrics.Metrics
	// Policy reads the policy; PolicyInForce is the one of the last write of the ledger.
	Policy        *policycontroller.Reader
	PolicyInForce *policycontroller.InForce
	// Mailbox reads ClusterPlan and TransferGrant, and may lag behind.
	Mailbox cache.Cache
	// Grants tracks what this process has requested of the hub, and what it was granted.
	Grants *grant.RequestTracker
	// Now is the time by which windows are open, and slots start.
	Now func() time.Time
	// Elapsed is how long this process has been running.
	Elapsed func() time.Duration
	// Ages of the slots.
	Ages *clock.AgeTracker
	// Cluster is the one that a grant must be made for.
	Cluster *apidiscovery.ClusterIdentity
	// LacksCapacity is asked about an image at the head of the queue. One that lacks
	// capacity is passed over, and leaves the queue by itself.
	LacksCapacity func(ctx context.Context, img *v1alpha1.VMDiskImage) (bool, error)

	// EnqueueReport requeues the report: the demand has changed.
	EnqueueReport func()
	// EnqueuePlan requeues the plan: the namespaces that it may use have changed.
	EnqueuePlan func()
	// EnqueueImages requeues images.
	EnqueueImages func(images ...v1alpha1.ImageKey)
	// EnqueueUnready requeues all images that wait in the queue or for a snapshot, and
	// some others.
	EnqueueUnready func(ctx context.Context, others ...v1alpha1.ImageKey)

	// HubCondition is the condition of the connection in pull mode; nil for none.
	HubCondition func() *metav1.Condition
	// MissingRights lists the rights that the agent lacks; empty for none.
	MissingRights func() string
	// AccountGuardCondition: does the API server refuse what the agent never writes?
	AccountGuardCondition func() metav1.Condition
	// ImportGuardCondition: does the API server refuse imports without a slot?
	ImportGuardCondition func() metav1.Condition
	// OneDownloadCondition: is an attempt one download?
	OneDownloadCondition func() metav1.Condition

	// Namespace of the agent, and of the SyncLedger.
	Namespace string

	triggers trigger.Source[reconcile.Request]
	// grantServed: TransferGrants are served and watched.
	grantServed atomic.Bool
	// lastLedger is the ledger as this process has last read or written it.
	lastLedger atomic.Pointer[v1alpha1.SyncLedger]
	problems   creationProblems
	// The fields below belong to Reconcile, which runs one at a time.

	// createdAt is when this process created a DataVolume that the cache does not show yet.
	createdAt map[string]time.Time
	// unlistedSince is since when a DataVolume has been refused as one without a slot.
	unlistedSince map[string]time.Time
	// claimsSince is since when only claims of CDI's own are left of a slot's attempt.
	claimsSince map[string]time.Time
	// endedSince is since when this process has seen slots as ended.
	endedSince map[string]time.Time
	// creations and deletions of DataVolumes that failed.
	creations, deletions trigger.NamespaceBackoff
	// queueSources are the groups of sources that the queue knows.
	queueSources policy.Sources
}

// Reconcile takes the ledger one step further, and more steps while no event would bring
// them.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if !r.Kinds.Discovered() {
		return ctrl.Result{RequeueAfter: admissionRetryDelay}, nil
	}
	// Invariant: unfinished DataVolumes are listed before the ledger is read. A slot is
	// written before its DataVolume is created, so the ledger lists all of them.
	unfinished, err := r.listUnfinishedCached(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	syncLedger, err := r.currentLedger(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	policyState, err := r.Policy.Read(ctx, syncLedger)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.updateQueue(policyState.Policy)
	if err := r.observeGrant(ctx, policyState.Policy); err != nil {
		return ctrl.Result{}, err
	}
	r.creations.KeepOrderFor = keepOrderFor(policyState.Policy)
	r.creations.StartReconcile(time.Now())
	r.deletions.StartReconcile(time.Now())
	for {
		policyState = policyState.InForceAt(r.Now())
		limits := r.computeLimits(syncLedger, policyState.Policy)
		view, found, err := r.gather(ctx, syncLedger, limits, unfinished)
		if err != nil {
			return ctrl.Result{}, err
		}
		decision := ledger.Decide(view)
		leftovers, recheckAfter := view.FindLeftovers(decision.Slots)
		held, recheckHeldAfter := view.FindHeld(decision.Slots)
		err = r.writeLedger(ctx, syncLedger, policyState, limits, decision, leftovers, held)
		if errors.Is(err, errLimitsChanged) {
			continue
		}
		if err != nil {
			r.lastLedger.Store(nil)
			return trigger.Result(ctx, err, conflictRetryDelay, apierrors.IsConflict)
		}
		r.publishDecision(ctx, policyState, limits, decision)
		r.Metrics.SetLeftovers(len(leftovers))
		requeueAfter, err := r.applyDecision(ctx, decision, found)
		if err != nil {
			return ctrl.Result{}, err
		}
		if !needsAnotherStep(view, decision) {
			return r.endReconcile(trigger.Earliest(requeueAfter, r.untilGrantExpiry(limits), r.untilNextEdge(policyState.Window), recheckAfter, recheckHeldAfter))
		}
		// The response to the write is the ledger that the next step starts from: waiting
		// for its event would leave the slot idle.
		unfinished = slices.DeleteFunc(unfinished, func(dv cdiv1.DataVolume) bool {
			return slices.ContainsFunc(decision.Freed, func(slot v1alpha1.Slot) bool {
				return ledger.DataVolumeKey(slot) == dv.Namespace+"/"+dv.Name
			})
		})
	}
}

// keepOrderFor leaves the later DataVolumes of a namespace most of attemptTimeout: the wait is a part of it, and
// an attempt ends by it that was never tried.
func keepOrderFor(p *policy.Policy) time.Duration {
	if p == nil {
		return maxKeepOrderFor
	}
	return min(maxKeepOrderFor, p.AttemptTimeout/4)
}

// endReconcile fails where DataVolumes could not be created or deleted.
func (r *Reconciler) endReconcile(requeueAfter time.Duration) (ctrl.Result, error) {
	requeueAfter = trigger.Earliest(requeueAfter, r.creations.RequeueAfter, r.deletions.RequeueAfter)
	failed := errors.Join(r.creations.Err, r.deletions.Err)
	if failed == nil {
		return ctrl.Result{RequeueAfter: requeueAfter}, nil
	}
	if requeueAfter > 0 {
		r.triggers.EnqueueAfter(r.request(), requeueAfter) // the backoff of the error may be longer
	}
	return ctrl.Result{}, failed
}

// needsAnotherStep: a slot was marked as ended and can be freed, or was freed and can go to
// the image that held it, which is no candidate before.
func needsAnotherStep(v ledger.View, d ledger.Decision) bool {
	return len(d.Freed) > 0 || v.Ledger != nil && slices.ContainsFunc(v.Ledger.Slots, func(slot v1alpha1.Slot) bool {
		return !slot.Ended && v.Facts[ledger.DataVolumeKey(slot)].CanFreeSlot()
	})
}

// currentLedger returns the ledger as this process has last read or written it, unless the
// cache shows a newer one. An older ledger is as good as one that is read now: the facts
// are read after it, and a write that is based on an old one is refused.
func (r *Reconciler) currentLedger(ctx context.Context) (*v1alpha1.SyncLedger, error) {
	if last := r.lastLedger.Load(); last != nil {
		cached := &v1alpha1.SyncLedger{}
		if err := r.Get(ctx, client.ObjectKeyFromObject(last), cached); err == nil && cached.UID == last.UID {
			if order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, last.ResourceVersion); err == nil && order <= 0 {
				return last.DeepCopy(), nil
			}
		}
	}
	return r.readLedger(ctx)
}

// isLastVersion: this process has last read or written the ledger at this version.
func (r *Reconciler) isLastVersion(resourceVersion string) bool {
	last := r.lastLedger.Load()
	return last != nil && last.ResourceVersion == resourceVersion
}

// readLedger reads the ledger live, and creates it if there is none.
func (r *Reconciler) readLedger(ctx context.Context) (*v1alpha1.SyncLedger, error) {
	ledger := &v1alpha1.SyncLedger{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: v1alpha1.LedgerName}}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(ledger), ledger)
	if apierrors.IsNotFound(err) {
		if err := r.Create(ctx, ledger); err != nil {
			return nil, fmt.Errorf("creating SyncLedger %s/%s: %w", r.Namespace, v1alpha1.LedgerName, err)
		}
		return ledger, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading SyncLedger %s/%s: %w", r.Namespace, v1alpha1.LedgerName, err)
	}
	return ledger, nil
}
