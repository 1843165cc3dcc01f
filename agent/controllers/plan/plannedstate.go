package plan

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PlannedState returns what the plan in force says about keeping an image. While a plan is
// refused, the plan in force is unknown: every image is kept, and no prune goes on. Where
// the kind is not served there is no plan. With live, it reads past every cache.
func (r *Reconciler) PlannedState(ctx context.Context, img types.NamespacedName, live bool) (image.PlannedState, error) {
	if !live && !r.served.Load() {
		return image.PlannedState{}, nil
	}
	// Every reconcile of every image calls this, so plan and ledger are not copied.
	p, verdict, err := r.readPlan(ctx, live, client.UnsafeDisableDeepCopy)
	if meta.IsNoMatchError(err) {
		return image.PlannedState{}, nil
	}
	if err != nil || p == nil {
		return image.PlannedState{}, err
	}
	if !verdict.Accepted {
		return image.PlannedState{Keep: true, Unknown: true}, nil
	}
	state := r.plannedStates.forPlan(p)[plan.Key{Namespace: img.Namespace, Name: img.Name}]
	if state.Retry != "" && !slices.Contains(r.PlanFields(), v1alpha1.PlanFieldRetry) {
		state.Retry = ""
	}
	// An older hub confirms nothing.
	if confirmed := p.Spec.ConfirmedNonce; confirmed != nil && state.Prune != nil {
		now := r.Elapsed()
		state.PruneUnconfirmed = !r.Nonces.IsConfirmedBy(*confirmed, now)
		state.PruneAnswersLate = r.Nonces.AreAnswersLate(now)
	}
	return state, nil
}

// AskPrunesConfirmed asks the hub, by the next report, whether the prunes of the plan are still requested.
// The plan that confirms them is another one, so it requeues their images.
func (r *Reconciler) AskPrunesConfirmed() {
	if r.Nonces.RequestNonce(r.Elapsed()) {
		r.EnqueueReport()
	}
}

// plannedStateCache holds the PlannedStates of the plan that was read last.
type plannedStateCache struct {
	mu              sync.Mutex
	plan            planIdentity
	resourceVersion string
	states          plan.PlannedStates
}

func (c *plannedStateCache) forPlan(p *v1alpha1.ClusterPlan) plan.PlannedStates {
	c.mu.Lock()
	defer c.mu.Unlock()
	if identity := identify(p); c.states == nil || c.plan != identity || c.resourceVersion != p.ResourceVersion {
		c.plan, c.resourceVersion, c.states = identity, p.ResourceVersion, plan.NewPlannedStates(&p.Spec)
	}
	return c.states
}

// planIdentity tells plans apart. The zero value is no plan.
type planIdentity struct {
	uid     types.UID
	version v1alpha1.PlanVersion
}

func identify(p *v1alpha1.ClusterPlan) planIdentity { return planIdentity{p.UID, p.Spec.PlanVersion} }

// enqueueAffectedImages requeues the images that a new plan retires, prunes or starts over, those
// that are published, as the plan says which of several is, and those that the plan before pruned:
// they have no event of their own. It requeues all of them,
// since an image that was reconciled while the plan was refused does not know its state. p
// is what the cache shows, as in PlannedState; nil for no plan.
func (r *Reconciler) enqueueAffectedImages(ctx context.Context, p *v1alpha1.ClusterPlan) error {
	var (
		identity planIdentity
		spec     v1alpha1.ClusterPlanSpec
		prunes   = map[plan.Key]bool{}
	)
	if p != nil {
		identity, spec = identify(p), p.Spec
	}
	if r.notifiedPlan == identity && p != nil {
		return nil
	}
	for i := range spec.Retired {
		key := plan.Key{Namespace: spec.Retired[i].Namespace, Name: spec.Retired[i].Name}
		if err := r.enqueueImage(ctx, key, image.IsPlanned); err != nil {
			return err
		}
	}
	for i := range spec.Images {
		if item := &spec.Images[i]; item.Retry != "" {
			if err := r.enqueueImage(ctx, plan.KeyForImage(item), image.IsPlanned); err != nil {
				return err
			}
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
	if r.notifiedPlan != identity {
		if err := r.enqueuePublishedImages(ctx); err != nil {
			return err
		}
	}
	r.notifiedPlan, r.prunedImages = identity, prunes
	return nil
}

func (r *Reconciler) enqueuePublishedImages(ctx context.Context) error {
	var images v1alpha1.VMDiskImageList
	if err := r.List(ctx, &images, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing the images that are published: %w", err)
	}
	for i := range images.Items {
		if img := &images.Items[i]; image.PublishedName(img) != "" {
			r.EnqueueImages(image.KeyOf(img))
		}
	}
	return nil
}

// enqueueImage requeues the image of that name, if there is one that matches; a nil matches
// takes any.
func (r *Reconciler) enqueueImage(ctx context.Context, key plan.Key, matches func(*v1alpha1.VMDiskImage) bool) error {
	img := &v1alpha1.VMDiskImage{}
	err := r.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, img, client.UnsafeDisableDeepCopy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return err
	case err == nil && (matches == nil || matches(img)):
		r.EnqueueImages(image.KeyOf(img))
	}
	return nil
}
