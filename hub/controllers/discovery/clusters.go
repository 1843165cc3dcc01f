package discovery

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberlabels"
)

// clusterReconciler creates a MemberCluster for each selected Cluster of Cluster API.
type clusterReconciler struct {
	Options
	client client.Client
	live   client.Reader
	events events.EventRecorder
}

func (c *clusterReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	// A live read, because it decides about deleting a MemberCluster, and because the
	// kind may not be served.
	cluster := &clusterv1.Cluster{}
	err := c.live.Get(ctx, request.NamespacedName, cluster)
	gone := apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	if err != nil && !gone {
		return reconcile.Result{}, fmt.Errorf("reading Cluster %s: %w", request, err)
	}
	member, err := c.memberForCluster(ctx, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	state := clusterState{
		namespace: request.Namespace, exists: !gone, deleting: !cluster.DeletionTimestamp.IsZero(), selected: c.Clusters.Matches(labels.Set(cluster.Labels)),
	}
	if member != nil {
		state.hasMember, state.discovered = true, member.Labels[v1alpha1.LabelDiscovered] == originCluster
		state.replaced, state.quarantined = isReplaced(member, cluster), member.Spec.Quarantine != nil
	}
	switch c.Rules.decide(state) {
	case actionDelete:
		ctrl.LoggerFrom(ctx).Info("Cluster was deleted, was created again or is no longer selected; deleting its MemberCluster", "member", member.Name)
		return reconcile.Result{}, deleteMember(ctx, c.live, c.client, member)
	case actionKeep:
		recordKept(c.events, member, fmt.Sprintf("Cluster %s was deleted, was created again or is no longer selected", request))
	case actionCreate:
		return c.createMember(ctx, cluster)
	case actionRefuse:
		c.events.Eventf(cluster, nil, corev1.EventTypeWarning, "NamespaceNotAllowed", "Discover",
			"Clusters of namespace %s may not join the fleet: add it to clusterAPI.namespaces in the hub's chart, or create a MemberCluster for the Cluster", request.Namespace)
	case actionCopyLabels:
		copied, recorded := c.Rules.copyLabels(member, cluster.Labels), recordCluster(member, cluster)
		if !copied && !recorded {
			return reconcile.Result{}, nil
		}
		if err := c.client.Update(ctx, member); err != nil {
			return reconcile.Result{}, fmt.Errorf("copying the labels of Cluster %s to MemberCluster %s: %w", request, member.Name, err)
		}
	case actionNone:
	}
	return reconcile.Result{}, nil
}

// isReplaced reports whether a member is a former Cluster of this one's name: it has labels of
// people that were for that one. Two members are not: one that has never reported, as right
// after both were restored from a backup under new UIDs, and one that is no older than the Cluster.
func isReplaced(member *v1alpha1.MemberCluster, cluster *clusterv1.Cluster) bool {
	recorded := member.Annotations[memberlabels.AnnotationClusterUID]
	return recorded != "" && cluster.UID != "" && recorded != string(cluster.UID) &&
		member.Status.ClusterUID != "" && member.CreationTimestamp.Before(&cluster.CreationTimestamp)
}

// recordCluster records which Cluster a member is, since its labels do not outlive that. While
// the member leaves, another Cluster may have the name already.
func recordCluster(member *v1alpha1.MemberCluster, cluster *clusterv1.Cluster) (changed bool) {
	if member.Annotations[memberlabels.AnnotationClusterUID] == string(cluster.UID) || !member.DeletionTimestamp.IsZero() {
		return false
	}
	metav1.SetMetaDataAnnotation(&member.ObjectMeta, memberlabels.AnnotationClusterUID, string(cluster.UID))
	return true
}

// memberForCluster returns the MemberCluster whose connection is a Cluster; nil if
// there is none. Of several, it is the one that this controller created. The others are not
// copied: their statuses are large, and each change of a member asks.
func (c *clusterReconciler) memberForCluster(ctx context.Context, cluster types.NamespacedName) (*v1alpha1.MemberCluster, error) {
	var all v1alpha1.MemberClusterList
	if err := c.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing MemberClusters: %w", err)
	}
	var found *v1alpha1.MemberCluster
	for i := range all.Items {
		member := &all.Items[i]
		ref := member.Spec.Connection.ClusterAPI
		if ref == nil || ref.Namespace != cluster.Namespace || ref.Name != cluster.Name {
			continue
		}
		if found == nil || member.Labels[v1alpha1.LabelDiscovered] == originCluster {
			found = member
		}
	}
	return found.DeepCopy(), nil
}

// createMember uses the first free name. There is one worker, so that two Clusters with
// the same name do not race.
func (c *clusterReconciler) createMember(ctx context.Context, cluster *clusterv1.Cluster) (reconcile.Result, error) {
	connection := v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: cluster.Namespace, Name: cluster.Name}}
	for n, name := range c.Rules.namesFor(cluster.Namespace, cluster.Name) {
		member := c.Rules.newMember(name, originCluster, connection, cluster.Labels)
		recordCluster(member, cluster)
		switch err := c.client.Create(ctx, member); {
		case apierrors.IsAlreadyExists(err):
			// It may be this Cluster's, if the cache is stale.
			same, err := c.memberIsForCluster(ctx, name, cluster)
			if err != nil || same {
				return reconcile.Result{RequeueAfter: time.Second}, err
			}
			continue
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("creating MemberCluster %s for Cluster %s/%s: %w", name, cluster.Namespace, cluster.Name, err)
		}
		c.events.Eventf(member, nil, corev1.EventTypeNormal, "CreatedFromCluster", "Discover",
			"Cluster %s/%s of Cluster API is member %s: the hub creates the MemberCluster whenever it is deleted. To remove the member, remove the label that selects its Cluster", cluster.Namespace, cluster.Name, name)
		if n > 0 {
			c.events.Eventf(cluster, nil, corev1.EventTypeNormal, "NameTaken", "Discover",
				"The cluster is member %s of the fleet: the name before it is taken", name)
		}
		return reconcile.Result{}, nil
	}
	c.events.Eventf(cluster, nil, corev1.EventTypeWarning, "NameTaken", "Discover", "All names for the cluster's member are taken: create a MemberCluster for it")
	return reconcile.Result{RequeueAfter: time.Minute}, nil
}

func (c *clusterReconciler) memberIsForCluster(ctx context.Context, name string, cluster *clusterv1.Cluster) (bool, error) {
	member := &v1alpha1.MemberCluster{}
	if err := c.live.Get(ctx, types.NamespacedName{Name: name}, member); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	ref := member.Spec.Connection.ClusterAPI
	return ref != nil && ref.Namespace == cluster.Namespace && ref.Name == cluster.Name, nil
}
