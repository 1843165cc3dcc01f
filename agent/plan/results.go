package plan

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Key names a planned image.
type Key struct{ Namespace, Name string }

// KeyForImage returns the key of a planned image.
func KeyForImage(p *v1alpha1.PlannedImage) Key { return Key{p.Namespace, p.Name} }

// KeyForPrune returns the key of the image that a prune names.
func KeyForPrune(p *v1alpha1.PlannedPrune) Key { return Key{p.Namespace, p.Name} }

// Results are the results of the plan's images. They are safe for concurrent use.
type Results struct {
	mu        sync.Mutex
	known     bool
	items     map[Key]v1alpha1.PlanItemReport
	prunes    map[Key]v1alpha1.ReportedPrune
	listeners []func()
}

// OnChange adds a function to be called after every change, in the goroutine that made it.
// It must not block. OnChange has to be called before the first change.
func (r *Results) OnChange(listener func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners = append(r.listeners, listener)
}

// Known is true once the plan has been read, or found to be missing. Before that, no
// results mean nothing.
func (r *Results) Known() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}

// SetItems replaces the results of the plan's images.
func (r *Results) SetItems(items map[Key]v1alpha1.PlanItemReport) {
	r.mu.Lock()
	unchanged := r.known && maps.Equal(r.items, items)
	r.known, r.items = true, maps.Clone(items)
	r.unlockAndNotify(!unchanged)
}

// Items returns the results of the plan's images.
func (r *Results) Items() map[Key]v1alpha1.PlanItemReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.items)
}

// SetPrunes replaces the results of the prunes whose image is gone. (The result of any other
// prune is in its image's status.) It has to be called before SetItems, which makes the
// results known.
func (r *Results) SetPrunes(prunes map[Key]v1alpha1.ReportedPrune) {
	r.mu.Lock()
	unchanged := maps.EqualFunc(r.prunes, prunes, func(a, b v1alpha1.ReportedPrune) bool { return equality.Semantic.DeepEqual(a, b) })
	r.prunes = maps.Clone(prunes)
	r.unlockAndNotify(!unchanged)
}

// Prunes returns the results of the prunes whose image is gone.
func (r *Results) Prunes() map[Key]v1alpha1.ReportedPrune {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.prunes)
}

// unlockAndNotify unlocks, then calls the listeners if there was a change.
func (r *Results) unlockAndNotify(changed bool) {
	listeners := r.listeners
	r.mu.Unlock()
	if !changed {
		return
	}
	for _, notify := range listeners {
		notify()
	}
}
