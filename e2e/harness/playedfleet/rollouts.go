package playedfleet

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// imagesNamespace is that of the fleet's images in all members.
const imagesNamespace = "vmdi-farm"

// fleetImage is a played FleetDiskImage.
type fleetImage struct {
	object  *v1alpha1.FleetDiskImage
	current types.NamespacedName
	dirty   bool
	// fails are the clusters where its import fails, and why.
	fails map[string]v1alpha1.Reason
}

// imageSpec describes a FleetDiskImage of a scenario.
type imageSpec struct {
	name string
	host string
	gib  int64
	// versions, the current one first.
	versions []string
	// since is how long the current version is rolled out.
	since time.Duration
	// ready is the share of the clusters that have the current version, in the order of the
	// waves.
	ready float64
	// approval: wave production needs approval; approved: somebody gave it.
	approval, approved bool
	paused             bool
	concurrency        int
	failures           int
	// failsIn are clusters where the current version fails, for a reason.
	failsIn map[string]v1alpha1.Reason
	// only are the clusters that it is placed in; all for none.
	only []string
}

func (f *Fleet) addImage(s imageSpec) {
	template := func(version string) v1alpha1.VMDiskImageSpec {
		return v1alpha1.VMDiskImageSpec{
			Name: s.name, SourceType: v1alpha1.SourceHTTP, URL: fmt.Sprintf("https://%s/%s/%s/disk.qcow2", s.host, s.name, version),
			Checksum: fmt.Sprintf("sha256:%016x%016x%016x%016x", hashOf(s.name), hashOf(version), hashOf(s.name+version), hashOf(version+s.name)),
			DiskSize: *resource.NewQuantity(s.gib<<30, resource.BinarySI), StorageClass: "fast",
		}
	}
	object := &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, UID: types.UID("fdi-" + s.name), Generation: 3, CreationTimestamp: f.ago(200 * 24 * time.Hour), ResourceVersion: "4711"},
		Spec: v1alpha1.FleetDiskImageSpec{
			Version: s.versions[0], TargetNamespace: imagesNamespace, Template: template(s.versions[0]),
			Placement: v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}}, Approvals: []v1alpha1.Approval{},
			Rollout: v1alpha1.Rollout{
				Paused: s.paused, OfflineClusters: v1alpha1.OfflineDefer, MaxFailures: new(intstr.FromInt32(int32(s.failures))),
				Waves: []v1alpha1.Wave{
					{Name: "canary", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": "canary"}}},
					{Name: "production", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"env": "production"}}, RequireApproval: s.approval},
				},
			},
			Retention: &v1alpha1.Retention{KeepVersions: 2}, DeletionPolicy: v1alpha1.DeletionRetain,
		},
	}
	if len(s.only) > 0 {
		object.Spec.Placement = v1alpha1.Placement{ClusterNames: s.only}
	}
	if s.concurrency > 0 {
		object.Spec.Rollout.MaxConcurrency = new(intstr.FromInt32(int32(s.concurrency)))
	}
	for i, version := range s.versions {
		spec := template(version)
		since := s.since + time.Duration(i)*38*24*time.Hour
		object.Status.Versions = append(object.Status.Versions, v1alpha1.VersionStatus{
			Version: version, Namespace: imagesNamespace, Image: object.ImageNameForVersion(version), Revision: spec.Revision(), Since: f.ago(since), Template: &spec,
		})
		if s.approval && (i > 0 || s.approved) {
			at := f.ago(since - time.Hour)
			object.Spec.Approvals = append(object.Spec.Approvals, v1alpha1.Approval{Wave: "production", Version: version, By: "anna@example.com", At: &at})
		}
	}
	img := &fleetImage{object: object, current: rollout.CurrentImage(object), fails: s.failsIn}
	f.images = append(f.images, img)
	f.placeImage(img, s)
}

// ago returns a time before the end of the scenario's warm-up.
func (f *Fleet) ago(d time.Duration) metav1.Time {
	return storedtime.Truncate(f.at.Add(f.scenario.warmUp - d))
}

// placeImage gives members their versions.
func (f *Fleet) placeImage(img *fleetImage, s imageSpec) {
	placed := slices.DeleteFunc(f.inWaves(), func(m *member) bool {
		return m.neverReported || len(s.only) > 0 && !slices.Contains(s.only, m.name())
	})
	ready := int(s.ready*float64(len(placed)) + 0.5)
	for i, m := range placed {
		for n := range img.object.Status.Versions {
			v := &img.object.Status.Versions[n]
			// Each version before the current one is in fewer clusters.
			if n == 0 && i >= ready || n > 1 && rand01(m.name()+s.name, int64(n)) > 0.55 {
				continue
			}
			have := m.add(f.newImage(v.Namespace, v.Image, v.Template, v1alpha1.OriginPlan))
			have.setReady(v.Since.Add(time.Duration(i) * 4 * time.Minute))
			f.refer(m, have, n)
			if n > 0 {
				continue
			}
			m.items[s.name] = item{revision: v.Revision, plannedAt: v.Since.Time}
			have.Plan = &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied, Revision: v.Revision}
			if reason := s.failsIn[m.name()]; reason != "" {
				have.setFailed(reason, failureTexts[reason])
				have.ServingRevision, have.SyncedAt, have.References, have.Holders, have.Bytes = "", nil, 0, nil, 0
			}
		}
	}
}

// failureTexts are what members say of failures.
var failureTexts = map[v1alpha1.Reason]string{
	v1alpha1.ReasonNotFound:         "the source answers 404 Not Found: correct spec.url",
	v1alpha1.ReasonChecksumMismatch: "the download has another checksum than spec.checksum: correct it, or the file at the source",
	v1alpha1.ReasonImportFailed:     "4 of 4 attempts failed; the last: unexpected EOF after 11.2 GiB of 24 GiB",
}

// inWaves returns the members in the order in which waves reach them.
func (f *Fleet) inWaves() []*member {
	if len(f.waves) == len(f.members) {
		return slices.Clone(f.waves)
	}
	all := slices.Clone(f.members)
	rank := func(m *member) int {
		switch {
		case m.object.Labels["wave"] == "canary":
			return 0
		case m.object.Labels["env"] == "production":
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(all, func(a, b *member) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return int(hashOf(a.name())%97) - int(hashOf(b.name())%97)
	})
	f.waves = all
	return slices.Clone(all)
}

// refer has machines of a member need an image, or nobody for some time. age is 0 for the
// current version.
func (f *Fleet) refer(m *member, img *image, age int) {
	chance := rand01(m.name()+img.Name, 7)
	switch {
	case age == 0 && chance < 0.75, age == 1 && chance < 0.4, age > 1 && chance < 0.1:
		n := 1 + int(rand01(img.Name+m.name(), 3)*4)
		img.References = int32(n)
		for i := range n {
			img.Holders = append(img.Holders, fmt.Sprintf("workspace-%d/desk-%d", 1+int(chance*40)%12, i+1))
		}
	case age > 0:
		since := f.ago(time.Duration(9+rand01(m.name()+img.Name, 11)*400) * 24 * time.Hour)
		img.UnreferencedSince = &since
	default:
		since := f.ago(3 * time.Hour)
		img.UnreferencedSince = &since
	}
}

// decide has a rollout proceed as the hub's controller does.
func (f *Fleet) decide(img *fleetImage) {
	d := rollout.Decide(f.newView(img))
	next := img.object.DeepCopy()
	next.Status = d.Status
	img.object, img.dirty = next, false
	for _, name := range d.Start {
		f.startCluster(img, f.findMember(name))
	}
	f.store.put(next)
	f.Changes.Mark(readapi.TopicRollouts)
}

// newView returns what a decision about a rollout depends on.
func (f *Fleet) newView(img *fleetImage) rollout.View {
	v := rollout.View{Image: img.object, Clusters: make([]rollout.Cluster, len(f.members)), Budget: f.policy.Budget(f.at), Now: f.at}
	for i, m := range f.members {
		v.Clusters[i] = f.view(m, img.object, img.current)
	}
	return v
}

// startCluster has a member import the current version.
func (f *Fleet) startCluster(img *fleetImage, m *member) {
	v := &img.object.Status.Versions[0]
	m.items[img.object.Name] = item{revision: v.Revision, plannedAt: f.at}
	have := m.add(f.newImage(v.Namespace, v.Image, v.Template, v1alpha1.OriginPlan))
	have.Plan = &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied, Revision: v.Revision}
	have.setQueued(f.at)
	have.fails, have.failure = img.fails[m.name()], failureTexts[img.fails[m.name()]]
	m.queued++
	m.dirty, img.dirty = true, true
}
