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

// Get returns what the cache knows to be there, or something newer.
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

type deepCopyable[T any] interface {
	client.Object
	DeepCopyInto(T)
}

func getContent[T deepCopyable[T]](ctx context.Context, s *mailboxReader, key client.ObjectKey, kind string, into T, kept *T) error {
	cached := metadataOf(kind)
	if err := s.Reader.Get(ctx, key, cached); err != nil {
		return err
	}
	var none T
	if any(*kept) != any(none) && (*kept).GetUID() == cached.GetUID() && (*kept).GetResourceVersion() == cached.GetResourceVersion() {
		(*kept).DeepCopyInto(into)
		return nil
	}
	if err := s.live.Get(ctx, key, into); err != nil {
		return err
	}
	*kept = into.DeepCopyObject().(T)
	return nil
}
