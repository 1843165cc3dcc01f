package plan

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Wants tells whether the plan wants an image, so that it is not to be deleted
// for want of machines. While a plan is refused nobody knows what the one in
// force wants: then it may be any image. Where the kind is not served nothing is
// planned.
func (r *Reconciler) Wants(ctx context.Context, img types.NamespacedName, live bool) (bool, error) {
	plans, ledgers := client.Reader(r.Mailbox), client.Reader(r.Client)
	switch {
	case live:
		plans, ledgers = r.Live, r.Live
	case !r.served.Load():
		return false, nil
	}
	p, verdict, err := r.read(ctx, plans, ledgers)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil || p == nil {
		return false, err
	}
	return !verdict.Accepted || slices.ContainsFunc(p.Spec.Images, func(want v1alpha1.PlannedImage) bool {
		return want.Namespace == img.Namespace && want.Name == img.Name
	}), nil
}
