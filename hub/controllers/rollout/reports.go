package rollout

import (
	"maps"
	"slices"
	"unique"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// reportPage is a page of a member's report.
type reportPage struct {
	sequence int64
	images   map[imageKey]reportedImage
}

// reportedImage is what a member reports of one image.
type reportedImage struct {
	rollout.Report
	origin v1alpha1.ImageOrigin
}

// maxVersionBytes bounds the version of an agent, which the member chooses.
const maxVersionBytes = 64

// intern lets equal strings of many images share memory.
func intern[T ~string](text T) T { return T(unique.Make(string(text)).Value()) }

func newReportedImage(img *v1alpha1.ReportedImage) reportedImage {
	r := reportedImage{rollout.NewReport(img), intern(img.Origin)}
	r.Revision, r.ServingRevision = intern(r.Revision), intern(r.ServingRevision)
	r.Retry = intern(r.Retry)
	r.Phase, r.Reason, r.ItemState, r.ItemReason = intern(r.Phase), intern(r.Reason), intern(r.ItemState), intern(r.ItemReason)
	return r
}

// newestReport returns what the newest listed page reports of an image.
func (m *member) newestReport(key imageKey) (r reportedImage) {
	newest := v1alpha1.PageRef{Sequence: -1}
	for name, p := range m.pages {
		page := v1alpha1.PageRef{Name: name, Sequence: p.sequence}
		img, ok := p.images[key]
		if !ok || !page.Supersedes(newest) {
			continue
		}
		if _, listed := m.listedPages[name]; listed {
			r, newest = img, page
		}
	}
	return r
}

// SetRoot stores the root of a member's report; nil: it is gone.
func (f *FleetState) SetRoot(name string, root *v1alpha1.ReportRoot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.ensureMember(name)
	formerPages, formerAcknowledged := m.listedPages, m.acknowledged
	m.listedPages, m.acknowledged = nil, nil
	f.setAgent(m, root)
	if root != nil {
		m.acknowledged = root.Plan
		m.listedPages = make(map[string]int64, len(root.Pages))
		for _, ref := range root.Pages {
			m.listedPages[ref.Name] = ref.Sequence
		}
	}
	for name, p := range m.pages {
		_, listedBefore := formerPages[name]
		if _, listed := m.listedPages[name]; listed != listedBefore {
			for key := range p.images {
				f.invalidateImage(m, key)
			}
		}
	}
	if !maps.Equal(formerPages, m.listedPages) || !samePlanVersion(formerAcknowledged, m.acknowledged) {
		f.enqueueDeleting()
	}
	f.dropIfUnknown(m)
}

// setAgent stores what the root says about the agent. It requires f.mu.
func (f *FleetState) setAgent(m *member, root *v1alpha1.ReportRoot) {
	var version string
	var fields []string
	knowsRetry := false
	if root != nil {
		knowsRetry = slices.Contains(root.PlanFields, v1alpha1.PlanFieldRetry)
		version, fields = intern(v1alpha1.SanitizeText(root.AgentVersion, maxVersionBytes)), root.ImageFields
	}
	if m.knowsRetry == knowsRetry && m.agentVersion == version && slices.Equal(m.imageFields, fields) {
		return
	}
	learnsRetry := m.knowsRetry != knowsRetry
	m.agentVersion, m.imageFields, m.knowsRetry = version, slices.Clone(fields), knowsRetry
	for i := range m.imageFields {
		m.imageFields[i] = intern(m.imageFields[i])
	}
	for _, img := range f.sorted {
		if img.usesRecentFields() || learnsRetry || img.stored.Spec.Retry != nil {
			img.dirty[m.name] = true
			f.enqueueImages(img)
		}
	}
}

func samePlanVersion(a, b *v1alpha1.PlanVersion) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// SetPage stores a page of a member's report. It keeps nothing of images.
func (f *FleetState) SetPage(name, pageName string, sequence int64, images []v1alpha1.ReportedImage) {
	page := &reportPage{sequence: sequence, images: make(map[imageKey]reportedImage, len(images))}
	for i := range images {
		page.images[newImageKey(images[i].Namespace, images[i].Name)] = newReportedImage(&images[i])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.ensureMember(name)
	former := m.pages[pageName]
	if former == nil {
		former = &reportPage{}
	}
	m.pages[pageName] = page
	f.invalidateChanged(m, former, page)
}

// DropPage removes a page of a member's report.
func (f *FleetState) DropPage(name, pageName string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil || m.pages[pageName] == nil {
		return
	}
	former := m.pages[pageName]
	delete(m.pages, pageName)
	f.invalidateChanged(m, former, &reportPage{})
	f.dropIfUnknown(m)
}

// Forget drops what a member reports.
func (f *FleetState) Forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil {
		return
	}
	pages := m.pages
	m.pages, m.listedPages, m.acknowledged = map[string]*reportPage{}, nil, nil
	f.setAgent(m, nil)
	for _, p := range pages {
		f.invalidateChanged(m, p, &reportPage{})
	}
	f.dropIfUnknown(m)
}

// invalidateChanged invalidates the images that differ between two states of a page.
func (f *FleetState) invalidateChanged(m *member, before, after *reportPage) {
	for key, img := range after.images {
		if old, ok := before.images[key]; !ok || old != img {
			f.invalidateImage(m, key)
		}
	}
	for key := range before.images {
		if _, ok := after.images[key]; !ok {
			f.invalidateImage(m, key)
		}
	}
	f.enqueueDeleting()
}

// enqueueDeleting enqueues the FleetDiskImages that wait for their images to be deleted.
func (f *FleetState) enqueueDeleting() {
	for _, img := range f.sorted {
		if img.isDeletingImages() {
			f.enqueueImages(img)
		}
	}
}

// mayHoldAny reports whether a member may still have one of these images because of a
// plan. It does not once it reports none, except images that are being deleted, and has
// acknowledged a plan without them. Anything unknown counts as held.
func (m *member) mayHoldAny(names []imageKey) bool {
	for _, key := range names {
		r := m.newestReport(key)
		if m.plansImage(key) || r.Exists && r.origin == v1alpha1.OriginPlan && r.Phase != v1alpha1.PhaseTerminating && r.Phase != v1alpha1.PhaseDeleting {
			return true
		}
	}
	if m.plan == nil {
		return false // it never had a plan
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

// retiresAll reports whether the plan retires all of these images.
func (m *member) retiresAll(names []imageKey) bool {
	retired := make(map[imageKey]bool, len(m.plan.Spec.Retired))
	for _, r := range m.plan.Spec.Retired {
		retired[newImageKey(r.Namespace, r.Name)] = true
	}
	for _, key := range names {
		if !retired[key] {
			return false
		}
	}
	return true
}
