package relay

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// mailboxReader reads plan and grant of one member on the hub. The cache has only their
// metadata, for the whole fleet; the contents are read after a change and kept for
// members that this replica owns. Reader and live have to be set.
type mailboxReader struct {
	client.Reader
	live client.Reader

	mu    sync.Mutex
	plan  *v1alpha1.ClusterPlan
	grant *v1alpha1.TransferGrant
}

// Get returns what the cache knows to be there, or something newer. It shares its content
// with later answers and must not be changed.
func (s *mailboxReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := into.(type) {
	case *v1alpha1.ClusterPlan:
		return getContent(ctx, s, key, "ClusterPlan", o, &s.plan)
	case *v1alpha1.TransferGrant:
		return getContent(ctx, s, key, "TransferGrant", o, &s.grant)
	}
	return s.Reader.Get(ctx, key, into, options...)
}

func getContent[T any, P interface {
	*T
	client.Object
}](ctx context.Context, s *mailboxReader, key client.ObjectKey, kind string, into P, kept *P) error {
	cached := metadataOf(kind)
	if err := s.Reader.Get(ctx, key, cached, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	if *kept != nil && (*kept).GetUID() == cached.GetUID() && (*kept).GetResourceVersion() == cached.GetResourceVersion() {
		*into = **kept
		return nil
	}
	if err := s.live.Get(ctx, key, into); err != nil {
		return err
	}
	content := *into
	*kept = &content
	return nil
}
