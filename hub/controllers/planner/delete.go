package planner

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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// cleanUpTimeout is how long a member that leaves is asked to give up its plan: one
// that does not answer must not keep its MemberCluster for ever.
const cleanUpTimeout = 15 * time.Second

// errNotConnected: nothing is known to be wrong with a member. A replica that has just
// started, or renews a connection, will have it soon.
var errNotConnected = fmt.Errorf("the hub was not connected to it within %v", cleanUpTimeout)

// cleanUpDeadline is the removal of the plan in a member that leaves, by whoever carries for
// it.
type cleanUpDeadline struct {
	memberUID types.UID
	// until is how long it is waited for.
	until time.Time
}

// reconcileDelete takes leave of a member: its plan and grant go, on the hub first, so that
// no relay brings them back, then in the member, then its namespace on the hub.
func (r *Reconciler) reconcileDelete(ctx context.Context, member *v1alpha1.MemberCluster) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(member, v1alpha1.FinalizerMember) {
		return ctrl.Result{}, nil
	}
	if !r.Shares.MayRemove(member) {
		return ctrl.Result{RequeueAfter: budgetRetryDelay}, nil // what it may be running is stored first
	}
	ns, err := r.getNamespace(ctx, member.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if ns != nil && !isMemberNamespace(ns, member.Name) {
		ns = nil
	}
	if ns != nil {
		if err := deleteMailbox(ctx, r.Client, ns.Name); err != nil {
			return ctrl.Result{}, fmt.Errorf("deleting what was planned for MemberCluster %s, on the hub: %w", member.Name, err)
		}
	}
	shared, err := r.isClusterOfOther(ctx, member)
	if err != nil {
		return ctrl.Result{}, err
	}
	end := cleanUpState{done: true}
	if !shared {
		if end, err = r.requestCleanUp(ctx, member); err != nil {
			return result(ctx, err)
		}
	}
	if !end.done {
		return ctrl.Result{RequeueAfter: end.wait}, nil // the answer brings the request back
	}
	if end.leftover != nil {
		left := fmt.Sprintf("ClusterPlan and TransferGrant %s may be left in namespace %s of the cluster: %v. Its agent goes on by them; delete them there", v1alpha1.MailboxName, member.Spec.AgentNamespace, end.leftover)
		log.FromContext(ctx).Info("Let go of a member without cleaning it up", "left", left)
		r.Events.Eventf(member, nil, corev1.EventTypeWarning, "NotCleanedUp", "Delete", "%s", left)
		r.Metrics.CountUncleaned()
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
	delete(r.cleanUpDeadlines, member.Name)
	r.mu.Unlock()
	return ctrl.Result{}, nil
}

// isClusterOfOther tells that the plan which would be removed in a member is that
// of another one: it leads to the same cluster.
func (r *Reconciler) isClusterOfOther(ctx context.Context, member *v1alpha1.MemberCluster) (bool, error) {
	clusters := []types.UID{memberstatus.ResolveClusterUID(member, r.Reports.Root(member.Name).ClusterUID)}
	if link, err := r.Links.Get(ctx, member.Name); err != nil {
		return false, err
	} else if link != nil {
		clusters = append(clusters, link.Status.Another)
	}
	for _, cluster := range clusters {
		holder, err := claim.FindHolder(ctx, r.Client, member, cluster)
		if holder != "" || err != nil {
			return holder != "", err
		}
	}
	return false, nil
}

// cleanUpState is how far the removal of the plan in a member has come: to an end, and what
// may be left then, or how long to wait for it.
type cleanUpState struct {
	done     bool
	wait     time.Duration
	leftover error
}

// requestCleanUp asks whoever carries for a member to clean it up.
func (r *Reconciler) requestCleanUp(ctx context.Context, member *v1alpha1.MemberCluster) (cleanUpState, error) {
	if member.Status.Plan == nil && member.Status.ClusterUID == "" {
		return cleanUpState{done: true}, nil // nothing was ever planned for it
	}
	link, err := r.Links.Get(ctx, member.Name)
	if err != nil {
		return cleanUpState{}, err
	}
	now := time.Now()
	wait := r.ensureCleanUpDeadline(member, now).until.Sub(now)
	switch {
	case link != nil && link.Spec.Leaving && link.Status.CleanedUp:
		return cleanUpState{done: true}, nil
	case link != nil && link.Spec.Leaving && link.Status.CleanUpError != "":
		return cleanUpState{done: true, leftover: errors.New(link.Status.CleanUpError)}, nil
	case wait <= 0:
		return cleanUpState{done: true, leftover: explainNotCleanedUp(link)}, nil
	case link != nil && link.DeletionTimestamp.IsZero() && !link.Spec.Leaving:
		link.Spec.Leaving = true
		if err := r.Update(ctx, link); client.IgnoreNotFound(err) != nil {
			return cleanUpState{}, fmt.Errorf("asking for the plan of MemberCluster %s to be removed in it: %w", member.Name, err)
		}
	}
	return cleanUpState{wait: wait}, nil
}

// ensureCleanUpDeadline of a member, from when this process first knew of it.
func (r *Reconciler) ensureCleanUpDeadline(member *v1alpha1.MemberCluster, now time.Time) cleanUpDeadline {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, is := r.cleanUpDeadlines[member.Name]; is && f.memberUID == member.UID {
		return f
	}
	if r.cleanUpDeadlines == nil {
		r.cleanUpDeadlines = map[string]cleanUpDeadline{}
	}
	f := cleanUpDeadline{memberUID: member.UID, until: now.Add(cleanUpTimeout)}
	r.cleanUpDeadlines[member.Name] = f
	return f
}

// explainNotCleanedUp says why nobody has cleaned up.
func explainNotCleanedUp(link *v1alpha1.MemberLink) error {
	switch {
	case link == nil:
		return errors.New("nobody carries for it")
	case link.Spec.Mode == v1alpha1.LinkPull:
		return fmt.Errorf("its agent did not answer within %v", cleanUpTimeout)
	case link.Status.Known && !link.Status.Reachable:
		return fmt.Errorf("the hub does not reach it (%s): %s", link.Status.Reason, link.Status.Message)
	}
	return errNotConnected
}

// deleteMailbox deletes plan and grant in a namespace, where they are.
func deleteMailbox(ctx context.Context, c client.Client, namespace string) error {
	for _, o := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
		o.SetNamespace(namespace)
		o.SetName(v1alpha1.MailboxName)
		if err := c.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %T %s/%s: %w", o, namespace, v1alpha1.MailboxName, err)
		}
	}
	return nil
}
