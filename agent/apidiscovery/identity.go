package apidiscovery

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The identity is the UID of kube-system. A right to that name alone would be void: images are
// looked up by the namespaces that they name.
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// ClusterIdentity identifies the cluster that a reader reads from.
type ClusterIdentity struct {
	live client.Reader

	mu  sync.Mutex
	uid types.UID
}

// NewClusterIdentity returns a ClusterIdentity. live reads from the API server.
func NewClusterIdentity(live client.Reader) *ClusterIdentity { return &ClusterIdentity{live: live} }

// UID returns the UID of namespace kube-system: a cluster that is rebuilt under the same name
// has another. It is read until that has succeeded once.
func (c *ClusterIdentity) UID(ctx context.Context) (types.UID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.uid == "" {
		ns := &corev1.Namespace{}
		if err := c.live.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns); err != nil {
			return "", fmt.Errorf("reading the cluster's UID from namespace %s: %w", metav1.NamespaceSystem, err)
		}
		c.uid = ns.UID
	}
	return c.uid, nil
}
