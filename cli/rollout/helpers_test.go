package rollout_test

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-d))) }

// newImage is win-11 at 24.2, whose wave production needs approval.
func newImage(change func(*v1alpha1.FleetDiskImage)) *v1alpha1.FleetDiskImage {
	img := apitest.FleetDiskImage("win-11").WithVersion("24.1").WithWave("canary").WithWaves(v1alpha1.Wave{Name: "production", RequireApproval: true}).Obj()
	former := img.Spec.Template.DeepCopy()
	img.Spec.Version, img.Generation = "24.2", 5
	img.Spec.Template.URL = "https://images.example.com/win-11/24.2.qcow2"
	img.Spec.Template.DiskSize.Add(img.Spec.Template.DiskSize)
	img.Status = v1alpha1.FleetDiskImageStatus{
		ObservedGeneration: 5, Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval, Message: "wave production, with 37 clusters to start, needs approval",
		CurrentWave: "production", Clusters: v1alpha1.ClusterCounts{Total: 40, Succeeded: 3, ToApply: 35, Deferred: 2},
		Waves: []v1alpha1.WaveStatus{
			{Name: "canary", Clusters: v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}, DoneAt: ago(6 * time.Hour)},
			{Name: "production", Clusters: v1alpha1.ClusterCounts{Total: 37, ToApply: 35, Deferred: 2}},
		},
		Versions: []v1alpha1.VersionStatus{
			{Version: "24.2", Namespace: "images", Image: "win-11-24.2", Revision: img.Spec.Template.Revision(), Since: *ago(7 * time.Hour), Template: img.Spec.Template.SourceFields()},
			{Version: "24.1", Namespace: "images", Image: "win-11-24.1", Revision: former.Revision(), Since: *ago(90 * 24 * time.Hour), Template: former},
			{Version: "23.9", Namespace: "images", Image: "win-11-23.9", Revision: "old", Since: *ago(200 * 24 * time.Hour)},
		},
	}
	if change != nil {
		change(img)
	}
	return img
}

func stalled(reason string) func(*v1alpha1.FleetDiskImage) {
	return func(img *v1alpha1.FleetDiskImage) {
		img.Status.Phase, img.Status.Reason = v1alpha1.RolloutWaiting, reason
		img.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}
	}
}

func phase(phase v1alpha1.RolloutPhase, reason string) func(*v1alpha1.FleetDiskImage) {
	return func(img *v1alpha1.FleetDiskImage) { img.Status.Phase, img.Status.Reason = phase, reason }
}

func failing(img *v1alpha1.FleetDiskImage) {
	phase(v1alpha1.RolloutFailed, v1alpha1.ReasonMaxFailures)(img)
	img.Status.Message = "1 cluster has failed (lab), and maxFailures allows 0"
	img.Status.Clusters.Failed, img.Status.Clusters.Succeeded = 1, 2
	img.Status.Failing = []v1alpha1.ClusterSummary{{Cluster: "lab", State: v1alpha1.ClusterFailed, Reason: "NotFound", Message: `the source answered "404 Not Found"`}}
}
