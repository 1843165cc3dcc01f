package prunetracker

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Loader tells a Tracker which objects are stored when this replica is elected.
type Loader struct {
	Live    client.Reader
	Tracker *Tracker
}

var _ manager.LeaderElectionRunnable = &Loader{}

// NeedLeaderElection is true: objects listed before the election may have changed.
func (l *Loader) NeedLeaderElection() bool { return true }

// listRetryDelay is the wait after a failed list.
const listRetryDelay = time.Second

// Start lists until it succeeds, then returns.
func (l *Loader) Start(ctx context.Context) error {
	for {
		stored, err := l.list(ctx)
		if err == nil {
			l.Tracker.ExpectStored(stored)
			return nil
		}
		log.FromContext(ctx).Error(err, "Failed to list PruneReports and ImagePrunes; requesting nothing from members and retrying", "retryAfter", listRetryDelay)
		if trigger.Sleep(ctx, listRetryDelay) != nil {
			return nil // the hub stops
		}
	}
}

// list returns all stored objects. Objects created afterwards have no requests yet.
func (l *Loader) list(ctx context.Context) (stored []Object, err error) {
	for _, kind := range []string{KindReport, KindPrune} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
		if err := l.Live.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing %ss: %w", kind, err)
		}
		for i := range list.Items {
			stored = append(stored, Object{kind, list.Items[i].Name})
		}
	}
	return stored, nil
}
