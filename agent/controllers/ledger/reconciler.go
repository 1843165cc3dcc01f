// Package ledger runs the queue: it gives slots of the SyncLedger to the images
// at its head, creates their DataVolumes, and frees slots again. What it writes
// is worked out by package queue.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/events"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/clock"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/image"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=vmdiskimages/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=syncledgers/status,verbs=update
// +kubebuilder:rbac:groups="",namespace=policy-namespace,resources=configmaps,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterplans;transfergrants,verbs=get;list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler keeps the SyncLedger.
type Reconciler struct {
	client.Client
	// Live reads from the API server, past the cache.
	Live    client.Reader
	Events  events.EventRecorder
	Queue   *ledger.Queue
	Kinds   *apidiscovery.KindTracker
	Metrics *metrics.Metrics
	Policy  *PolicyInForce
	// Mailbox reads the ClusterPlan and the TransferGrant; it may show older ones.
	Mailbox cache.Cache
	// Grants is what the hub was asked for, and what it gave.
	Grants *grant.RequestTracker
	// Elapsed is how long this process has been running.
	Elapsed func() time.Duration
	// Ages of the slots.
	Ages *clock.AgeTracker
	// EnqueueReport has the report looked at: something else is wanted of the hub.
	EnqueueReport func()
	// EnqueueImages has images looked at again.
	EnqueueImages func(ctx context.Context, images ...v1alpha1.ImageKey)
	// Cluster tells which cluster a plan must be for.
	Cluster *apidiscovery.ClusterIdentity
	// LacksCapacity tells whether an image at the head of the queue lacks room by now: it is
	// passed then, and leaves the queue by itself.
	LacksCapacity func(ctx context.Context, img *v1alpha1.VMDiskImage) (bool, error)
	// EnqueueUnready has all images looked at again that wait in the queue or for a
	// snapshot, and some others.
	EnqueueUnready func(ctx context.Context, others ...v1alpha1.ImageKey)

	// HubCondition tells how the agent that dials in is connected; nil for nothing to tell.
	HubCondition func() *metav1.Condition
	// MissingRights tells which rights the agent lacks; nothing where none is known to.
	MissingRights func() string
	// ImportGuardCondition tells whether the API server refuses imports that are in no slot.
	ImportGuardCondition func() metav1.Condition
	// OneDownloadCondition tells whether an attempt costs one download.
	OneDownloadCondition func() metav1.Condition

	// Namespace of the agent, and of the SyncLedger.
	Namespace string
	// PolicyKey is the policy ConfigMap.
	PolicyKey types.NamespacedName

	triggers chan event.GenericEvent
	// createdAt is when this process created a DataVolume that the cache has not
	// shown yet. Only Reconcile touches it, one at a time.
	createdAt map[string]time.Time
	// lastLedger is the ledger as it was last read or written here.
	lastLedger atomic.Pointer[v1alpha1.SyncLedger]
	// planServed: the kind is, and no event of it can be missed; grantServed, too.
	planServed, grantServed atomic.Bool
	// lastOwnPolicy is the last valid policy ConfigMap that was read here, and settled the
	// plan that was last found live not to be gone by. Only Reconcile touches them.
	lastOwnPolicy    ownPolicy
	confirmedRefusal confirmedRefusal
	// queueSources are those that the queue is divided by.
	queueSources policy.Sources
}

// Reconcile takes the ledger one step further.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if !r.Kinds.Discovered() {
		return ctrl.Result{RequeueAfter: admissionRetryDelay}, nil
	}
	unfinished, err := r.listUnfinishedCached(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	syncLedger, err := r.currentLedger(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	policy, err := r.readPolicies(ctx, syncLedger)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.updateSourceGroups(policy.policy)
	if err := r.observeGrant(ctx, grant.TermsFromPolicy(policy.policy)); err != nil {
		return ctrl.Result{}, err
	}
	for {
		policy.stepLimits = r.computeLimits(syncLedger, policy.policy)
		view, found, err := r.gather(ctx, syncLedger, policy.stepLimits, unfinished)
		if err != nil {
			return ctrl.Result{}, err
		}
		step := ledger.Decide(view)
		err = r.writeLedger(ctx, syncLedger, &policy, step)
		if errors.Is(err, errGrantExpired) {
			continue
		}
		if err != nil {
			r.lastLedger.Store(nil)
			if apierrors.IsConflict(err) {
				return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
			}
			return ctrl.Result{}, err
		}
		r.publishStep(ctx, policy, step)
		result, err := r.applyStep(ctx, step, found)
		if err != nil || !needsAnotherStep(view, step) {
			return r.requeueAtGrantExpiry(result, policy.stepLimits), err
		}
		// The answer to the write is the ledger as a live read would show it, and
		// the facts are read anew: waiting for the event of the write would only
		// leave the slot idle.
		unfinished = slices.DeleteFunc(unfinished, func(dv cdiv1.DataVolume) bool {
			return slices.ContainsFunc(step.Freed, func(slot v1alpha1.Slot) bool {
				return ledger.DataVolumeKey(slot) == dv.Namespace+"/"+dv.Name
			})
		})
	}
}

// needsAnotherStep tells whether a further step is due that no event would bring: a slot
// was marked as ended and can be freed now, or was freed and can go to the image
// that had it, which is no candidate while it does.
func needsAnotherStep(v ledger.View, step ledger.Decision) bool {
	return len(step.Freed) > 0 || v.Ledger != nil && slices.ContainsFunc(v.Ledger.Slots, func(slot v1alpha1.Slot) bool {
		return !slot.Ended && v.Facts[ledger.DataVolumeKey(slot)].CanFreeSlot()
	})
}

// conflictRetryDelay is the wait before a write that met another one is worked out
// anew.
const conflictRetryDelay = 20 * time.Millisecond

// currentLedger is the ledger as this process has last read or written it, unless
// the cache shows a newer one. What was read earlier is as good as what is read
// now: the facts are read after it, and a write that is worked out from an old
// one is refused.
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

// isLastVersion tells whether a version of the ledger is the one that was last read or
// written here.
func (r *Reconciler) isLastVersion(version string) bool {
	last := r.lastLedger.Load()
	return last != nil && last.ResourceVersion == version
}

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

// writeLedger stores a step, against the resourceVersion that it was worked out from.
func (r *Reconciler) writeLedger(ctx context.Context, ledger *v1alpha1.SyncLedger, p *policyState, step ledger.Decision) error {
	next := v1alpha1.SyncLedgerStatus{}
	if ledger.Status != nil {
		ledger.Status.DeepCopyInto(&next)
	}
	next.Budget, next.Slots = step.Budget, step.Slots
	next.Grant = grant.NewTakenGrant(p.terms, r.Grants.BootID(), p.share)
	p.wanted = grant.ComputeDemand(p.terms, step.Slots, p.sourceGroupOf, r.queueFront(p.terms, step.Slots)).Wanted
	p.writeStatus(&next, ledger.Generation)
	r.setHubCondition(&next, ledger.Generation)
	r.setRightsCondition(&next, ledger.Generation)
	setConditions(&next, ledger.Generation, r.ImportGuardCondition(), r.OneDownloadCondition())
	if ledger.Status != nil && !step.Changed && equality.Semantic.DeepEqual(*ledger.Status, next) {
		r.lastLedger.Store(ledger.DeepCopy())
		return nil
	}
	if !r.limitsStillHold(p.stepLimits) {
		return errGrantExpired
	}
	ledger.Status = &next
	if err := r.Status().Update(ctx, ledger); err != nil {
		return fmt.Errorf("storing %d slots under a budget of %d in SyncLedger %s/%s: %w", len(step.Slots), step.Budget, r.Namespace, v1alpha1.LedgerName, err)
	}
	r.lastLedger.Store(ledger.DeepCopy())
	return nil
}

// publishStep lets everyone know what a stored step changed.
func (r *Reconciler) publishStep(ctx context.Context, p policyState, step ledger.Decision) {
	r.Metrics.SetSlots(len(step.Slots), step.Budget)
	r.Metrics.SetPolicy(p.accepted, p.invalidKeys())
	r.Metrics.SetPlanAccepted(p.plan.acceptedPlan != nil)
	r.Metrics.SetConditions(r.lastLedger.Load().Status.Conditions)
	for _, slot := range step.Freed {
		delete(r.createdAt, ledger.DataVolumeKey(slot))
	}
	for _, slot := range step.Admitted {
		if item, queued := r.Queue.Get(slot.Image.UID); queued && slot.Attempt == 1 {
			r.Metrics.ObserveQueueDuration(slot.StartedAt.Sub(item.Key.Time.Time))
		}
	}
	began := make(map[string]time.Time, len(step.Slots))
	for _, slot := range step.Slots {
		began[ledger.DataVolumeKey(slot)] = slot.StartedAt.Time
	}
	r.Ages.TrackOnly(began)
	r.Queue.SetMaxPriority(p.maxPriority())
	r.publishDemand(ctx, p.stepLimits, step.Slots)
	if r.Policy.replace(p.policy) {
		holders := make([]v1alpha1.ImageKey, len(step.Slots))
		for i, slot := range step.Slots {
			holders[i] = slot.Image
		}
		r.EnqueueUnready(ctx, holders...)
	}
}

// applyStep carries out what the stored ledger asks for: DataVolumes are removed
// first, for what has failed downloads again, then they are created in the
// order of the queue.
func (r *Reconciler) applyStep(ctx context.Context, step ledger.Decision, found gatheredFacts) (ctrl.Result, error) {
	if err := r.deleteUnwanted(ctx, found); err != nil {
		return ctrl.Result{}, err
	}
	result := ctrl.Result{RequeueAfter: found.requeueAfter}
	again := func(d time.Duration) {
		if result.RequeueAfter == 0 || d < result.RequeueAfter {
			result.RequeueAfter = d
		}
	}
	admitted := map[string]bool{}
	for _, slot := range step.Admitted {
		admitted[ledger.DataVolumeKey(slot)] = true
	}
	for _, slot := range step.Slots {
		key := ledger.DataVolumeKey(slot)
		img := found.images[slot.Image.UID]
		f, looked := found.facts[key]
		if !admitted[key] && (!looked || !ledger.ShouldCreateDataVolume(slot, f)) {
			continue
		}
		if img == nil || img.Spec.Revision() != slot.Revision {
			continue // changed since: the image ends the attempt
		}
		if late := r.findAttemptTimeout(slot); late != nil {
			if err := r.failAttempt(ctx, slot, *late); err != nil {
				return ctrl.Result{}, err
			}
			continue
		}
		retry, err := r.createDataVolume(ctx, img, slot)
		if err != nil {
			return ctrl.Result{}, err
		}
		if retry {
			again(admissionRetryDelay)
			break // those behind it are not to start before it
		}
	}
	if len(step.Adopted) > 0 {
		again(conflictRetryDelay) // the budget is to be lowered
	}
	return result, nil
}

// findAttemptTimeout tells that a slot is older than an attempt may be: its DataVolume is not
// begun any more, whatever kept it. The hub, which counts on that, may have given what
// this member was granted to another.
func (r *Reconciler) findAttemptTimeout(slot v1alpha1.Slot) *v1alpha1.Failure {
	p := r.Policy.Current()
	if p == nil || r.Ages.AgeOf(ledger.DataVolumeKey(slot), slot.StartedAt.Time) < p.AttemptTimeout {
		return nil
	}
	return &v1alpha1.Failure{Reason: v1alpha1.ReasonTimeout, Message: fmt.Sprintf("its DataVolume was not made within attemptTimeout, %s", p.AttemptTimeout)}
}

// admissionRetryDelay is the wait before a DataVolume is created again that the
// admission policy refused: its view of the ledger comes from a cache.
const admissionRetryDelay = 15 * time.Millisecond

// createDataVolume creates a slot's DataVolume. It tells whether to try again.
func (r *Reconciler) createDataVolume(ctx context.Context, img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) (retry bool, err error) {
	dv := image.NewDataVolume(img, slot)
	err = r.Create(ctx, dv)
	switch {
	case err == nil:
		r.createdAt[ledger.DataVolumeKey(slot)] = time.Now()
		r.Events.Eventf(img, dv, corev1.EventTypeNormal, "Admitted", "Import", "got slot for attempt %d, DataVolume %s", slot.Attempt, slot.DataVolume)
		return false, nil
	case apierrors.IsAlreadyExists(err):
		return r.checkExistingDataVolume(ctx, slot)
	case admissionpolicy.IsUnlistedRefusal(err):
		r.lastLedger.Store(nil) // or the ledger is another than this process knows
		return true, nil
	case isPermanentRefusal(err):
		return false, r.failAttempt(ctx, slot, newRefusalFailure(err))
	default:
		return false, fmt.Errorf("creating DataVolume %s of image %s: %w", ledger.DataVolumeKey(slot), slot.Image.Name, err)
	}
}

// checkExistingDataVolume looks at the DataVolume that has the name of a slot's already: it
// was created by an earlier leader, or by a write whose answer was lost. One
// that somebody else has made fails the attempt, or it would hold its slot for
// ever.
func (r *Reconciler) checkExistingDataVolume(ctx context.Context, slot v1alpha1.Slot) (retry bool, err error) {
	dv := &cdiv1.DataVolume{}
	key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.DataVolume}
	if err := r.Live.Get(ctx, key, dv); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("reading DataVolume %s: %w", key, err)
	}
	if dv.Labels[v1alpha1.LabelImageUID] == string(slot.Image.UID) {
		r.createdAt[ledger.DataVolumeKey(slot)] = time.Now()
		return false, nil
	}
	return false, r.failAttempt(ctx, slot, newRefusalFailure(fmt.Errorf("DataVolume %s exists and is not the agent's: delete it", key)))
}

// failAttempt fails an attempt whose DataVolume the API server does not take, or
// that is not to be begun any more. The image is read again: only what is stored now
// may be built upon.
func (r *Reconciler) failAttempt(ctx context.Context, slot v1alpha1.Slot, f v1alpha1.Failure) error {
	img := &v1alpha1.VMDiskImage{}
	key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.Image.Name}
	if err := r.Live.Get(ctx, key, img); err != nil {
		return client.IgnoreNotFound(err)
	}
	if img.UID != slot.Image.UID || !image.RecordRefusal(img, slot, f, r.Policy.Current(), metav1.Now()) {
		return nil
	}
	if err := r.Status().Update(ctx, img); err != nil {
		return fmt.Errorf("storing that DataVolume %s is not made (%s), on VMDiskImage %s: %w", slot.DataVolume, f.Message, key, err)
	}
	r.Metrics.RecordFailure(f.Reason, 0)
	r.Events.Eventf(img, nil, corev1.EventTypeWarning, string(f.Reason), "Import", "attempt %d: %s", slot.Attempt, f.Message)
	return nil
}

// deleteUnwanted deletes DataVolumes that nobody may keep: of images that are gone, and
// those that stand in no slot and are not wanted. Whether they stand in none is
// asked once more: another leader may have given one since.
func (r *Reconciler) deleteUnwanted(ctx context.Context, found gatheredFacts) error {
	if len(found.strays) > 0 {
		ledger, err := r.readLedger(ctx)
		if err != nil {
			return err
		}
		if !r.isLastVersion(ledger.ResourceVersion) {
			return nil // the event of that write brings us back
		}
	}
	for _, obj := range found.toDelete {
		err := r.Delete(ctx, obj, client.Preconditions{UID: uidPointer(obj)})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting %T %s/%s, which belongs to no image: %w", obj, obj.GetNamespace(), obj.GetName(), err)
		}
		if err == nil && found.strays[obj.GetUID()] {
			r.Metrics.CountStrayDataVolume()
		}
	}
	return nil
}

func uidPointer(obj client.Object) *types.UID {
	uid := obj.GetUID()
	return &uid
}
