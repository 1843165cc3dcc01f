package plan

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Wish tells what the plan in force says about the stay of an image. While a plan
// is refused nobody knows what the one in force says: then any image may be
// wanted, and none is retired. Where the kind is not served nothing is planned.
func (r *Reconciler) Wish(ctx context.Context, img types.NamespacedName, live bool) (image.Wish, error) {
	plans, ledgers := client.Reader(r.Mailbox), client.Reader(r.Client)
	switch {
	case live:
		plans, ledgers = r.Live, r.Live
	case !r.served.Load():
		return image.Wish{}, nil
	}
	// It is asked for every planned image that nobody holds: a plan is not copied
	// for each.
	p, verdict, err := r.read(ctx, plans, ledgers, client.UnsafeDisableDeepCopy)
	if meta.IsNoMatchError(err) {
		return image.Wish{}, nil
	}
	if err != nil || p == nil {
		return image.Wish{}, err
	}
	if !verdict.Accepted {
		return image.Wish{Stays: true}, nil
	}
	return plan.WishOf(&p.Spec, plan.Key{Namespace: img.Namespace, Name: img.Name}), nil
}

// tellRetired has those images looked at that a plan has come to retire. That it
// has is no event of theirs. p is what the cache shows, as to Wish.
func (r *Reconciler) tellRetired(ctx context.Context, p *v1alpha1.ClusterPlan) error {
	now := told{p.UID, p.Spec.PlanVersion}
	if r.told == now {
		return nil
	}
	for i := range p.Spec.Retired {
		img := &v1alpha1.VMDiskImage{}
		err := r.Get(ctx, types.NamespacedName{Namespace: p.Spec.Retired[i].Namespace, Name: p.Spec.Retired[i].Name}, img)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return err
		case err == nil && image.OfPlan(img):
			r.Refresh(image.KeyOf(img))
		}
	}
	r.told = now
	return nil
}

// told names a plan whose retired images have been told of.
type told struct {
	uid     types.UID
	version v1alpha1.PlanVersion
}
