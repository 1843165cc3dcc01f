package prune_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func toStoredTime(t time.Time) *metav1.Time {
	at := metav1.NewTime(t)
	return &at
}

func newDuration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

// roundTrip returns an object as the API server would.
func roundTrip[T any](t require.TestingT, value T) (back T) {
	text, err := json.Marshal(value)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &back))
	return back
}

func toJSON(t require.TestingT, value any) string {
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return string(text)
}

// trueConditions returns the types of the conditions that are True.
func trueConditions(conditions []metav1.Condition) (types []string) {
	for _, c := range conditions {
		if c.Status == metav1.ConditionTrue {
			types = append(types, c.Type)
		}
	}
	return types
}

// requireConditions requires all conditions to exist, and those in want to be True.
func requireConditions(t require.TestingT, conditions []metav1.Condition, generation int64, all, want []string) {
	for _, name := range all {
		c := meta.FindStatusCondition(conditions, name)
		require.NotNil(t, c, name)
		require.Equal(t, generation, c.ObservedGeneration, name)
		require.NotEmpty(t, c.Reason, name)
	}
	require.Len(t, conditions, len(all))
	require.ElementsMatch(t, want, trueConditions(conditions))
	statuscheck.RequireOneTrue(t, conditions)
}

var reportConditions = []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionComplete, v1alpha1.ConditionFinished}

func newReport(change ...func(*v1alpha1.PruneReport)) *v1alpha1.PruneReport {
	r := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "spring", UID: "report-uid", Generation: 3, CreationTimestamp: *toStoredTime(now)}}
	for _, do := range change {
		do(r)
	}
	return r
}

func newRoot() *v1alpha1.ReportRoot {
	return &v1alpha1.ReportRoot{
		ObservedAt: *toStoredTime(now), HeartbeatSeconds: 10, BootID: "boot", AgentVersion: "v1",
		AnsweredPlan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 7, Hash: "abc"},
	}
}

// newUnreferenced returns a candidate, unreferenced for a day.
func newUnreferenced(name string, change ...func(*v1alpha1.ReportedImage)) v1alpha1.ReportedImage {
	img := v1alpha1.ReportedImage{
		Namespace: "farm", Name: name, UID: types.UID("uid-" + name), Origin: v1alpha1.OriginPlan, Revision: "r1", ServingRevision: "r1",
		Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonReady, UnreferencedSince: toStoredTime(now.Add(-24 * time.Hour)), Bytes: 1 << 30,
	}
	for _, do := range change {
		do(&img)
	}
	return img
}

// drawImage draws an image as a member may report it.
func drawImage(t *rapid.T) v1alpha1.ReportedImage {
	img := v1alpha1.ReportedImage{
		Namespace: rapid.SampledFrom([]string{"farm", "lab"}).Draw(t, "namespace"),
		Name:      fmt.Sprintf("%s-%d", rapid.SampledFrom([]string{"ubuntu", "debian"}).Draw(t, "family"), rapid.IntRange(0, 40).Draw(t, "number")),
		UID:       types.UID(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "uid")),
		Origin:    rapid.SampledFrom([]v1alpha1.ImageOrigin{"", v1alpha1.OriginPlan, v1alpha1.OriginPlan, v1alpha1.OriginTemplate}).Draw(t, "origin"),
		Revision:  rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "revision"),
		Phase: rapid.SampledFrom([]v1alpha1.Phase{
			"", "OfTomorrow", v1alpha1.PhaseQueued, v1alpha1.PhaseSyncing, v1alpha1.PhaseSucceeded, v1alpha1.PhaseSucceeded, v1alpha1.PhaseSucceeded,
			v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed, v1alpha1.PhasePrunePending, v1alpha1.PhaseTerminating, v1alpha1.PhaseDeleting,
		}).Draw(t, "phase"),
		Reason:     rapid.SampledFrom([]v1alpha1.Reason{"", v1alpha1.ReasonReady, v1alpha1.ReasonBackingOff}).Draw(t, "reason"),
		References: rapid.SampledFrom([]int32{0, 0, 0, 1, 2}).Draw(t, "references"),
		Bytes:      rapid.Int64Range(0, 1<<40).Draw(t, "bytes"),
	}
	switch since := rapid.IntRange(-2, 10).Draw(t, "hours"); since {
	case -2:
	case -1:
		img.UnreferencedSince = &metav1.Time{} // null in JSON
	default:
		img.UnreferencedSince = toStoredTime(now.Add(-time.Duration(since)*time.Hour + time.Duration(rapid.IntRange(0, 999).Draw(t, "ms"))*time.Millisecond))
	}
	return img
}

// drawCluster draws a cluster with its images, each name once.
func drawCluster(t *rapid.T, name string) prune.Cluster {
	c := prune.Cluster{
		Name: name, ClusterUID: types.UID("uid-" + name), Root: newRoot(),
		WantedBy: map[types.NamespacedName]string{}, DeclaredBy: map[types.NamespacedName]string{},
	}
	c.Root.ObservedAt = *toStoredTime(now.Add(time.Duration(rapid.IntRange(0, 999).Draw(t, "ms")) * time.Millisecond))
	n := rapid.SampledFrom([]int{0, 5, 20, 30}).Draw(t, "images of it")
	c.Images = rapid.SliceOfNDistinct(rapid.Custom(drawImage), n, n, func(i v1alpha1.ReportedImage) string { return i.Namespace + "/" + i.Name }).Draw(t, "images")
	for i := range c.Images {
		k := types.NamespacedName{Namespace: c.Images[i].Namespace, Name: c.Images[i].Name}
		if rapid.IntRange(0, 5).Draw(t, "wanted") == 0 {
			c.WantedBy[k] = rapid.SampledFrom([]string{"", "ClusterPlan", "FleetDiskImage ubuntu"}).Draw(t, "by")
		}
		if rapid.Bool().Draw(t, "declared") {
			c.DeclaredBy[k] = "ubuntu"
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "orphans") {
		c.Root.Orphans = append(c.Root.Orphans, v1alpha1.OrphanedObject{Kind: "DataVolume", Namespace: "farm", Name: fmt.Sprintf("dv-%d", i), Bytes: 5})
	}
	c.Root.OrphanCount = int32(len(c.Root.Orphans) + rapid.IntRange(0, 2).Draw(t, "more orphans"))
	c.Root.OrphanBytes = rapid.Int64Range(0, 100).Draw(t, "bytes of all orphans")
	switch rapid.IntRange(0, 6).Draw(t, "unknown") {
	case 0:
		c.Unknown, c.Message = v1alpha1.ReasonNotAnswered, "it says <nothing> & \xff"
	case 1:
		c.Root = nil
	}
	return c
}

func drawClusters(t *rapid.T) (clusters []prune.Cluster) {
	for i := range rapid.IntRange(0, 5).Draw(t, "clusters") {
		clusters = append(clusters, drawCluster(t, fmt.Sprintf("c%d", i)))
	}
	return clusters
}

func drawSpec(t *rapid.T) *v1alpha1.PruneReportSpec {
	spec := &v1alpha1.PruneReportSpec{}
	if rapid.Bool().Draw(t, "selector") {
		spec.ImageSelector = &v1alpha1.ImageSelector{
			Namespaces: rapid.SampledFrom([][]string{nil, {"farm"}, {"farm", "lab"}, {"other"}}).Draw(t, "namespaces"),
			Names:      rapid.SampledFrom([][]string{nil, {"ubuntu-*"}, {"ubuntu-1", "debian-2*"}, {"*"}, {"*-1*"}}).Draw(t, "names"),
		}
	}
	if rapid.Bool().Draw(t, "least") {
		spec.UnreferencedFor = newDuration(time.Duration(rapid.IntRange(0, 8).Draw(t, "hours")) * time.Hour)
	}
	return spec
}

func judgeAll(spec *v1alpha1.PruneReportSpec, clusters []prune.Cluster) []v1alpha1.ReportedCluster {
	judged := make([]v1alpha1.ReportedCluster, len(clusters))
	for i := range clusters {
		judged[i] = prune.JudgeCluster(spec, clusters[i])
	}
	return judged
}
