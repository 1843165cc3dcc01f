// Package apidiscovery tells which cluster the agent runs in.
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

// +kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get

// ClusterIdentity is the cluster that a reader reads from.
type ClusterIdentity struct {
	live client.Reader

	mu  sync.Mutex
	uid types.UID
}

// NewClusterIdentity returns the identity of the cluster that live reads from, past any cache.
func NewClusterIdentity(live client.Reader) *ClusterIdentity { return &ClusterIdentity{live: live} }

// UID is the UID of the cluster's kube-system namespace, which is as old as the
// cluster: one that was made anew under the same name has another. It is read
// once.
func (c *ClusterIdentity) UID(ctx context.Context) (types.UID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.uid == "" {
		ns := &corev1.Namespace{}
		if err := c.live.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns); err != nil {
			return "", fmt.Errorf("reading namespace %s, whose UID tells which cluster this is: %w", metav1.NamespaceSystem, err)
		}
		c.uid = ns.UID
	}
	return c.uid, nil
}
