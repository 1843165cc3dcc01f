package rollout

import (
	"maps"
	"unique"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// reportPage is what a page of a member's report says.
type reportPage struct {
	sequence int64
	images   map[imageKey]reportedImage
}

// reportedImage is what a member says of one image.
type reportedImage struct {
	rollout.Report
	origin v1alpha1.ImageOrigin
}

// intern has texts that many images share stand in memory once.
func intern[T ~string](text T) T { return T(unique.Make(string(text)).Value()) }

func newReportedImage(img *v1alpha1.ReportedImage) reportedImage {
	r := reportedImage{rollout.NewReport(img), intern(img.Origin)}
	r.Revision, r.ServingRevision = intern(r.Revision), intern(r.ServingRevision)
	r.Phase, r.Reason, r.ItemState = intern(r.Phase), intern(r.Reason), intern(r.ItemState)
	return r
}

// newestReport is what a member's report says of an image, by the newest page that its
// root lists: one that moved may stand on an older page, too, for a while.
func (m *member) newestReport(k imageKey) (r reportedImage) {
	newest := int64(-1)
	for name, p := range m.pages {
		if img, has := p.images[k]; has && p.sequence > newest {
			if _, listed := m.listedPages[name]; listed {
				r, newest = img, p.sequence
			}
		}
	}
	return r
}

// SetRoot takes the root of a member's report; nil says that it is gone.
func (b *FleetState) SetRoot(name string, root *v1alpha1.ReportRoot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.ensureMember(name)
	before, acknowledged := m.listedPages, m.acknowledged
	m.listedPages, m.acknowledged = nil, nil
	if root != nil {
		m.acknowledged = root.Plan
		m.listedPages = make(map[string]int64, len(root.Pages))
		for _, ref := range root.Pages {
			m.listedPages[ref.Name] = ref.Sequence
		}
	}
	for name, p := range m.pages {
		_, was := before[name]
		if _, is := m.listedPages[name]; is != was {
			for k := range p.images {
				b.invalidateImage(m, k)
			}
		}
	}
	if !maps.Equal(before, m.listedPages) || !samePlanVersion(acknowledged, m.acknowledged) {
		b.enqueueDeleting()
	}
	b.dropIfUnknown(m)
}

func samePlanVersion(a, b *v1alpha1.PlanVersion) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// SetPage takes a page of a member's report, of which nothing is kept that may
// change.
func (b *FleetState) SetPage(name, pageName string, sequence int64, images []v1alpha1.ReportedImage) {
	p := &reportPage{sequence: sequence, images: make(map[imageKey]reportedImage, len(images))}
	for i := range images {
		p.images[newImageKey(images[i].Namespace, images[i].Name)] = newReportedImage(&images[i])
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.ensureMember(name)
	before := m.pages[pageName]
	m.pages[pageName] = p
	b.invalidateChanged(m, before, p)
}

// DropPage says that a page is gone.
func (b *FleetState) DropPage(name, pageName string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[name]
	if m == nil || m.pages[pageName] == nil {
		return
	}
	before := m.pages[pageName]
	delete(m.pages, pageName)
	b.invalidateChanged(m, before, &reportPage{})
	b.dropIfUnknown(m)
}

// Forget says that nothing is known of what a member reports any more.
func (b *FleetState) Forget(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.members[name]
	if m == nil {
		return
	}
	pages := m.pages
	m.pages, m.listedPages, m.acknowledged = map[string]*reportPage{}, nil, nil
	for _, p := range pages {
		b.invalidateChanged(m, p, &reportPage{})
	}
	b.dropIfUnknown(m)
}

// invalidateChanged has those looked at that a change of a page concerns; before is nil for a
// page that is new.
func (b *FleetState) invalidateChanged(m *member, before, now *reportPage) {
	if before == nil {
		before = &reportPage{}
	}
	for k, img := range now.images {
		if old, was := before.images[k]; !was || old != img {
			b.invalidateImage(m, k)
		}
	}
	for k := range before.images {
		if _, is := now.images[k]; !is {
			b.invalidateImage(m, k)
		}
	}
	b.enqueueDeleting()
}

// enqueueDeleting has those looked at that wait for members to say that images are gone.
func (b *FleetState) enqueueDeleting() {
	for _, c := range b.sorted {
		if c.isDeletingImages() {
			b.enqueueImages(c)
		}
	}
}

// mayHoldAny tells that a member may still have an image that a plan has asked for, of
// those that a FleetDiskImage which is leaving has alone. It does not once it reports none, but those
// that go by themselves when nobody references them any more, and has
// acknowledged a plan that asks for none.
func (m *member) mayHoldAny(names []imageKey) bool {
	for _, k := range names {
		r := m.newestReport(k)
		if m.plansImage(k) || r.Exists && r.origin == v1alpha1.OriginPlan && r.Phase != v1alpha1.PhaseTerminating && r.Phase != v1alpha1.PhaseDeleting {
			return true
		}
	}
	if m.plan == nil {
		return false // nothing was ever asked of it
	}
	spec := &m.plan.Spec
	if len(spec.Retired) < v1alpha1.MaxRetiredImages && !m.retiresAll(names) {
		return true
	}
	if a := m.acknowledged; a == nil || a.Compare(spec.PlanVersion) != 0 || a.Hash != "" && a.Hash != spec.Hash {
		return true
	}
	for name, sequence := range m.listedPages {
		if p := m.pages[name]; p == nil || p.sequence != sequence {
			return true
		}
	}
	return false
}

// retiresAll tells whether the plan of a member has all of these images go.
func (m *member) retiresAll(names []imageKey) bool {
	retired := make(map[imageKey]bool, len(m.plan.Spec.Retired))
	for _, r := range m.plan.Spec.Retired {
		retired[newImageKey(r.Namespace, r.Name)] = true
	}
	for _, k := range names {
		if !retired[k] {
			return false
		}
	}
	return true
}
