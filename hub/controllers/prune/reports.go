package prune

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// member is what is known of one, and what it is asked.
type member struct {
	name string
	// listedPages are the pages that the report's root lists.
	listedPages map[string]bool
	pages       map[string]*reportPage

	allotted []v1alpha1.PlannedPrune
	holders  map[imageKey]holder
}

// reportPage is what a page of a member's report says of prunes. Of all else that is on
// it nothing is kept.
type reportPage struct {
	sequence int64
	prunes   map[imageKey]v1alpha1.ReportedPrune
}

// ensureMember returns one, also where nothing is known of it yet. Callers hold r.mu.
func (r *Tracker) ensureMember(name string) *member {
	m := r.members[name]
	if m == nil {
		m = &member{name: name, pages: map[string]*reportPage{}}
		r.members[name] = m
	}
	return m
}

// SetRoot takes the root of a member's report; nil says that it is gone.
func (r *Tracker) SetRoot(name string, root *v1alpha1.ReportRoot) {
	var listed map[string]bool
	if root != nil {
		listed = make(map[string]bool, len(root.Pages))
		for _, ref := range root.Pages {
			listed[ref.Name] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.ensureMember(name)
	former := m.listedPages
	m.listedPages = listed
	for name, p := range m.pages {
		if len(p.prunes) > 0 && former[name] != listed[name] {
			r.notifyPrunesIn(m)
			return
		}
	}
}

// SetPage takes a page of a member's report.
func (r *Tracker) SetPage(name, pageName string, sequence int64, images []v1alpha1.ReportedImage) {
	p := &reportPage{sequence: sequence}
	for i := range images {
		if img := &images[i]; img.Prune != nil {
			if p.prunes == nil {
				p.prunes = map[imageKey]v1alpha1.ReportedPrune{}
			}
			p.prunes[imageKey{Namespace: img.Namespace, Name: img.Name}] = *img.Prune.DeepCopy()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.ensureMember(name)
	former := m.pages[pageName]
	m.pages[pageName] = p
	if former == nil {
		former = &reportPage{}
	}
	if !maps.EqualFunc(former.prunes, p.prunes, samePrune) {
		r.notifyPrunesIn(m)
	}
}

func samePrune(a, b v1alpha1.ReportedPrune) bool {
	if !a.Until.Equal(b.Until) {
		return false
	}
	a.Until, b.Until = nil, nil
	return a == b
}

// DropPage says that a page is gone.
func (r *Tracker) DropPage(name, pageName string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	if m == nil || m.pages[pageName] == nil {
		return
	}
	former := m.pages[pageName]
	delete(m.pages, pageName)
	if len(former.prunes) > 0 {
		r.notifyPrunesIn(m)
	}
}

// Forget says that nothing is known of what a member reports any more. What it is
// asked stays: that is taken back by those who ask.
func (r *Tracker) Forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	if m == nil {
		return
	}
	m.listedPages, m.pages = nil, map[string]*reportPage{}
	r.notifyPrunesIn(m)
	if len(m.holders) == 0 { // nor has anything a place in its plan
		delete(r.members, name)
	}
}

// notifyPrunesIn has the ImagePrunes looked at that run in a member. Callers hold r.mu.
func (r *Tracker) notifyPrunesIn(m *member) {
	for _, x := range r.prunes {
		if x.clusters[m.name] {
			r.notifyReportedChanged(x.name)
		}
	}
}

func (r *Tracker) notifyReportedChanged(prune string) {
	for _, do := range r.onReportedChange {
		do(prune)
	}
}

// Reported returns what a member says of an image that an ImagePrune is to prune, by
// the newest page that its root lists: what moved may stand on an older page, too,
// for a while.
func (r *Tracker) Reported(name string, prune types.UID, k imageKey, image types.UID) (told v1alpha1.PruneStatus, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	if m == nil {
		return told, false
	}
	newest := int64(-1)
	for name, p := range m.pages {
		if !m.listedPages[name] || p.sequence <= newest {
			continue
		}
		if is, has := p.prunes[k]; has && is.UID == prune && is.ImageUID == image {
			told, newest, found = is.PruneStatus, p.sequence, true
		}
	}
	return told, found
}
