package rollout

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// member is what is known of a member, with or without a MemberCluster.
type member struct {
	name        string
	present     bool
	uid         types.UID
	labels      map[string]string
	offline     string // the reason
	onlineSince time.Time
	// windowOpensAt and windowOpenedAt are those of its status; zero for none.
	windowOpensAt, windowOpenedAt time.Time
	// uptime belongs to the cache and must not be changed.
	uptime v1alpha1.MemberUptime

	// agentVersion and imageFields are those of the report's root; nil fields are unknown.
	agentVersion string
	imageFields  []string
	// knowsRetry: the agent follows the retries of its plan.
	knowsRetry bool
	// listedPages are the pages that the report's root lists, with their sequences.
	listedPages  map[string]int64
	acknowledged *v1alpha1.PlanVersion
	pages        map[string]*reportPage

	// plan belongs to the cache and must not be changed; nil for none.
	plan          *v1alpha1.ClusterPlan
	plannedImages map[imageKey]plannedImage
	// pendingStarts counts the started images that plan does not show yet.
	pendingStarts int
	// planRefused: the API server refuses the next plan.
	planRefused bool
}

// plannedImage is an item of a plan with the hashes of its spec.
type plannedImage struct {
	*v1alpha1.PlannedImage
	specHashes
}

// specHashes are interned: there are clusters × images of them.
type specHashes struct{ revision, digest string }

// hashedSpec is a spec with its hashes.
type hashedSpec struct {
	spec *v1alpha1.VMDiskImageSpec
	specHashes
}

// maxHashedNames bounds the names of which the last spec is remembered.
const maxHashedNames = 4096

// hashSpec returns the hashes of a spec that a plan has under a name. Most members have the
// same one there, so that it is rarely hashed. It requires f.mu.
func (f *FleetState) hashSpec(key imageKey, spec *v1alpha1.VMDiskImageSpec) specHashes {
	if last, ok := f.lastHashed[key]; ok && last.spec.Equal(spec) {
		return last.specHashes
	}
	if len(f.lastHashed) >= maxHashedNames {
		clear(f.lastHashed)
	}
	hashed := hashedSpec{spec.DeepCopy(), specHashes{intern(spec.Revision()), intern(spec.SourceDigest())}}
	f.lastHashed[key] = hashed
	return hashed.specHashes
}

func (f *FleetState) ensureMember(name string) *member {
	m := f.members[name]
	if m == nil {
		m = &member{name: name, pages: map[string]*reportPage{}}
		f.members[name] = m
	}
	return m
}

// dropIfUnknown drops a member of which nothing is known.
func (f *FleetState) dropIfUnknown(m *member) {
	if !m.present && m.plan == nil && m.listedPages == nil && len(m.pages) == 0 {
		delete(f.members, m.name)
	}
}

// windowTimes returns when a member may import again, and since when it may; zero for none.
func windowTimes(w *v1alpha1.MemberWindow) (opensAt, openedAt time.Time) {
	if w != nil && w.OpensAt != nil {
		opensAt = w.OpensAt.Time
	}
	if w != nil && w.OpenedAt != nil {
		openedAt = w.OpenedAt.Time
	}
	return opensAt, openedAt
}

// SetMember stores a MemberCluster. One that is being deleted counts as removed: nothing
// is planned for it.
func (f *FleetState) SetMember(stored *v1alpha1.MemberCluster) {
	if !stored.DeletionTimestamp.IsZero() {
		f.RemoveMember(stored.Name)
		return
	}
	offline, since := rollout.Availability(stored)
	opensAt, openedAt := windowTimes(stored.Status.Window)
	var uptime v1alpha1.MemberUptime
	if stored.Status.Uptime != nil {
		uptime = *stored.Status.Uptime
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.ensureMember(stored.Name)
	if m.present && m.uid == stored.UID && m.offline == offline && m.onlineSince.Equal(since) && m.windowOpensAt.Equal(opensAt) && m.windowOpenedAt.Equal(openedAt) && equality.Semantic.DeepEqual(m.uptime, uptime) && maps.Equal(m.labels, stored.Labels) {
		return
	}
	m.labels, m.offline, m.onlineSince = stored.Labels, offline, since
	m.windowOpensAt, m.windowOpenedAt, m.uptime = opensAt, openedAt, uptime
	if !m.present {
		m.present = true
		i, _ := slices.BinarySearch(f.present, m.name)
		f.present = slices.Insert(f.present, i, m.name)
		f.membership++
	}
	if m.uid != stored.UID {
		m.uid = stored.UID
		f.membership++
	}
	f.invalidateMember(m)
}

// RemoveMember removes a MemberCluster.
func (f *FleetState) RemoveMember(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[name]
	if m == nil || !m.present {
		return
	}
	m.present = false
	i, _ := slices.BinarySearch(f.present, name)
	f.present = slices.Delete(f.present, i, i+1)
	f.membership++
	f.invalidateMember(m)
	f.dropIfUnknown(m)
}

// SetPlan stores the plan of a member, which must not be changed afterwards; nil: it is
// gone.
func (f *FleetState) SetPlan(name string, plan *v1alpha1.ClusterPlan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.ensureMember(name)
	formerPlan, wasFull := m.plan, m.isPlanFull()
	f.setPlannedImages(m, plan)
	f.recountPendingStarts(m)
	if wasFull != m.isPlanFull() {
		f.invalidateMember(m)
	}
	if formerPlan != nil && (plan == nil || plan.UID != formerPlan.UID) {
		f.observePlanRemoval(formerPlan.UID)
	}
	f.observePlan(name)
	f.dropIfUnknown(m)
}

// SetPlanRefused records whether the API server refuses the next plan of a member.
func (f *FleetState) SetPlanRefused(name string, refused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[name]; m != nil && m.planRefused != refused {
		m.planRefused = refused
		f.invalidateMember(m)
	}
}

func (f *FleetState) setPlannedImages(m *member, plan *v1alpha1.ClusterPlan) {
	before := m.plannedImages
	m.plan, m.plannedImages = plan, nil
	if plan != nil {
		m.plannedImages = make(map[imageKey]plannedImage, len(plan.Spec.Images))
		for i := range plan.Spec.Images {
			item := &plan.Spec.Images[i]
			key := newImageKey(item.Namespace, item.Name)
			next := plannedImage{PlannedImage: item}
			if old, ok := before[key]; ok && old.Spec.Equal(&item.Spec) {
				next.specHashes = old.specHashes
				if !old.PlannedAt.Equal(item.PlannedAt) || old.Retry != item.Retry {
					f.invalidateImage(m, key)
				}
			} else {
				next.specHashes = f.hashSpec(key, &item.Spec)
				f.invalidateImage(m, key)
			}
			m.plannedImages[key] = next
		}
	}
	for key := range before {
		if !m.plansImage(key) {
			f.invalidateImage(m, key)
		}
	}
}

func (f *FleetState) recountPendingStarts(m *member) {
	m.pendingStarts = 0
	for _, img := range f.sorted {
		if i, ok := img.clusterIndex[m.name]; ok && img.desired[i].started && !m.plansImage(img.current) {
			m.pendingStarts++
		}
		if img.isDeletingImages() {
			f.enqueueImages(img)
		}
	}
}

func (m *member) plansImage(key imageKey) bool {
	_, ok := m.plannedImages[key]
	return ok
}

// isPlanFull reports whether the plan has no room for another image.
func (m *member) isPlanFull() bool {
	return len(m.plannedImages)+m.pendingStarts >= v1alpha1.MaxPlannedImages
}

// unknownFields returns the fields that a member does not know.
func (m *member) unknownFields(used []string) (unknown []string) {
	known := m.imageFields
	if len(known) == 0 {
		known = fieldsBefore
	}
	for _, field := range used {
		if !slices.Contains(known, field) {
			unknown = append(unknown, field)
		}
	}
	return unknown
}

// fieldsBefore are the fields that every agent knows.
var fieldsBefore = v1alpha1.ImageFieldsBefore()

// recentFields returns what a spec uses that not every agent knows.
func recentFields(spec *v1alpha1.VMDiskImageSpec) []string {
	return slices.DeleteFunc(spec.UsedFields(), func(field string) bool { return slices.Contains(fieldsBefore, field) })
}
