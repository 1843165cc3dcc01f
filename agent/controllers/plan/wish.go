package plan

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Wish tells what the plan in force says about the stay of an image. While a plan
// is refused nobody knows what the one in force says: then any image may be
// wanted, none is retired, and no prune goes on. Where the kind is not served
// nothing is planned.
func (r *Reconciler) Wish(ctx context.Context, img types.NamespacedName, live bool) (image.PlannedState, error) {
	plans, ledgers := client.Reader(r.Mailbox), client.Reader(r.Client)
	switch {
	case live:
		plans, ledgers = r.Live, r.Live
	case !r.served.Load():
		return image.PlannedState{}, nil
	}
	// It is asked for every image, whenever one is looked at: plan and ledger are not
	// copied for each.
	p, verdict, err := r.readPlan(ctx, plans, ledgers, client.UnsafeDisableDeepCopy)
	if meta.IsNoMatchError(err) {
		return image.PlannedState{}, nil
	}
	if err != nil || p == nil {
		return image.PlannedState{}, err
	}
	if !verdict.Accepted {
		return image.PlannedState{Keep: true, Unknown: true}, nil
	}
	return r.wishes.forPlan(p)[plan.Key{Namespace: img.Namespace, Name: img.Name}], nil
}

// wishCache are those of the plan that was read last, so that none is gone through for
// each image.
type wishCache struct {
	mu              sync.Mutex
	planID          planIdentity
	resourceVersion string // the resourceVersion that it had
	wishes          plan.Wishes
}

func (w *wishCache) forPlan(p *v1alpha1.ClusterPlan) plan.Wishes {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := (planIdentity{p.UID, p.Spec.PlanVersion}); w.wishes == nil || w.planID != now || w.resourceVersion != p.ResourceVersion {
		w.planID, w.resourceVersion, w.wishes = now, p.ResourceVersion, plan.WishesOf(&p.Spec)
	}
	return w.wishes
}

// enqueueAffectedImages has those images looked at that a plan has come to retire or prune,
// and those that the one before pruned: that it does, or does no more, is no event of
// theirs. All of them each time, for one that was looked at while the plan was refused
// has learnt nothing. p is what the cache shows, as to Wish; nil for no plan.
func (r *Reconciler) enqueueAffectedImages(ctx context.Context, p *v1alpha1.ClusterPlan) error {
	var (
		now    planIdentity
		spec   v1alpha1.ClusterPlanSpec
		prunes = map[plan.Key]bool{}
	)
	if p != nil {
		now, spec = planIdentity{p.UID, p.Spec.PlanVersion}, p.Spec
	}
	if r.notifiedPlan == now && p != nil {
		return nil
	}
	for i := range spec.Retired {
		key := plan.Key{Namespace: spec.Retired[i].Namespace, Name: spec.Retired[i].Name}
		if err := r.enqueueImage(ctx, key, image.IsPlanned); err != nil {
			return err
		}
	}
	for i := range spec.Prunes {
		prunes[plan.KeyForPrune(&spec.Prunes[i])] = true
	}
	for _, keys := range []map[plan.Key]bool{prunes, r.prunedImages} {
		for key := range keys {
			if err := r.enqueueImage(ctx, key, nil); err != nil {
				return err
			}
		}
	}
	r.notifiedPlan, r.prunedImages = now, prunes
	return nil
}

// enqueueImage has an image looked at, if there is one of that name, and one that only
// takes.
func (r *Reconciler) enqueueImage(ctx context.Context, key plan.Key, only func(*v1alpha1.VMDiskImage) bool) error {
	img := &v1alpha1.VMDiskImage{}
	err := r.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, img, client.UnsafeDisableDeepCopy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return err
	case err == nil && (only == nil || only(img)):
		r.EnqueueImage(image.KeyOf(img))
	}
	return nil
}

// planIdentity names a plan whose images have been told of.
type planIdentity struct {
	uid     types.UID
	version v1alpha1.PlanVersion
}
