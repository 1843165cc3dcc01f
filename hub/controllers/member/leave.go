package member

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/controllers/pace"
	"github.com/pelotech/ot-fleet/hub/fleet"
)

const (
	// A member that leaves is asked so often to give up its plan, once the hub is
	// connected, and for so long: one that does not answer must not keep its
	// MemberCluster for ever.
	farewellAttempts = 3
	farewellTimeout  = 15 * time.Second
	farewellPause    = time.Second
	// settled is how long what was deleted must stay away: a relay may have been
	// about to write it.
	settled = 300 * time.Millisecond
)

// errConnecting: nothing is known to be wrong with a member. A hub that has just
// started, or renews a connection, will have it soon.
var errConnecting = fmt.Errorf("the hub was not connected to it within %v", farewellTimeout)

// farewell is the removal of the plan in a member that leaves. It goes on beside
// the reconciler, so that nobody waits for a member that does not answer.
type farewell struct {
	of   types.UID
	done bool
	err  error
}

// letGo takes leave of a member: its plan and grant go, on the hub first, so that
// no relay brings them back, then in the member, then its namespace on the hub.
func (r *Reconciler) letGo(ctx context.Context, member *v1alpha1.MemberCluster) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(member, v1alpha1.FinalizerMember) {
		return ctrl.Result{}, nil
	}
	ns, err := r.namespace(ctx, member.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if ns != nil && !mine(ns, member.Name) {
		ns = nil
	}
	if ns != nil {
		if err := remove(ctx, r.Client, ns.Name); err != nil {
			return ctrl.Result{}, fmt.Errorf("deleting what was planned for MemberCluster %s, on the hub: %w", member.Name, err)
		}
	}
	shared, err := r.clusterOfAnother(ctx, member)
	if err != nil {
		return ctrl.Result{}, err
	}
	done := shared
	if !shared {
		done, err = r.bidFarewell(ctx, member)
	}
	if !done {
		return ctrl.Result{}, nil // its end brings the request back
	}
	if err != nil {
		left := fmt.Sprintf("ClusterPlan and TransferGrant %s may be left in namespace %s of the cluster: %v. Its agent goes on by them; delete them there", v1alpha1.MailboxName, member.Spec.AgentNamespace, err)
		log.FromContext(ctx).Info("Let go of a member without cleaning it up", "left", left)
		r.Events.Eventf(member, nil, corev1.EventTypeWarning, "NotCleanedUp", "Delete", "%s", left)
		r.Metrics.LeftUncleaned()
	}
	if ns != nil && ns.DeletionTimestamp.IsZero() {
		if err := r.Delete(ctx, ns, client.Preconditions{UID: &ns.UID}); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, fmt.Errorf("deleting namespace %s of MemberCluster %s: %w", ns.Name, member.Name, err)
		}
	}
	base := member.DeepCopy()
	controllerutil.RemoveFinalizer(member, v1alpha1.FinalizerMember)
	if err := r.Patch(ctx, member, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return result(ctx, fmt.Errorf("removing the finalizer of MemberCluster %s: %w", member.Name, err))
	}
	r.mu.Lock()
	delete(r.leaving, member.Name)
	r.mu.Unlock()
	return ctrl.Result{}, nil
}

// clusterOfAnother tells that the plan which would be removed in a member is that
// of another one: it leads to the same cluster.
func (r *Reconciler) clusterOfAnother(ctx context.Context, member *v1alpha1.MemberCluster) (bool, error) {
	for _, cluster := range []types.UID{
		fleet.ClusterUID(member, r.Reports.Root(member.Name).ClusterUID),
		r.Relays.Of(member.Name).Another,
	} {
		holder, err := claim.Holder(ctx, r.Client, member, cluster)
		if holder != "" || err != nil {
			return holder != "", err
		}
	}
	return false, nil
}

// bidFarewell begins to clean up a member, and tells whether that has come to an
// end and how.
func (r *Reconciler) bidFarewell(ctx context.Context, member *v1alpha1.MemberCluster) (done bool, err error) {
	if member.Status.Plan == nil && member.Status.ClusterUID == "" {
		return true, nil // nothing was ever planned for it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.leaving[member.Name]; f != nil && f.of == member.UID {
		return f.done, f.err
	}
	if r.leaving == nil {
		r.leaving = map[string]*farewell{}
	}
	f := &farewell{of: member.UID}
	r.leaving[member.Name] = f
	name := member.Name
	go func() {
		err := r.cleanUp(ctx, name)
		r.mu.Lock()
		f.done, f.err = true, err
		r.mu.Unlock()
		r.again.Poke(ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
	}()
	return false, nil
}

func (r *Reconciler) cleanUp(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
	defer cancel()
	for attempts := 0; ; {
		err := r.removeInMember(ctx, name)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errConnecting) {
			attempts++
		}
		if attempts == farewellAttempts || pace.Pause(ctx, farewellPause) != nil {
			return err
		}
	}
}

func (r *Reconciler) removeInMember(ctx context.Context, name string) error {
	connected, err := r.Members.Member(name)
	if errors.Is(err, multicluster.ErrClusterNotFound) {
		if state := r.Members.State(name); state.Known && !state.Reachable {
			return fmt.Errorf("the hub does not reach it (%s): %s", state.Reason, state.Message)
		}
		return errConnecting
	} else if err != nil {
		return err
	}
	// Twice: a relay that was paused may have brought back what was deleted.
	for range 2 {
		if err := remove(ctx, connected.GetClient(), connected.Namespace); err != nil {
			return err
		}
		if err := pace.Pause(ctx, settled); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes plan and grant in a namespace, where they are.
func remove(ctx context.Context, c client.Client, namespace string) error {
	for _, o := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
		o.SetNamespace(namespace)
		o.SetName(v1alpha1.MailboxName)
		if err := c.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %T %s/%s: %w", o, namespace, v1alpha1.MailboxName, err)
		}
	}
	return nil
}
