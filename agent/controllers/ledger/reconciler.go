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

	"github.com/pelotech/ot-fleet/agent/clock"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/identity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kinds"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/queue"
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
	Index   *queue.Index
	Kinds   *kinds.Served
	Metrics *metrics.Metrics
	Policy  *Policy
	// Mailbox reads the ClusterPlan and the TransferGrant; it may show older ones.
	Mailbox cache.Cache
	// Grants is what the hub was asked for, and what it gave.
	Grants *grant.Book
	// Elapsed is how long this process has been running.
	Elapsed func() time.Duration
	// Ages of the slots.
	Ages *clock.Ages
	// PokeReport has the report looked at: something else is wanted of the hub.
	PokeReport func()
	// Refresh has images looked at again.
	Refresh func(ctx context.Context, images ...v1alpha1.ImageKey)
	// Cluster tells which cluster a plan must be for.
	Cluster *identity.Cluster
	// Lacks tells whether an image at the head of the queue lacks room by now: it is
	// passed then, and leaves the queue by itself.
	Lacks func(ctx context.Context, img *v1alpha1.VMDiskImage) (bool, error)
	// RefreshUnready has all images looked at again that wait in the queue or for a
	// snapshot, and some others.
	RefreshUnready func(ctx context.Context, others ...v1alpha1.ImageKey)

	// Hub tells how the agent that dials in is connected; nil for nothing to tell.
	Hub func() *metav1.Condition
	// Lacking tells which rights the agent lacks; nothing where none is known to.
	Lacking func() string
	// Guarded tells whether the API server refuses imports that are in no slot.
	Guarded func() metav1.Condition
	// OneDownload tells whether an attempt costs one download.
	OneDownload func() metav1.Condition

	// Namespace of the agent, and of the SyncLedger.
	Namespace string
	// PolicyKey is the policy ConfigMap.
	PolicyKey types.NamespacedName

	pokes chan event.GenericEvent
	// created is when this process created a DataVolume that the cache has not
	// shown yet. Only Reconcile touches it, one at a time.
	created map[string]time.Time
	// last is the ledger as it was last read or written here.
	last atomic.Pointer[v1alpha1.SyncLedger]
	// planServed: the kind is, and no event of it can be missed; grantServed, too.
	planServed, grantServed atomic.Bool
	// own is the last valid policy ConfigMap that was read here, and settled the
	// plan that was last found live not to be gone by. Only Reconcile touches them.
	own     ownPolicy
	settled settledPlan
	// sources are those that the queue is divided by.
	sources policy.Sources
}

// Reconcile takes the ledger one step further.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if !r.Kinds.Known() {
		return ctrl.Result{RequeueAfter: refusedDelay}, nil
	}
	unfinished, err := r.unfinishedCached(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	ledger, err := r.knownLedger(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	policy, err := r.readPolicies(ctx, ledger)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.divide(policy.policy)
	if err := r.readGrant(ctx, grant.TermsOf(policy.policy)); err != nil {
		return ctrl.Result{}, err
	}
	for {
		policy.limited = r.limit(ledger, policy.policy)
		view, found, err := r.gather(ctx, ledger, policy.limited, unfinished)
		if err != nil {
			return ctrl.Result{}, err
		}
		step := queue.Next(view)
		err = r.write(ctx, ledger, &policy, step)
		if errors.Is(err, errEnded) {
			continue
		}
		if err != nil {
			r.last.Store(nil)
			if apierrors.IsConflict(err) {
				return ctrl.Result{RequeueAfter: conflictDelay}, nil
			}
			return ctrl.Result{}, err
		}
		r.tell(ctx, policy, step)
		result, err := r.act(ctx, step, found)
		if err != nil || !goesOn(view, step) {
			return r.lookAgain(result, policy.limited), err
		}
		// The answer to the write is the ledger as a live read would show it, and
		// the facts are read anew: waiting for the event of the write would only
		// leave the slot idle.
		unfinished = slices.DeleteFunc(unfinished, func(dv cdiv1.DataVolume) bool {
			return slices.ContainsFunc(step.Released, func(slot v1alpha1.Slot) bool {
				return queue.DataVolumeKey(slot) == dv.Namespace+"/"+dv.Name
			})
		})
	}
}

// goesOn tells whether a further step is due that no event would bring: a slot
// was marked as ended and can be freed now, or was freed and can go to the image
// that had it, which is no candidate while it does.
func goesOn(v queue.View, step queue.Step) bool {
	return len(step.Released) > 0 || v.Ledger != nil && slices.ContainsFunc(v.Ledger.Slots, func(slot v1alpha1.Slot) bool {
		return !slot.Ended && v.Facts[queue.DataVolumeKey(slot)].Free()
	})
}

// conflictDelay is the wait before a write that met another one is worked out
// anew.
const conflictDelay = 20 * time.Millisecond

// knownLedger is the ledger as this process has last read or written it, unless
// the cache shows a newer one. What was read earlier is as good as what is read
// now: the facts are read after it, and a write that is worked out from an old
// one is refused.
func (r *Reconciler) knownLedger(ctx context.Context) (*v1alpha1.SyncLedger, error) {
	if last := r.last.Load(); last != nil {
		cached := &v1alpha1.SyncLedger{}
		if err := r.Get(ctx, client.ObjectKeyFromObject(last), cached); err == nil && cached.UID == last.UID {
			if order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, last.ResourceVersion); err == nil && order <= 0 {
				return last.DeepCopy(), nil
			}
		}
	}
	return r.readLedger(ctx)
}

// knows tells whether a version of the ledger is the one that was last read or
// written here.
func (r *Reconciler) knows(version string) bool {
	last := r.last.Load()
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

// write stores a step, against the resourceVersion that it was worked out from.
func (r *Reconciler) write(ctx context.Context, ledger *v1alpha1.SyncLedger, p *reading, step queue.Step) error {
	next := v1alpha1.SyncLedgerStatus{}
	if ledger.Status != nil {
		ledger.Status.DeepCopyInto(&next)
	}
	next.Budget, next.Slots = step.Budget, step.Slots
	next.Grant = grant.Taken(p.terms, r.Grants.Boot(), p.share)
	p.wanted = grant.Demands(p.terms, step.Slots, p.groupOf, r.front(p.terms, step.Slots)).Wanted
	p.describe(&next, ledger.Generation)
	r.describeHub(&next, ledger.Generation)
	r.describeRights(&next, ledger.Generation)
	describeLooks(&next, ledger.Generation, r.Guarded(), r.OneDownload())
	if ledger.Status != nil && !step.Changed && equality.Semantic.DeepEqual(*ledger.Status, next) {
		r.last.Store(ledger.DeepCopy())
		return nil
	}
	if !r.holds(p.limited) {
		return errEnded
	}
	ledger.Status = &next
	if err := r.Status().Update(ctx, ledger); err != nil {
		return fmt.Errorf("storing %d slots under a budget of %d in SyncLedger %s/%s: %w", len(step.Slots), step.Budget, r.Namespace, v1alpha1.LedgerName, err)
	}
	r.last.Store(ledger.DeepCopy())
	return nil
}

// tell lets everyone know what a stored step changed.
func (r *Reconciler) tell(ctx context.Context, p reading, step queue.Step) {
	r.Metrics.Ledger(len(step.Slots), step.Budget)
	r.Metrics.Policy(p.accepted, p.invalidKeys())
	r.Metrics.Plan(p.plan.accepted != nil)
	r.Metrics.Conditions(r.last.Load().Status.Conditions)
	for _, slot := range step.Released {
		delete(r.created, queue.DataVolumeKey(slot))
	}
	for _, slot := range step.Admitted {
		if item, queued := r.Index.Get(slot.Image.UID); queued && slot.Attempt == 1 {
			r.Metrics.Admitted(slot.StartedAt.Sub(item.Key.Time.Time))
		}
	}
	began := make(map[string]time.Time, len(step.Slots))
	for _, slot := range step.Slots {
		began[queue.DataVolumeKey(slot)] = slot.StartedAt.Time
	}
	r.Ages.Keep(began)
	r.Index.SetMaxPriority(p.maxPriority())
	r.ask(ctx, p.limited, step.Slots)
	if r.Policy.set(p.policy) {
		holders := make([]v1alpha1.ImageKey, len(step.Slots))
		for i, slot := range step.Slots {
			holders[i] = slot.Image
		}
		r.RefreshUnready(ctx, holders...)
	}
}

// act carries out what the stored ledger asks for: DataVolumes are removed
// first, for what has failed downloads again, then they are created in the
// order of the queue.
func (r *Reconciler) act(ctx context.Context, step queue.Step, found findings) (ctrl.Result, error) {
	if err := r.remove(ctx, found); err != nil {
		return ctrl.Result{}, err
	}
	result := ctrl.Result{RequeueAfter: found.wait}
	again := func(d time.Duration) {
		if result.RequeueAfter == 0 || d < result.RequeueAfter {
			result.RequeueAfter = d
		}
	}
	admitted := map[string]bool{}
	for _, slot := range step.Admitted {
		admitted[queue.DataVolumeKey(slot)] = true
	}
	for _, slot := range step.Slots {
		key := queue.DataVolumeKey(slot)
		img := found.images[slot.Image.UID]
		f, looked := found.facts[key]
		if !admitted[key] && (!looked || !queue.ShouldCreate(slot, f)) {
			continue
		}
		if img == nil || img.Spec.Revision() != slot.Revision {
			continue // changed since: the image ends the attempt
		}
		if late := r.tooLate(slot); late != nil {
			if err := r.storeRefusal(ctx, slot, *late); err != nil {
				return ctrl.Result{}, err
			}
			continue
		}
		retry, err := r.createDataVolume(ctx, img, slot)
		if err != nil {
			return ctrl.Result{}, err
		}
		if retry {
			again(refusedDelay)
			break // those behind it are not to start before it
		}
	}
	if len(step.Adopted) > 0 {
		again(conflictDelay) // the budget is to be lowered
	}
	return result, nil
}

// tooLate tells that a slot is older than an attempt may be: its DataVolume is not
// begun any more, whatever kept it. The hub, which counts on that, may have given what
// this member was granted to another.
func (r *Reconciler) tooLate(slot v1alpha1.Slot) *v1alpha1.Failure {
	p := r.Policy.Current()
	if p == nil || r.Ages.Of(queue.DataVolumeKey(slot), slot.StartedAt.Time) < p.AttemptTimeout {
		return nil
	}
	return &v1alpha1.Failure{Reason: v1alpha1.ReasonTimeout, Message: fmt.Sprintf("its DataVolume was not made within attemptTimeout, %s", p.AttemptTimeout)}
}

// refusedDelay is the wait before a DataVolume is created again that the
// admission policy refused: its view of the ledger comes from a cache.
const refusedDelay = 15 * time.Millisecond

// createDataVolume creates a slot's DataVolume. It tells whether to try again.
func (r *Reconciler) createDataVolume(ctx context.Context, img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) (retry bool, err error) {
	dv := image.NewDataVolume(img, slot)
	err = r.Create(ctx, dv)
	switch {
	case err == nil:
		r.created[queue.DataVolumeKey(slot)] = time.Now()
		r.Events.Eventf(img, dv, corev1.EventTypeNormal, "Admitted", "Import", "got slot for attempt %d, DataVolume %s", slot.Attempt, slot.DataVolume)
		return false, nil
	case apierrors.IsAlreadyExists(err):
		return r.checkExisting(ctx, slot)
	case refusedAsUnlisted(err):
		r.last.Store(nil) // or the ledger is another than this process knows
		return true, nil
	case refusedForGood(err):
		return false, r.storeRefusal(ctx, slot, refusalFailure(err))
	default:
		return false, fmt.Errorf("creating DataVolume %s of image %s: %w", queue.DataVolumeKey(slot), slot.Image.Name, err)
	}
}

// checkExisting looks at the DataVolume that has the name of a slot's already: it
// was created by an earlier leader, or by a write whose answer was lost. One
// that somebody else has made fails the attempt, or it would hold its slot for
// ever.
func (r *Reconciler) checkExisting(ctx context.Context, slot v1alpha1.Slot) (retry bool, err error) {
	dv := &cdiv1.DataVolume{}
	key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.DataVolume}
	if err := r.Live.Get(ctx, key, dv); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("reading DataVolume %s: %w", key, err)
	}
	if dv.Labels[v1alpha1.LabelImageUID] == string(slot.Image.UID) {
		r.created[queue.DataVolumeKey(slot)] = time.Now()
		return false, nil
	}
	return false, r.storeRefusal(ctx, slot, refusalFailure(fmt.Errorf("DataVolume %s exists and is not the agent's: delete it", key)))
}

// storeRefusal fails an attempt whose DataVolume the API server does not take, or
// that is not to be begun any more. The image is read again: only what is stored now
// may be built upon.
func (r *Reconciler) storeRefusal(ctx context.Context, slot v1alpha1.Slot, f v1alpha1.Failure) error {
	img := &v1alpha1.VMDiskImage{}
	key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.Image.Name}
	if err := r.Live.Get(ctx, key, img); err != nil {
		return client.IgnoreNotFound(err)
	}
	if img.UID != slot.Image.UID || !image.StoreRefusal(img, slot, f, r.Policy.Current(), metav1.Now()) {
		return nil
	}
	if err := r.Status().Update(ctx, img); err != nil {
		return fmt.Errorf("storing that DataVolume %s is not made (%s), on VMDiskImage %s: %w", slot.DataVolume, f.Message, key, err)
	}
	r.Metrics.Failed(f.Reason, 0)
	r.Events.Eventf(img, nil, corev1.EventTypeWarning, string(f.Reason), "Import", "attempt %d: %s", slot.Attempt, f.Message)
	return nil
}

// remove deletes DataVolumes that nobody may keep: of images that are gone, and
// those that stand in no slot and are not wanted. Whether they stand in none is
// asked once more: another leader may have given one since.
func (r *Reconciler) remove(ctx context.Context, found findings) error {
	if len(found.strays) > 0 {
		ledger, err := r.readLedger(ctx)
		if err != nil {
			return err
		}
		if !r.knows(ledger.ResourceVersion) {
			return nil // the event of that write brings us back
		}
	}
	for _, obj := range found.remove {
		err := r.Delete(ctx, obj, client.Preconditions{UID: uidOf(obj)})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting %T %s/%s, which belongs to no image: %w", obj, obj.GetNamespace(), obj.GetName(), err)
		}
		if err == nil && found.strays[obj.GetUID()] {
			r.Metrics.Stray()
		}
	}
	return nil
}

func uidOf(obj client.Object) *types.UID {
	uid := obj.GetUID()
	return &uid
}
