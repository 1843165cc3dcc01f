package plan

import (
	"maps"
	"sync"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Key names a planned image.
type Key struct{ Namespace, Name string }

// KeyOf a planned image.
func KeyOf(p *v1alpha1.PlannedImage) Key { return Key{p.Namespace, p.Name} }

// Results are what became of the images that the plan names. They are safe to be
// used by several at a time.
type Results struct {
	mu       sync.Mutex
	known    bool
	items    map[Key]v1alpha1.PlanItemReport
	onChange []func()
}

// OnChange has something done after every change, in the goroutine that made it:
// it must not block. Call it before the first Set.
func (r *Results) OnChange(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onChange = append(r.onChange, do)
}

// Set replaces all results.
func (r *Results) Set(items map[Key]v1alpha1.PlanItemReport) {
	r.mu.Lock()
	same := r.known && maps.Equal(r.items, items)
	r.known, r.items = true, maps.Clone(items)
	tell := r.onChange
	r.mu.Unlock()
	if same {
		return
	}
	for _, do := range tell {
		do()
	}
}

// Get returns all results.
func (r *Results) Get() map[Key]v1alpha1.PlanItemReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.items)
}

// Known tells that the plan, or that there is none, has been looked at: before,
// that there are no results says nothing.
func (r *Results) Known() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}
