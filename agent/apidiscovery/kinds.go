// Package apidiscovery tracks which kinds of other projects a cluster serves, watches them
// once they are served, and identifies the cluster.
package apidiscovery

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// discoveryInterval is how often the cluster is asked for kinds that it does not serve yet.
const discoveryInterval = 10 * time.Second

// KindTracker tracks kinds that may be installed after the agent, such as CDI's, and removed
// again. It is a Runnable of a controller-runtime manager.
type KindTracker struct {
	mapper meta.RESTMapper
	// discovery asks the API server; nil where a kind that was served stays so.
	discovery discovery.DiscoveryInterface
	// onChange is called when a kind that was served is removed, or is served again.
	onChange func(context.Context)

	// callbacks by the kind that they wait for. Only Start removes any.
	callbacks map[schema.GroupVersionKind][]func(context.Context) error

	mu         sync.Mutex
	discovered bool
	// served has an entry for each kind whose callbacks have returned.
	served map[schema.GroupVersionKind]bool

	// The fields below belong to Start.

	// absentSince is since when the API server answers that it does not serve a kind of served.
	absentSince map[schema.GroupVersionKind]time.Time
	recheckedAt time.Time
}

// NewKindTracker returns a KindTracker that asks a mapper.
func NewKindTracker(mapper meta.RESTMapper) *KindTracker {
	return &KindTracker{
		mapper:    mapper,
		callbacks: map[schema.GroupVersionKind][]func(context.Context) error{},
		served:    map[schema.GroupVersionKind]bool{}, absentSince: map[schema.GroupVersionKind]time.Time{},
	}
}

// IsServed reports whether a kind was found to be served and its callbacks have returned, and it was not
// found to be removed since.
func (t *KindTracker) IsServed(gvk schema.GroupVersionKind) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.served[gvk]
}

// Discovered reports whether the cluster has answered for every kind. Until then a kind for
// which IsServed is false may be served and have objects.
func (t *KindTracker) Discovered() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.discovered
}

// WhenServed registers a callback that is called once, as soon as a kind is served. It has
// to be called before Start.
func (t *KindTracker) WhenServed(gvk schema.GroupVersionKind, callback func(context.Context) error) {
	t.callbacks[gvk] = append(t.callbacks[gvk], callback)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: the callbacks start watches
// of controllers, which run in the leader.
func (t *KindTracker) NeedLeaderElection() bool { return true }

// Start asks until every kind is served, or with Recheck until ctx ends. It returns the first error of
// a callback.
func (t *KindTracker) Start(ctx context.Context) error {
	var failed error
	_ = wait.PollUntilContextCancel(ctx, discoveryInterval, true, func(ctx context.Context) (bool, error) {
		allAnswered := true
		for gvk, callbacks := range t.callbacks {
			if _, err := t.mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
				if !meta.IsNoMatchError(err) {
					allAnswered = false
					log.FromContext(ctx).Error(err, "Failed to check whether the cluster serves a kind; retrying", "kind", gvk.GroupKind())
				}
				continue
			}
			for _, callback := range callbacks {
				if failed = callback(ctx); failed != nil {
					failed = fmt.Errorf("starting to use kind %s: %w", gvk.GroupKind(), failed)
					return true, nil
				}
			}
			delete(t.callbacks, gvk)
			t.mu.Lock()
			t.served[gvk] = true
			t.mu.Unlock()
		}
		t.mu.Lock()
		t.discovered = t.discovered || allAnswered
		t.mu.Unlock()
		if t.discovery == nil {
			return len(t.callbacks) == 0, nil
		}
		t.recheck(ctx)
		return false, nil
	})
	return failed
}
