// Package apidiscovery tells which kinds of other projects a cluster serves. CDI or
// the snapshot controller may be installed after the agent: it runs on without
// them and takes them up when they come.
package apidiscovery

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// discoveryInterval of asking whether a kind is served by now.
const discoveryInterval = 10 * time.Second

// KindTracker keeps track of kinds that may come later. It is a Runnable of a
// controller-runtime manager and runs where the controllers run.
type KindTracker struct {
	mapper meta.RESTMapper

	callbacks map[schema.GroupVersionKind][]func(context.Context) error

	mu         sync.Mutex
	discovered bool
	served     map[schema.GroupVersionKind]bool
}

// NewKindTracker returns a Served that asks a mapper.
func NewKindTracker(mapper meta.RESTMapper) *KindTracker {
	return &KindTracker{
		mapper:    mapper,
		callbacks: map[schema.GroupVersionKind][]func(context.Context) error{},
		served:    map[schema.GroupVersionKind]bool{},
	}
}

// IsServed tells whether a kind has been found to be served, and what was to be
// done then has been done.
func (s *KindTracker) IsServed(gvk schema.GroupVersionKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served[gvk]
}

// Discovered tells that the cluster has been asked about every kind. Before, that a
// kind is not known to be served says nothing about what exists of it.
func (s *KindTracker) Discovered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.discovered
}

// WhenServed has something done once, as soon as a kind is served. Call it
// before Start.
func (s *KindTracker) WhenServed(gvk schema.GroupVersionKind, then func(context.Context) error) {
	s.callbacks[gvk] = append(s.callbacks[gvk], then)
}

// NeedLeaderElection is true: what waits for kinds are controllers.
func (s *KindTracker) NeedLeaderElection() bool { return true }

// Start asks until every kind is served or ctx ends. An error of what was to be
// done then is returned.
func (s *KindTracker) Start(ctx context.Context) error {
	var failed error
	_ = wait.PollUntilContextCancel(ctx, discoveryInterval, true, func(ctx context.Context) (bool, error) {
		answered := true
		for gvk, then := range s.callbacks {
			if _, err := s.mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
				if !meta.IsNoMatchError(err) {
					answered = false
					log.FromContext(ctx).Error(err, "Asking whether the cluster serves a kind", "kind", gvk.GroupKind())
				}
				continue
			}
			for _, do := range then {
				if failed = do(ctx); failed != nil {
					failed = fmt.Errorf("taking up kind %s: %w", gvk.GroupKind(), failed)
					return true, nil
				}
			}
			delete(s.callbacks, gvk)
			s.mu.Lock()
			s.served[gvk] = true
			s.mu.Unlock()
		}
		s.mu.Lock()
		s.discovered = s.discovered || answered
		s.mu.Unlock()
		return len(s.callbacks) == 0, nil
	})
	return failed
}
