package plan

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Key names a planned image.
type Key struct{ Namespace, Name string }

// KeyForImage a planned image.
func KeyForImage(p *v1alpha1.PlannedImage) Key { return Key{p.Namespace, p.Name} }

// KeyForPrune names an image that is to be pruned.
func KeyForPrune(p *v1alpha1.PlannedPrune) Key { return Key{p.Namespace, p.Name} }

// Results are what became of the images that the plan names. They are safe to be
// used by several at a time.
type Results struct {
	mu        sync.Mutex
	known     bool
	items     map[Key]v1alpha1.PlanItemReport
	prunes    map[Key]v1alpha1.ReportedPrune
	listeners []func()
}

// OnChange has something done after every change, in the goroutine that made it:
// it must not block. Call it before the first Set.
func (r *Results) OnChange(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners = append(r.listeners, do)
}

// SetItems replaces all results.
func (r *Results) SetItems(items map[Key]v1alpha1.PlanItemReport) {
	r.mu.Lock()
	same := r.known && maps.Equal(r.items, items)
	r.known, r.items = true, maps.Clone(items)
	r.unlockAndNotify(same)
}

// Items returns all results.
func (r *Results) Items() map[Key]v1alpha1.PlanItemReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.items)
}

// SetPrunes replaces all that is told of prunes whose image is not there any more:
// of one that is, its own status tells. Before Set, so that who knows the results
// knows these.
func (r *Results) SetPrunes(gone map[Key]v1alpha1.ReportedPrune) {
	r.mu.Lock()
	same := maps.EqualFunc(r.prunes, gone, func(a, b v1alpha1.ReportedPrune) bool { return equality.Semantic.DeepEqual(a, b) })
	r.prunes = maps.Clone(gone)
	r.unlockAndNotify(same)
}

// Prunes returns all that is told of prunes whose image is not there any more.
func (r *Results) Prunes() map[Key]v1alpha1.ReportedPrune {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.prunes)
}

// unlockAndNotify ends a change: it unlocks.
func (r *Results) unlockAndNotify(same bool) {
	do := r.listeners
	r.mu.Unlock()
	if same {
		return
	}
	for i := range do {
		do[i]()
	}
}

// Known tells that the plan, or that there is none, has been looked at: before,
// that there are no results says nothing.
func (r *Results) Known() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}
