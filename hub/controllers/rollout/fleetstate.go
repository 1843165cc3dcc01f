// Package rollout rolls out FleetDiskImages. FleetState keeps what is known of all
// members and what each FleetDiskImage desires of them; the Reconciler decides by package
// hub/rollout and writes statuses; the planner reads the desired images.
package rollout

import (
	"sync"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// FleetState holds what is known of every member about every FleetDiskImage, and what
// was decided. An event touches only the FleetDiskImages that it concerns, so the cost of
// a decision does not grow with their number.
//
// It is filled in the elected replica, and safe for concurrent use.
type FleetState struct {
	// ReportsLoaded reports whether all stored reports have been read.
	ReportsLoaded func() bool
	// Activity returns what a member imports and queues now; nil where that is unknown.
	Activity func(member string) *v1alpha1.ReportedActivity
	// Budget returns the fleet-wide budget, nil for none, and the SourceLimits of members. It is
	// called without locks.
	Budget func() (budget *policy.Budget, sourceLimits map[string]map[string]int32)

	mu      sync.Mutex
	members map[string]*member
	// present are the names of the members with a MemberCluster that is not being
	// deleted, sorted; membership is raised when they change.
	present         []string
	membership      int64
	images          map[string]*imageState
	sorted          []*imageState              // by name
	byImageName     map[imageKey][]*imageState // that have or had a VMDiskImage of that name
	lastHashed      map[imageKey]hashedSpec
	loading         loadState
	approvalGuarded metav1.Condition // see rollout.View
	onImageChange   []func(image string)
	onDesiredChange []func(member string)

	// decideMu keeps two FleetDiskImages from taking the last room in one plan.
	decideMu sync.Mutex
}

// imageKey is the name of a VMDiskImage, interned: there are clusters × images of them.
type imageKey struct{ namespace, name unique.Handle[string] }

func newImageKey(namespace, name string) imageKey {
	return imageKey{unique.Make(namespace), unique.Make(name)}
}

func imageKeyFor(name types.NamespacedName) imageKey { return newImageKey(name.Namespace, name.Name) }

// NewFleetState returns an empty FleetState.
func NewFleetState(reportsLoaded func() bool) *FleetState {
	return &FleetState{
		ReportsLoaded: reportsLoaded, Activity: func(string) *v1alpha1.ReportedActivity { return nil },
		Budget:  func() (*policy.Budget, map[string]map[string]int32) { return nil, nil },
		members: map[string]*member{}, images: map[string]*imageState{}, byImageName: map[imageKey][]*imageState{}, lastHashed: map[imageKey]hashedSpec{},
		loading: loadState{removedPlans: map[types.UID]bool{}},
	}
}

// OnImageChange registers a non-blocking callback for FleetDiskImages to reconcile. Call
// it before the FleetState is filled.
func (f *FleetState) OnImageChange(do func(image string)) {
	f.onImageChange = append(f.onImageChange, do)
}

// OnDesiredChange registers a non-blocking callback for members whose desired images may
// have changed. Call it before the FleetState is filled.
func (f *FleetState) OnDesiredChange(do func(member string)) {
	f.onDesiredChange = append(f.onDesiredChange, do)
}

// SetApprovalGuarded stores whether the API server checks who approves waves.
func (f *FleetState) SetApprovalGuarded(c metav1.Condition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.approvalGuarded = c
	f.enqueueImages(f.sorted...)
}

// enqueueImages requires f.mu.
func (f *FleetState) enqueueImages(images ...*imageState) {
	for _, img := range images {
		for _, do := range f.onImageChange {
			do(img.name)
		}
	}
}

// enqueueMembers has the planner plan members again. It requires f.mu.
func (f *FleetState) enqueueMembers(members ...string) {
	for _, member := range members {
		for _, do := range f.onDesiredChange {
			do(member)
		}
	}
}

// invalidateMember requires f.mu.
func (f *FleetState) invalidateMember(m *member) {
	for _, img := range f.sorted {
		img.dirty[m.name] = true
	}
	f.enqueueImages(f.sorted...)
}

// invalidateImage enqueues the FleetDiskImages that have a VMDiskImage name now, and
// those with that name that wait for their images to be deleted. It requires f.mu.
func (f *FleetState) invalidateImage(m *member, key imageKey) {
	for _, img := range f.byImageName[key] {
		if img.current == key {
			img.dirty[m.name] = true
		}
		if img.current == key || img.isDeletingImages() {
			f.enqueueImages(img)
		}
	}
}

// DeclaredBy returns the FleetDiskImage that has a VMDiskImage as a version, the first by
// name; empty for none. Versions in stored statuses count before anything is decided.
func (f *FleetState) DeclaredBy(namespace, name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := ""
	for _, img := range f.byImageName[newImageKey(namespace, name)] {
		if first == "" || img.name < first {
			first = img.name
		}
	}
	return first
}
