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

// cleanUpTimeout bounds how long a removed member is asked to delete its plan: one that
// does not answer must not block its MemberCluster.
const cleanUpTimeout = 15 * time.Second

// cacheLagDelay is the requeue delay until the cache shows that a namespace is being deleted.
const cacheLagDelay = 100 * time.Millisecond

// errNotConnected: the member has no known problem. A replica that has just started, or
// that renews a connection, will connect soon.
var errNotConnected = fmt.Errorf("the hub did not connect to the member within %v", cleanUpTimeout)

// cleanUpDeadline bounds the clean-up of a member.
type cleanUpDeadline struct {
	memberUID types.UID
	until     time.Time
	// hadPlan: a plan was stored on the hub. It is written before the status that names it.
	hadPlan bool
	// done: the member was cleaned up as far as it can be. The MemberLink that says so is deleted
	// with the namespace.
	done bool
}

// reconcileDelete removes a member: plan and grant on the hub first, so that no relay
// brings them back, then those in the member, then its namespace on the hub.
func (r *Reconciler) reconcileDelete(ctx context.Context, member *v1alpha1.MemberCluster) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(member, v1alpha1.FinalizerMember) {
		return ctrl.Result{}, nil
	}
	if !r.Shares.MayRemove(member) {
		return ctrl.Result{RequeueAfter: budgetRetryDelay}, nil // what the member may be running has to be stored first
	}
	ns, err := r.getNamespace(ctx, member.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if ns != nil && !isMemberNamespace(ns, member.Name) {
		ns = nil
	}
	if ns != nil {
		plan, _, err := r.getMailbox(ctx, member.Name)
		if err != nil {
			return ctrl.Result{}, err
		}
		r.ensureCleanUp(member, time.Now(), plan != nil)
		if err := deleteMailbox(ctx, r.Client, ns.Name); err != nil {
			return ctrl.Result{}, fmt.Errorf("deleting the plan of MemberCluster %s on the hub: %w", member.Name, err)
		}
	}
	shared, err := r.isClusterOfOther(ctx, member)
	if err != nil {
		return ctrl.Result{}, err
	}
	end := cleanUpState{done: true}
	if !shared && !r.ensureCleanUp(member, time.Now(), false).done {
		if end, err = r.requestCleanUp(ctx, member); err != nil {
			return ctrl.Result{}, err
		}
	}
	if !end.done {
		return ctrl.Result{RequeueAfter: end.wait}, nil // the answer enqueues the member
	}
	if end.leftover != nil {
		left := fmt.Sprintf("ClusterPlan and TransferGrant %s may be left in namespace %s of the cluster: %v. Its agent keeps using them; delete them there", v1alpha1.MailboxName, member.Spec.AgentNamespace, end.leftover)
		log.FromContext(ctx).Info("Removed a member without deleting its plan", "member", member.Name, "error", left)
		r.Events.Eventf(member, nil, corev1.EventTypeWarning, "NotCleanedUp", "Delete", "%s", left)
		r.Metrics.CountUncleaned()
	}
	r.setCleanedUp(member)
	deleting, err := r.deleteNamespace(ctx, member, ns)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !deleting {
		return ctrl.Result{RequeueAfter: cacheLagDelay}, nil
	}
	if err := r.rememberLabels(ctx, member); err != nil {
		return ctrl.Result{}, err
	}
	base := member.DeepCopy()
	controllerutil.RemoveFinalizer(member, v1alpha1.FinalizerMember)
	if err := r.Patch(ctx, member, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("removing the finalizer of MemberCluster %s: %w", member.Name, err)
	}
	return ctrl.Result{}, nil
}

// forgetMember drops a member that is gone, whoever removed its finalizer.
func (r *Reconciler) forgetMember(member string) {
	r.pacer.Forget(member)
	r.Raises.Forget(member)
	r.Shares.ForgetMember(member)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cleanUpDeadlines, member)
}

// deleteNamespace deletes the member's namespace, nil for none, and reports whether the cache shows
// that.
//
// Invariant: whoever sees a MemberCluster of this name that is created later sees in the same cache
// that the namespace, in which the report of the former lies, is not its own.
func (r *Reconciler) deleteNamespace(ctx context.Context, member *v1alpha1.MemberCluster, ns *corev1.Namespace) (bool, error) {
	if ns == nil || !ns.DeletionTimestamp.IsZero() {
		return true, nil
	}
	if err := r.Delete(ctx, ns, client.Preconditions{UID: &ns.UID}); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("deleting namespace %s of MemberCluster %s: %w", ns.Name, member.Name, err)
	}
	shown, err := r.getNamespace(ctx, member.Name)
	return shown == nil || shown.UID != ns.UID || !shown.DeletionTimestamp.IsZero(), err
}

// isClusterOfOther reports whether the plan in the member's cluster is that of another
// member with the same cluster.
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

// cleanUpState is the progress of the clean-up: done, with what may be left, or how long
// to wait for it.
type cleanUpState struct {
	done     bool
	wait     time.Duration
	leftover error
}

// requestCleanUp asks the replica or agent that syncs a member to delete plan and grant
// in it.
func (r *Reconciler) requestCleanUp(ctx context.Context, member *v1alpha1.MemberCluster) (cleanUpState, error) {
	link, err := r.Links.Get(ctx, member.Name)
	if err != nil {
		return cleanUpState{}, err
	}
	now := time.Now()
	cleanUp := r.ensureCleanUp(member, now, false)
	if wasAsked := link != nil && link.Spec.Leaving; !wasAsked && !cleanUp.hadPlan && member.Status.Plan == nil && member.Status.ClusterUID == "" {
		return cleanUpState{done: true}, nil // the member never had a plan
	}
	wait := cleanUp.until.Sub(now)
	switch {
	case link != nil && link.Spec.Leaving && link.Status.CleanedUp:
		return cleanUpState{done: true}, nil
	case link != nil && link.Spec.Leaving && link.Status.CleanUpError != "":
		return cleanUpState{done: true, leftover: errors.New(link.Status.CleanUpError)}, nil
	case wait <= 0:
		return cleanUpState{done: true, leftover: explainNotCleanedUp(link)}, nil
	case link != nil && link.DeletionTimestamp.IsZero() && !link.Spec.Leaving:
		link = link.DeepCopy()
		link.Spec.Leaving = true
		if err := r.Update(ctx, link); client.IgnoreNotFound(err) != nil {
			return cleanUpState{}, fmt.Errorf("requesting the clean-up of MemberCluster %s: %w", member.Name, err)
		}
	}
	return cleanUpState{wait: wait}, nil
}

// ensureCleanUp returns the clean-up of a member, whose deadline counts from when this process
// first saw the deletion.
func (r *Reconciler) ensureCleanUp(member *v1alpha1.MemberCluster, now time.Time, hasPlan bool) cleanUpDeadline {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, known := r.cleanUpDeadlines[member.Name]
	if !known || f.memberUID != member.UID {
		f = cleanUpDeadline{memberUID: member.UID, until: now.Add(cleanUpTimeout)}
	}
	f.hadPlan = f.hadPlan || hasPlan
	if r.cleanUpDeadlines == nil {
		r.cleanUpDeadlines = map[string]cleanUpDeadline{}
	}
	r.cleanUpDeadlines[member.Name] = f
	return f
}

// setCleanedUp ends the clean-up of a member.
func (r *Reconciler) setCleanedUp(member *v1alpha1.MemberCluster) {
	f := r.ensureCleanUp(member, time.Now(), false)
	f.done = true
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanUpDeadlines[member.Name] = f
}

// explainNotCleanedUp returns why nobody has cleaned up.
func explainNotCleanedUp(link *v1alpha1.MemberLink) error {
	switch {
	case link == nil:
		return errors.New("no replica syncs the member")
	case link.Spec.Mode == v1alpha1.LinkPull:
		return fmt.Errorf("the agent did not answer within %v", cleanUpTimeout)
	case link.Status.Known && !link.Status.Reachable:
		return fmt.Errorf("the hub does not reach the member (%s): %s", link.Status.Reason, link.Status.Message)
	}
	return errNotConnected
}

// deleteMailbox deletes plan and grant in a namespace, if they exist.
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
