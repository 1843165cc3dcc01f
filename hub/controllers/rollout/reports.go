package rollout

import (
	"maps"
	"unique"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// page is what a page of a member's report says.
type page struct {
	sequence int64
	images   map[key]reported
}

// reported is what a member says of one image.
type reported struct {
	rollout.Report
	origin v1alpha1.ImageOrigin
}

// one has texts that many images share stand in memory once.
func one[T ~string](text T) T { return T(unique.Make(string(text)).Value()) }

func reportedOf(img *v1alpha1.ReportedImage) reported {
	r := reported{rollout.ReportOf(img), one(img.Origin)}
	r.Revision, r.ServingRevision = one(r.Revision), one(r.ServingRevision)
	r.Phase, r.Reason, r.Item = one(r.Phase), one(r.Reason), one(r.Item)
	return r
}

// reported is what a member's report says of an image, by the newest page that its
// root lists: one that moved may stand on an older page, too, for a while.
func (m *member) reported(k key) (r reported) {
	newest := int64(-1)
	for name, p := range m.pages {
		if img, has := p.images[k]; has && p.sequence > newest {
			if _, listed := m.listed[name]; listed {
				r, newest = img, p.sequence
			}
		}
	}
	return r
}

// SetRoot takes the root of a member's report; nil says that it is gone.
func (b *Board) SetRoot(name string, root *v1alpha1.ReportRoot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.member(name)
	before, acknowledged := m.listed, m.acknowledged
	m.listed, m.acknowledged = nil, nil
	if root != nil {
		m.acknowledged = root.Plan
		m.listed = make(map[string]int64, len(root.Pages))
		for _, ref := range root.Pages {
			m.listed[ref.Name] = ref.Sequence
		}
	}
	for name, p := range m.pages {
		_, was := before[name]
		if _, is := m.listed[name]; is != was {
			for k := range p.images {
				b.concerns(m, k)
			}
		}
	}
	if !maps.Equal(before, m.listed) || !sameVersion(acknowledged, m.acknowledged) {
		b.told()
	}
	b.tidy(m)
}

func sameVersion(a, b *v1alpha1.PlanVersion) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// SetPage takes a page of a member's report, of which nothing is kept that may
// change.
func (b *Board) SetPage(name, pageName string, sequence int64, images []v1alpha1.ReportedImage) {
	p := &page{sequence: sequence, images: make(map[key]reported, len(images))}
	for i := range images {
		p.images[keyOf(images[i].Namespace, images[i].Name)] = reportedOf(&images[i])
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.member(name)
	before := m.pages[pageName]
	m.pages[pageName] = p
	b.turned(m, before, p)
}

// DropPage says that a page is gone.
func (b *Board) DropPage(name, pageName string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[name]
	if m == nil || m.pages[pageName] == nil {
		return
	}
	before := m.pages[pageName]
	delete(m.pages, pageName)
	b.turned(m, before, &page{})
	b.tidy(m)
}

// Forget says that nothing is known of what a member reports any more.
func (b *Board) Forget(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[name]
	if m == nil {
		return
	}
	pages := m.pages
	m.pages, m.listed, m.acknowledged = map[string]*page{}, nil, nil
	for _, p := range pages {
		b.turned(m, p, &page{})
	}
	b.tidy(m)
}

// turned has those looked at that a change of a page concerns; before is nil for a
// page that is new.
func (b *Board) turned(m *member, before, now *page) {
	if before == nil {
		before = &page{}
	}
	for k, img := range now.images {
		if old, was := before.images[k]; !was || old != img {
			b.concerns(m, k)
		}
	}
	for k := range before.images {
		if _, is := now.images[k]; !is {
			b.concerns(m, k)
		}
	}
	b.told()
}

// told has those looked at that wait for members to say that images are gone.
func (b *Board) told() {
	for _, c := range b.order {
		if c.leaving() {
			b.look(c)
		}
	}
}

// holds tells that a member may still have an image that a plan has asked for, of
// those that a FleetDiskImage which is leaving has alone. It does not once it reports none, but those
// that go by themselves when nobody references them any more, and has
// acknowledged a plan that asks for none.
func (m *member) holds(names []key) bool {
	for _, k := range names {
		r := m.reported(k)
		if m.plans(k) || r.There && r.origin == v1alpha1.OriginPlan && r.Phase != v1alpha1.PhaseTerminating && r.Phase != v1alpha1.PhaseDeleting {
			return true
		}
	}
	if m.plan == nil {
		return false // nothing was ever asked of it
	}
	spec := &m.plan.Spec
	if len(spec.Retired) < v1alpha1.MaxRetiredImages && !m.retires(names) {
		return true
	}
	if a := m.acknowledged; a == nil || a.Compare(spec.PlanVersion) != 0 || a.Hash != "" && a.Hash != spec.Hash {
		return true
	}
	for name, sequence := range m.listed {
		if p := m.pages[name]; p == nil || p.sequence != sequence {
			return true
		}
	}
	return false
}

// retires tells whether the plan of a member has all of these images go.
func (m *member) retires(names []key) bool {
	retired := make(map[key]bool, len(m.plan.Spec.Retired))
	for _, r := range m.plan.Spec.Retired {
		retired[keyOf(r.Namespace, r.Name)] = true
	}
	for _, k := range names {
		if !retired[k] {
			return false
		}
	}
	return true
}
