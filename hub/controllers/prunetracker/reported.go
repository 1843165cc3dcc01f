package prunetracker

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

var _ report.Reader = &Tracker{}

// member holds what is requested from a member and what it reports of prunes.
type member struct {
	name string
	// listedPages are the pages that the report's root lists.
	listedPages map[string]bool
	pages       map[string]*reportPage

	// allotted are the requests that its plan has room for; holders have a place in
	// the plan, requested or reserved.
	allotted []v1alpha1.PlannedPrune
	holders  map[imageKey]holder
}

// reportPage keeps the prune results of a report page, and nothing else of it.
type reportPage struct {
	sequence int64
	prunes   map[imageKey]v1alpha1.ReportedPrune
}

// ensureMember requires t.mu.
func (t *Tracker) ensureMember(name string) *member {
	m := t.members[name]
	if m == nil {
		m = &member{name: name, pages: map[string]*reportPage{}}
		t.members[name] = m
	}
	return m
}

// SetRoot stores the root of a member's report; nil: it is gone.
func (t *Tracker) SetRoot(name string, root *v1alpha1.ReportRoot) {
	var listed map[string]bool
	if root != nil {
		listed = make(map[string]bool, len(root.Pages))
		for _, ref := range root.Pages {
			listed[ref.Name] = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.ensureMember(name)
	former := m.listedPages
	m.listedPages = listed
	for name, p := range m.pages {
		if len(p.prunes) > 0 && former[name] != listed[name] {
			t.notifyPrunesIn(m)
			return
		}
	}
}

// SetPage stores the prune results on a page of a member's report.
func (t *Tracker) SetPage(name, pageName string, sequence int64, images []v1alpha1.ReportedImage) {
	page := &reportPage{sequence: sequence}
	for i := range images {
		if img := &images[i]; img.Prune != nil {
			if page.prunes == nil {
				page.prunes = map[imageKey]v1alpha1.ReportedPrune{}
			}
			page.prunes[imageKey{Namespace: img.Namespace, Name: img.Name}] = *img.Prune.DeepCopy()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.ensureMember(name)
	former := m.pages[pageName]
	m.pages[pageName] = page
	if former == nil {
		former = &reportPage{}
	}
	if !maps.EqualFunc(former.prunes, page.prunes, samePrune) {
		t.notifyPrunesIn(m)
	}
}

func samePrune(a, b v1alpha1.ReportedPrune) bool {
	if !a.Until.Equal(b.Until) {
		return false
	}
	a.Until, b.Until = nil, nil
	return a == b
}

// DropPage removes a page of a member's report.
func (t *Tracker) DropPage(name, pageName string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.members[name]
	if m == nil || m.pages[pageName] == nil {
		return
	}
	former := m.pages[pageName]
	delete(m.pages, pageName)
	if len(former.prunes) > 0 {
		t.notifyPrunesIn(m)
	}
}

// Forget drops what a member reports. Its requests stay until the controllers withdraw
// them.
func (t *Tracker) Forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.members[name]
	if m == nil {
		return
	}
	m.listedPages, m.pages = nil, map[string]*reportPage{}
	t.notifyPrunesIn(m)
	t.dropIfUnused(m)
}

// dropIfUnused drops a member that reports nothing, and of which nothing is requested; not before
// its plan, which may still name a request, is to be made. It requires t.mu.
func (t *Tracker) dropIfUnused(m *member) {
	if t.ready() && m.listedPages == nil && len(m.pages) == 0 && len(m.holders) == 0 {
		delete(t.members, m.name)
	}
}

// notifyPrunesIn requires t.mu.
func (t *Tracker) notifyPrunesIn(m *member) {
	for _, p := range t.prunes {
		if p.clusters[m.name] {
			t.notifyReportedChanged(p.name)
		}
	}
}

func (t *Tracker) notifyReportedChanged(prune string) {
	for _, do := range t.onReportedChange {
		do(prune)
	}
}

// Reported returns what a member reports of an image that an ImagePrune prunes, on the newest listed
// page.
func (t *Tracker) Reported(name string, prune types.UID, image types.NamespacedName, imageUID types.UID) (status v1alpha1.PruneStatus, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.members[name]
	if m == nil {
		return status, false
	}
	newest := v1alpha1.PageRef{Sequence: -1}
	for name, p := range m.pages {
		page := v1alpha1.PageRef{Name: name, Sequence: p.sequence}
		r, ok := p.prunes[image]
		if ok && r.UID == prune && r.ImageUID == imageUID && m.listedPages[name] && page.Supersedes(newest) {
			status, newest, found = r.PruneStatus, page, true
		}
	}
	return status, found
}
