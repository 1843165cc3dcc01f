// Package registration registers agents in pull mode and revokes their credentials. It
// runs in the elected replica. It keeps no state in memory: each step is decided from
// live reads and is one write, which fails if somebody else wrote first.
package registration

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"

	"github.com/pelotech/ot-fleet/hub/metrics"
)

// create on ServiceAccounts, RoleBindings, ResourceQuotas and Leases cannot be limited to names.
// What is bound to a RoleBinding can: no more than the two roles of agents.
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterjoins,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterjoins/status,verbs=update
// +kubebuilder:rbac:groups="",resources=serviceaccounts,verbs=create
// +kubebuilder:rbac:groups="",resources=serviceaccounts,resourceNames=ot-member-agent;ot-member-join,verbs=get;delete
// +kubebuilder:rbac:groups="",resources=serviceaccounts/token,resourceNames=ot-member-agent;ot-member-join,verbs=create
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=rolebindings,verbs=create
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=rolebindings,resourceNames=ot-member-agent;ot-member-join,verbs=get;delete
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=clusterroles,resourceNames=ot-hub-member-agent;ot-hub-member-join,verbs=bind
// +kubebuilder:rbac:groups="",resources=resourcequotas,verbs=create
// +kubebuilder:rbac:groups="",resources=resourcequotas,resourceNames=ot-member,verbs=get
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,resourceNames=ot-agent,verbs=get

// maxSteps bounds the steps of one reconcile. The longest way, a registration that
// replaces another, has fewer.
const maxSteps = 30

// Reconciler registers the agent of one member per request.
type Reconciler struct {
	client.Client
	Live       client.Reader
	Events     events.EventRecorder
	Metrics    *metrics.Registrations
	Conditions *Conditions
	// Namespace of the hub.
	Namespace string
	// Issuer has the address and token lifetimes for agents.
	Issuer Issuer
	// Quota: members get a ResourceQuota.
	Quota bool

	conflicts trigger.ConflictTracker
}

// Reconcile takes one step after the other until it has to wait.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	return r.conflicts.Result(ctx, request, result, err)
}

func (r *Reconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	reader := client.Reader(r.Client)
	for i := range maxSteps {
		member := &v1alpha1.MemberCluster{}
		if err := reader.Get(ctx, request.NamespacedName, member); apierrors.IsNotFound(err) {
			r.Metrics.SetPending(r.Conditions.forgetMember(request.Name))
			return ctrl.Result{}, nil
		} else if err != nil {
			return ctrl.Result{}, fmt.Errorf("reading MemberCluster %s: %w", request.Name, err)
		}
		if member.Spec.Connection.Pull == nil && !hasFinalizer(member, finalizer) {
			// In push mode the cache is sufficient: a change triggers another reconcile.
			r.Metrics.SetPending(r.Conditions.setCondition(member, nil, false))
			return ctrl.Result{}, nil
		}
		if i == 0 {
			reader = r.Live
			continue
		}
		s, err := r.readSnapshot(ctx, member)
		if err != nil {
			return ctrl.Result{}, err
		}
		d := decideNextStep(s)
		if d.step == noStep {
			r.Metrics.SetPending(r.Conditions.setCondition(member, d.condition, d.awaitsAcceptance))
			return ctrl.Result{RequeueAfter: d.requeueAfter}, nil
		}
		err = r.executeStep(ctx, s, d)
		if trigger.IsConflict(err) && !r.conflicts.IsExhausted(request) {
			return ctrl.Result{}, err
		} else if err != nil {
			d.condition.Message = v1alpha1.SanitizeText(fmt.Sprintf("the hub failed to %s: %v", d.step, err), maxMessageLength)
			r.Metrics.SetPending(r.Conditions.setCondition(member, d.condition, d.awaitsAcceptance))
			return ctrl.Result{}, fmt.Errorf("registering the agent of MemberCluster %s: failed to %s: %w", member.Name, d.step, err)
		}
		r.recordEvents(ctx, s, d)
	}
	return ctrl.Result{}, fmt.Errorf("registering the agent of MemberCluster %s does not end after %d steps: does something else write the same objects?", request.Name, maxSteps)
}

// readSnapshot reads all objects live: that an object is missing decides as much as
// that it exists.
func (r *Reconciler) readSnapshot(ctx context.Context, member *v1alpha1.MemberCluster) (snapshot, error) {
	s := snapshot{now: time.Now(), member: member, hubNamespace: r.Namespace}
	if r.Issuer.ClusterOnly {
		s.clusterOnlyURL = r.Issuer.URL
	}
	var errs []error
	exists := func(key client.ObjectKey, o client.Object) bool {
		err := r.Live.Get(ctx, key, o)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("reading %T %s: %w", o, key, err))
		}
		return err == nil
	}
	ns := &corev1.Namespace{}
	s.namespaceReady = exists(client.ObjectKey{Name: memberNamespace(member)}, ns) && ns.Labels[v1alpha1.LabelMember] == member.Name && ns.DeletionTimestamp.IsZero()
	account := func(name string) accountState {
		sa, binding := &corev1.ServiceAccount{}, &rbacv1.RoleBinding{}
		if !exists(memberKey(member, name), sa) {
			sa = nil
		}
		if !exists(memberKey(member, name), binding) {
			binding = nil
		}
		return newAccountState(sa, binding, newRoleBinding(member, name))
	}
	s.joinAccount, s.agentAccount = account(registration.JoinAccount), account(registration.AgentAccount)
	s.quotaMissing = r.Quota && !exists(memberKey(member, quotaName), &corev1.ResourceQuota{})
	lease, clusterJoin, secret := &coordinationv1.Lease{}, &v1alpha1.ClusterJoin{}, &corev1.Secret{}
	if s.leaseExists = exists(memberKey(member, registration.LeaseName), lease); s.leaseExists {
		s.leaseHolder = ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	if exists(memberKey(member, v1alpha1.MailboxName), clusterJoin) {
		s.clusterJoin = clusterJoin
	}
	if exists(client.ObjectKey{Namespace: r.Namespace, Name: registration.JoinSecretName(member.Name)}, secret) {
		s.joinSecret = secret
	}
	return s, errors.Join(errs...)
}

// executeStep does the write of a step.
func (r *Reconciler) executeStep(ctx context.Context, s snapshot, d decision) error {
	member := s.member
	switch d.step {
	case addFinalizer:
		return r.patchFinalizers(ctx, member, append(member.Finalizers, finalizer))
	case removeFinalizer:
		return r.patchFinalizers(ctx, member, removeString(member.Finalizers, finalizer))
	case createQuota:
		return r.Create(ctx, newQuota(member))
	case createJoinAccount:
		return r.Create(ctx, newServiceAccount(member, registration.JoinAccount, nil))
	case bindJoinAccount:
		return r.Create(ctx, newRoleBinding(member, registration.JoinAccount))
	case issueJoinToken:
		return r.issueJoinToken(ctx, s)
	case unbindJoinAccount:
		return r.deleteObject(ctx, &rbacv1.RoleBinding{ObjectMeta: existingObjectMeta(member, registration.JoinAccount, s.joinAccount.bindingUID)})
	case deleteJoinAccount:
		return r.deleteObject(ctx, &corev1.ServiceAccount{ObjectMeta: existingObjectMeta(member, registration.JoinAccount, s.joinAccount.uid)})
	case deleteJoinSecret:
		return r.deleteObject(ctx, s.joinSecret)
	case deleteClusterJoin:
		return r.deleteObject(ctx, s.clusterJoin)
	case answerClusterJoin:
		return r.updateJoinStatus(ctx, s.clusterJoin, d.joinStatus)
	case createAgentAccount:
		return r.Create(ctx, newServiceAccount(member, registration.AgentAccount, s.clusterJoin))
	case bindAgentAccount:
		return r.Create(ctx, newRoleBinding(member, registration.AgentAccount))
	case createLease:
		return r.Create(ctx, &coordinationv1.Lease{ObjectMeta: newObjectMeta(member, registration.LeaseName)})
	case issueCredential:
		return r.issueCredential(ctx, s, d.joinStatus)
	case unbindAgentAccount:
		return r.deleteObject(ctx, &rbacv1.RoleBinding{ObjectMeta: existingObjectMeta(member, registration.AgentAccount, s.agentAccount.bindingUID)})
	case deleteAgentAccount:
		return r.deleteObject(ctx, &corev1.ServiceAccount{ObjectMeta: existingObjectMeta(member, registration.AgentAccount, s.agentAccount.uid)})
	default:
		return fmt.Errorf("unknown step %q", d.step)
	}
}

func removeString(all []string, one string) (others []string) {
	for _, name := range all {
		if name != one {
			others = append(others, name)
		}
	}
	return others
}

func (r *Reconciler) patchFinalizers(ctx context.Context, member *v1alpha1.MemberCluster, finalizers []string) error {
	updated := member.DeepCopy()
	updated.Finalizers = finalizers
	return client.IgnoreNotFound(r.Patch(ctx, updated, client.MergeFromWithOptions(member, client.MergeFromWithOptimisticLock{})))
}

// deleteObject deletes an object, but not another one of the same name.
func (r *Reconciler) deleteObject(ctx context.Context, o client.Object) error {
	uid := o.GetUID()
	return client.IgnoreNotFound(r.Delete(ctx, o, client.Preconditions{UID: &uid}))
}

func (r *Reconciler) updateJoinStatus(ctx context.Context, clusterJoin *v1alpha1.ClusterJoin, status v1alpha1.ClusterJoinStatus) error {
	updated := clusterJoin.DeepCopy()
	updated.Status = status
	return r.Status().Update(ctx, updated)
}

// recordEvents emits events and metrics for a step that was taken.
func (r *Reconciler) recordEvents(ctx context.Context, s snapshot, d decision) {
	log.FromContext(ctx).Info("Registration step done", "step", d.step)
	event := func(kind, reason, action, format string, args ...any) {
		r.Events.Eventf(s.member, nil, kind, reason, action, format, args...)
	}
	switch d.step {
	case issueJoinToken:
		r.Metrics.CountTokenIssued()
		event(corev1.EventTypeNormal, "JoinTokenMade", "Join", "Issued a join token in Secret %s/%s", s.hubNamespace, registration.JoinSecretName(s.member.Name))
	case answerClusterJoin:
		event(corev1.EventTypeNormal, "JoinAsked", "Join", "%s", d.joinStatus.Message)
	case issueCredential:
		r.Metrics.CountCredentialIssued()
		event(corev1.EventTypeNormal, "CredentialIssued", "Join", "Issued a credential to key %s of cluster %s", d.joinStatus.Fingerprint, s.clusterJoin.Spec.ClusterUID)
	case deleteClusterJoin:
		if d.condition.Status == metav1.ConditionTrue {
			break
		}
		event(corev1.EventTypeWarning, "JoinRemoved", "Join", "Deleted a ClusterJoin that was created with an invalidated join token")
	case deleteJoinAccount:
		if d.condition.Reason == v1alpha1.ReasonJoined {
			event(corev1.EventTypeNormal, "Joined", "Join", "The agent uses its credential; the join token was invalidated")
		}
	case deleteAgentAccount:
		if d.condition.Reason == v1alpha1.ReasonRevoking {
			r.Metrics.CountRevoked()
			event(corev1.EventTypeWarning, "Revoked", "Revoke", "Revoked all credentials of the agent")
		}
	}
}
