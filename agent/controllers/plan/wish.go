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
func (r *Reconciler) Wish(ctx context.Context, img types.NamespacedName, live bool) (image.Wish, error) {
	plans, ledgers := client.Reader(r.Mailbox), client.Reader(r.Client)
	switch {
	case live:
		plans, ledgers = r.Live, r.Live
	case !r.served.Load():
		return image.Wish{}, nil
	}
	// It is asked for every image, whenever one is looked at: plan and ledger are not
	// copied for each.
	p, verdict, err := r.read(ctx, plans, ledgers, client.UnsafeDisableDeepCopy)
	if meta.IsNoMatchError(err) {
		return image.Wish{}, nil
	}
	if err != nil || p == nil {
		return image.Wish{}, err
	}
	if !verdict.Accepted {
		return image.Wish{Stays: true, Unknown: true}, nil
	}
	return r.wishes.of(p)[plan.Key{Namespace: img.Namespace, Name: img.Name}], nil
}

// wishes are those of the plan that was read last, so that none is gone through for
// each image.
type wishes struct {
	mu    sync.Mutex
	plan  told
	stood string // the resourceVersion that it had
	known plan.Wishes
}

func (w *wishes) of(p *v1alpha1.ClusterPlan) plan.Wishes {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := (told{p.UID, p.Spec.PlanVersion}); w.known == nil || w.plan != now || w.stood != p.ResourceVersion {
		w.plan, w.stood, w.known = now, p.ResourceVersion, plan.WishesOf(&p.Spec)
	}
	return w.known
}

// tellConcerned has those images looked at that a plan has come to retire or prune,
// and those that the one before pruned: that it does, or does no more, is no event of
// theirs. All of them each time, for one that was looked at while the plan was refused
// has learnt nothing. p is what the cache shows, as to Wish; nil for no plan.
func (r *Reconciler) tellConcerned(ctx context.Context, p *v1alpha1.ClusterPlan) error {
	var (
		now    told
		spec   v1alpha1.ClusterPlanSpec
		prunes = map[plan.Key]bool{}
	)
	if p != nil {
		now, spec = told{p.UID, p.Spec.PlanVersion}, p.Spec
	}
	if r.told == now && p != nil {
		return nil
	}
	for i := range spec.Retired {
		key := plan.Key{Namespace: spec.Retired[i].Namespace, Name: spec.Retired[i].Name}
		if err := r.refresh(ctx, key, image.OfPlan); err != nil {
			return err
		}
	}
	for i := range spec.Prunes {
		prunes[plan.KeyOfPrune(&spec.Prunes[i])] = true
	}
	for _, keys := range []map[plan.Key]bool{prunes, r.pruned} {
		for key := range keys {
			if err := r.refresh(ctx, key, nil); err != nil {
				return err
			}
		}
	}
	r.told, r.pruned = now, prunes
	return nil
}

// refresh has an image looked at, if there is one of that name, and one that only
// takes.
func (r *Reconciler) refresh(ctx context.Context, key plan.Key, only func(*v1alpha1.VMDiskImage) bool) error {
	img := &v1alpha1.VMDiskImage{}
	err := r.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, img, client.UnsafeDisableDeepCopy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return err
	case err == nil && (only == nil || only(img)):
		r.Refresh(image.KeyOf(img))
	}
	return nil
}

// told names a plan whose images have been told of.
type told struct {
	uid     types.UID
	version v1alpha1.PlanVersion
}
