package connection

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// maxConcurrentReads bounds concurrent reads of Secrets: when a replica dies, another
// gets all its members at once.
const maxConcurrentReads = 8

// connectionReconciler sets the targets of the members that this replica connects to.
type connectionReconciler struct {
	Options
	client  client.Client
	secrets *SecretReader

	mu sync.Mutex
	// applied is the last target of each member.
	applied map[string]appliedTarget
}

// appliedTarget identifies what a Target was made from.
type appliedTarget struct {
	// secret has the kubeconfig, token the token in place of that in it.
	secret, token secretVersion
	// generation and ConnectionID of the MemberCluster.
	generation   int64
	connectionID string
}

// enqueueAll requeues all members when this replica gains or loses the right to sync.
func (c *connectionReconciler) enqueueAll(requeue *trigger.Source[reconcile.Request]) {
	var list v1alpha1.MemberClusterList
	if err := c.client.List(context.Background(), &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.Log.Error(err, "Failed to list MemberClusters; their connections are not updated")
	}
	for i := range list.Items {
		requeue.Enqueue(reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
	}
}

func (c *connectionReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	member := &v1alpha1.MemberCluster{}
	switch err := c.client.Get(ctx, request.NamespacedName, member); {
	case apierrors.IsNotFound(err):
		c.removeMember(request.Name)
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading MemberCluster %s: %w", request.Name, err)
	}
	// Until the finalizer is removed, the hub still cleans up in the member.
	if !member.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(member, v1alpha1.FinalizerMember) {
		c.removeMember(member.Name)
		return reconcile.Result{}, nil
	}

	link, err := c.Links.Get(ctx, member.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !c.Replica.OwnsMember(link) {
		c.removeMember(member.Name)
		return reconcile.Result{RequeueAfter: c.Replica.RecheckAfter(link)}, nil
	}
	if member.Spec.Quarantine != nil {
		c.recordApplied(member.Name, appliedTarget{})
		c.Members.SetUnreachable(member.Name, member.ConnectionID(), v1alpha1.ReasonQuarantined, "the member is in quarantine: the hub does not connect to it")
		return reconcile.Result{}, nil
	}
	name, key := connectionSecret(member)
	if name == "" {
		return reconcile.Result{}, nil // pull mode; the MemberLink will follow
	}
	next := appliedTarget{generation: member.Generation, connectionID: member.ConnectionID()}
	if next.secret, err = c.secrets.currentVersion(ctx, name); err != nil {
		return reconcile.Result{}, err
	}
	if next.token, err = c.secrets.currentVersion(ctx, TokenSecretName(member.Name)); err != nil {
		return reconcile.Result{}, err
	}
	if next.secret != (secretVersion{}) && c.lastApplied(member.Name) == next {
		return reconcile.Result{}, nil
	}
	secret, err := c.secrets.readSecret(ctx, name)
	if err != nil {
		return reconcile.Result{}, err
	}
	if secret == nil {
		// Some tools replace a Secret by deleting it first, and a member that is deleted
		// together with its Secret must still be cleaned up.
		if member.Spec.Connection.ClusterAPI == nil && !c.Members.KeepConnection(member.Name, next.connectionID, fmt.Sprintf(
			"Secret %s/%s was deleted, and the hub uses its last content until it restarts: create it again, or delete the MemberCluster", c.Namespace, name)) {
			c.setUnreachable(member, "Secret %s/%s does not exist: create it with the member's kubeconfig in key %s", c.Namespace, name, key)
		}
		// For a member from Cluster API, the credential controller creates it and reports problems.
		return reconcile.Result{}, nil
	}
	if member.Spec.Connection.ClusterAPI != nil && !matchesPurpose(secret, clusterAPIPurpose(member)) {
		c.setUnreachable(member, "Secret %s/%s is for another Cluster or agent namespace: waiting for the hub to create another token", c.Namespace, name)
		return reconcile.Result{}, nil
	}
	if len(secret.Data[key]) == 0 {
		c.setUnreachable(member, "Secret %s/%s has no key %s: add it with the member's kubeconfig", c.Namespace, name, key)
		return reconcile.Result{}, nil
	}
	cfg, fingerprint, err := hubclient.ParseMemberKubeconfig(member, secret.Data[key])
	if err != nil {
		c.setUnreachable(member, "Secret %s/%s, key %s: %v", c.Namespace, name, key, err)
		return reconcile.Result{}, nil
	}
	if cfg.BearerToken, err = c.secrets.tokenInUse(ctx, member, secret.Data[key], cfg.BearerToken); err != nil {
		return reconcile.Result{}, err
	}
	c.Members.SetTarget(member.Name, memberclient.Target{Config: cfg, Namespace: member.Spec.AgentNamespace, ConfigVersion: fingerprint, ConnectionID: next.connectionID})
	next.secret = versionOf(secret)
	c.recordApplied(member.Name, next)
	return reconcile.Result{}, nil
}

func (c *connectionReconciler) lastApplied(member string) appliedTarget {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applied[member]
}

// recordApplied stores the applied target; the zero value forgets it.
func (c *connectionReconciler) recordApplied(member string, now appliedTarget) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now == (appliedTarget{}) {
		delete(c.applied, member)
		return
	}
	c.applied[member] = now
}

func (c *connectionReconciler) removeMember(member string) {
	c.recordApplied(member, appliedTarget{})
	c.Members.Remove(member)
}

func (c *connectionReconciler) setUnreachable(member *v1alpha1.MemberCluster, format string, args ...any) {
	c.recordApplied(member.Name, appliedTarget{})
	c.Members.SetUnreachable(member.Name, member.ConnectionID(), v1alpha1.ReasonCredentialsMissing, fmt.Sprintf(format, args...))
}
