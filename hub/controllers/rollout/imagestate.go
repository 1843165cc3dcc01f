package rollout

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// imageState is one FleetDiskImage with what is known of it in each member.
type imageState struct {
	name string

	// stored must not be changed. It and the fields up to mu are under FleetState.mu.
	stored     *v1alpha1.FleetDiskImage
	removed    bool
	imageNames []imageKey
	// dirty are the members whose cluster is to be built again.
	dirty map[string]bool
	// generation is raised when stored or the versions in status change: desired states
	// of an older generation are outdated.
	generation int64
	// status of the last decision, written or not; nil where this replica has not
	// decided.
	status *v1alpha1.FleetDiskImageStatus
	// desired has the order of clusters.
	desired     []desiredState
	sharedLists sharedLists

	// mu serializes decisions, and is taken before FleetState.mu. The fields below are
	// changed under both, and may be read under either.
	mu           sync.Mutex
	current      imageKey
	builtFrom    *v1alpha1.FleetDiskImage // of current and overrides
	overrides    *override.Overrides      // nil where they cannot be parsed
	recentFields map[*override.Effective][]string
	membership   int64             // FleetState.membership of clusters
	clusters     []rollout.Cluster // by name
	clusterIndex map[string]int    // into clusters, by name
	memberUIDs   []types.UID       // of the MemberClusters, in the order of clusters
}

func compareByName(a, b *imageState) int { return strings.Compare(a.name, b.name) }

// isDeletingImages reports whether the FleetDiskImage is deleted with its images.
func (img *imageState) isDeletingImages() bool {
	return !img.stored.DeletionTimestamp.IsZero() && img.stored.Spec.DeletionPolicy == v1alpha1.DeletionDelete
}

// withDecidedStatus returns the FleetDiskImage with its last decided status. It shares
// memory with stored and must not be changed.
func (img *imageState) withDecidedStatus() *v1alpha1.FleetDiskImage {
	if img.status == nil {
		return img.stored
	}
	v := *img.stored
	v.Status = *img.status
	return &v
}

// SetImage stores a FleetDiskImage, which must not be changed afterwards.
func (f *FleetState) SetImage(stored *v1alpha1.FleetDiskImage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	img := f.images[stored.Name]
	if img != nil && img.stored.UID != stored.UID {
		f.removeImageState(img)
		img = nil
	}
	if img == nil {
		img = &imageState{name: stored.Name, dirty: map[string]bool{}}
		f.images[img.name] = img
		i, _ := slices.BinarySearchFunc(f.sorted, img, compareByName)
		f.sorted = slices.Insert(f.sorted, i, img)
	}
	former := img.stored
	img.stored = stored
	f.indexNames(img)
	deletionStarts := former != nil && former.DeletionTimestamp.IsZero() != stored.DeletionTimestamp.IsZero()
	specChanged := former == nil || former.Generation != stored.Generation || deletionStarts
	if deletionStarts { // others may wait for images that this one kept
		for _, key := range img.imageNames {
			f.enqueueImages(f.byImageName[key]...)
		}
	}
	if specChanged {
		img.generation++
	}
	// A status that comes back from the API server is no reason to reconcile.
	if specChanged || !slices.Equal(former.Finalizers, stored.Finalizers) {
		f.enqueueImages(img)
	}
}

// RemoveImage removes a FleetDiskImage, whether or not it has a finalizer.
func (f *FleetState) RemoveImage(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if img := f.images[name]; img != nil {
		f.removeImageState(img)
		f.enqueueImages(img)
	}
}

func (f *FleetState) removeImageState(img *imageState) {
	img.removed = true
	delete(f.images, img.name)
	i, _ := slices.BinarySearchFunc(f.sorted, img, compareByName)
	f.sorted = slices.Delete(f.sorted, i, i+1)
	f.unindexNames(img)
	for i := range img.desired {
		f.forgetStarted(img, i)
	}
	f.enqueueMembers(f.present...)
}

// indexNames updates byImageName, and enqueues the FleetDiskImages that share a name
// before or after.
func (f *FleetState) indexNames(img *imageState) {
	var names []imageKey
	for _, name := range rollout.ImageNames(img.withDecidedStatus()) {
		names = append(names, imageKeyFor(name))
	}
	if slices.Equal(names, img.imageNames) {
		return
	}
	f.unindexNames(img)
	img.imageNames = names
	for _, key := range names {
		f.enqueueImages(f.byImageName[key]...)
		f.byImageName[key] = append(f.byImageName[key], img)
	}
}

func (f *FleetState) unindexNames(img *imageState) {
	for _, key := range img.imageNames {
		rest := slices.DeleteFunc(f.byImageName[key], func(other *imageState) bool { return other == img })
		if len(rest) == 0 {
			delete(f.byImageName, key)
			continue
		}
		f.byImageName[key] = rest
		f.enqueueImages(rest...)
	}
	img.imageNames = nil
}

// refreshClusters builds the clusters again that may have changed. It requires img.mu and
// f.mu.
func (f *FleetState) refreshClusters(img *imageState) {
	all := false
	if former := img.builtFrom; former != img.stored {
		if current := imageKeyFor(rollout.CurrentImage(img.stored)); current != img.current {
			for i := range img.desired {
				f.forgetStarted(img, i)
			}
			img.current, all = current, true
		}
		if former == nil || !givesSameSpecs(former, img.stored) {
			img.parseOverrides()
			all = true
		}
		all = all || (former.Spec.Retry == nil) != (img.stored.Spec.Retry == nil)
		img.builtFrom = img.stored
	}
	if img.membership != f.membership || img.clusterIndex == nil {
		f.rebuildClusters(img)
		all = true
	}
	if all {
		for i := range img.clusters {
			img.clusters[i] = f.buildCluster(img, i)
		}
	} else {
		for name := range img.dirty {
			if i, ok := img.clusterIndex[name]; ok {
				img.clusters[i] = f.buildCluster(img, i)
			}
		}
	}
	clear(img.dirty)
	img.dropFormerSpecs()
}

// dropFormerSpecs forgets what clusters got before their labels changed, from time to time.
func (img *imageState) dropFormerSpecs() {
	if len(img.recentFields) <= 2*len(img.clusters) {
		return
	}
	kept := make(map[*override.Effective][]string, len(img.clusters))
	for i := range img.clusters {
		if e := img.clusters[i].Effective; e != nil {
			kept[e] = img.recentFields[e]
		}
	}
	img.recentFields = kept
}

// givesSameSpecs reports whether all clusters get the same specs of two states of one
// FleetDiskImage.
func givesSameSpecs(a, b *v1alpha1.FleetDiskImage) bool {
	return a.Spec.Template.Equal(&b.Spec.Template) && a.ImageNameWithoutVersion() == b.ImageNameWithoutVersion() &&
		equality.Semantic.DeepEqual(a.Spec.Overrides, b.Spec.Overrides)
}

// parseOverrides reads the overrides of stored. Decide says what is wrong with them.
func (img *imageState) parseOverrides() {
	img.recentFields = map[*override.Effective][]string{}
	overrides, err := override.Parse(img.stored)
	if err != nil {
		overrides = nil
	}
	img.overrides = overrides
}

// recentFieldsOf returns what a spec uses that older agents do not know.
func (img *imageState) recentFieldsOf(e *override.Effective) []string {
	fields, ok := img.recentFields[e]
	if !ok {
		fields = recentFields(&e.Spec)
		img.recentFields[e] = fields
	}
	return fields
}

// usesRecentFields reports whether a cluster gets something that older agents do not know.
func (img *imageState) usesRecentFields() bool {
	for _, fields := range img.recentFields {
		if len(fields) > 0 {
			return true
		}
	}
	return false
}

// rebuildClusters makes an entry for each present member, and keeps the desired states of
// members that are still the same.
func (f *FleetState) rebuildClusters(img *imageState) {
	n := len(f.present)
	clusters, desired, index, uids := make([]rollout.Cluster, n), make([]desiredState, n), make(map[string]int, n), make([]types.UID, n)
	for i, name := range f.present {
		clusters[i].Name, index[name], uids[i] = name, i, f.members[name].uid
		if old, ok := img.clusterIndex[name]; ok && img.desired[old].memberUID == uids[i] {
			desired[i], img.desired[old].started = img.desired[old], false
			clusters[i] = img.clusters[old]
		}
	}
	for i := range img.desired { // of members that are gone or replaced
		f.forgetStarted(img, i)
	}
	img.clusters, img.desired, img.clusterIndex, img.memberUIDs, img.membership = clusters, desired, index, uids, f.membership
}

// buildCluster returns what is known of one member about the current VMDiskImage.
func (f *FleetState) buildCluster(img *imageState, i int) rollout.Cluster {
	former := &img.clusters[i]
	m := f.members[former.Name]
	cluster := rollout.Cluster{
		Name: m.name, Labels: m.labels, OfflineReason: m.offline, OnlineSince: m.onlineSince,
		Online: m.uptime.Online, Open: m.uptime.Open,
		WindowOpensAt: m.windowOpensAt, WindowOpenedAt: m.windowOpenedAt,
		Report: m.newestReport(img.current).Report, KnowsRetry: m.knowsRetry, PlanRefused: m.planRefused,
	}
	if img.overrides != nil {
		cluster.Effective = img.overrides.For(m.name, m.labels)
	}
	if planned, ok := m.plannedImages[img.current]; ok {
		cluster.PlannedDigest, cluster.PlannedRevision, cluster.PlannedRetry = planned.digest, planned.revision, planned.Retry
		if planned.PlannedAt != nil {
			cluster.PlannedAt = planned.PlannedAt.Time
		}
	}
	if i, ok := img.clusterIndex[m.name]; ok && img.desired[i].started && cluster.PlannedDigest != img.desired[i].digest {
		f.showPendingStart(img, i, &cluster)
	}
	if cluster.PlannedDigest == former.PlannedDigest {
		cluster.HadImage, cluster.Loss = former.HadImage, former.Loss
	}
	if img.stored.Spec.Retry != nil {
		cluster.AgentVersion = m.agentVersion
	}
	if cluster.Effective != nil {
		if fields := img.recentFieldsOf(cluster.Effective); len(fields) > 0 && !f.plansSpec(img, m, &cluster.Effective.Spec) {
			cluster.AgentVersion, cluster.UnknownFields = m.agentVersion, m.unknownFields(fields)
		}
	}
	cluster.PlanFull = cluster.PlannedDigest == "" && m.isPlanFull()
	return cluster
}

// showPendingStart shows a start that no plan shows yet as planned. Invariant: one with another
// source than the cluster is to have now is forgotten: that source waits for its own start.
func (f *FleetState) showPendingStart(img *imageState, i int, cluster *rollout.Cluster) {
	d := &img.desired[i]
	if e := cluster.Effective; e != nil && e.Digest != d.digest {
		f.forgetStarted(img, i)
		return
	}
	cluster.PlannedDigest, cluster.PlannedRevision, cluster.PlannedAt = d.digest, d.revision, d.image.plannedAt.Time
	cluster.PlannedRetry = d.image.retry
}

// plansSpec reports whether the plan of a member has a spec already, as one has whose agent was
// replaced by an older one.
func (f *FleetState) plansSpec(img *imageState, m *member, spec *v1alpha1.VMDiskImageSpec) bool {
	planned, ok := m.plannedImages[img.current]
	return ok && planned.Spec.Equal(spec)
}

// forgetStarted drops a start from memory. The plan may still hold it.
func (f *FleetState) forgetStarted(img *imageState, i int) {
	if !img.desired[i].started {
		return
	}
	img.desired[i].started = false
	if m := f.members[img.clusters[i].Name]; m != nil && !m.plansImage(img.current) {
		wasFull := m.isPlanFull()
		if m.pendingStarts--; wasFull {
			f.invalidateMember(m)
		}
	}
}

// copyStoredImage returns a copy of a stored FleetDiskImage; nil for none.
func (f *FleetState) copyStoredImage(name string) *v1alpha1.FleetDiskImage {
	f.mu.Lock()
	defer f.mu.Unlock()
	if img := f.images[name]; img != nil {
		return img.stored.DeepCopy()
	}
	return nil
}

func (f *FleetState) lookupImage(name string) *imageState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.images[name]
}

// View returns what a decision about a FleetDiskImage depends on; false where there is none of
// that name. It changes nothing, and may be read at any time.
func (f *FleetState) View(image string, now time.Time) (rollout.View, bool) {
	img := f.lookupImage(image)
	if img == nil {
		return rollout.View{}, false
	}
	img.mu.Lock()
	defer img.mu.Unlock()
	v, _ := f.gatherView(img, now)
	v.Clusters = slices.Clone(v.Clusters)
	return v, true
}
