//go:build linux

package rollout_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// newFleetImage is version 1 of an image for clusters, by their names, not created
// yet.
func (f *testFleet) newFleetImage(name string, clusters ...string) *v1alpha1.FleetDiskImage {
	img := &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.FleetDiskImageSpec{
			TargetNamespace: namespace,
			Template: v1alpha1.VMDiskImageSpec{
				Name: name, SourceType: v1alpha1.SourceHTTP, DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
			},
			Placement: v1alpha1.Placement{ClusterNames: clusters},
		},
	}
	f.setVersion(img, "1")
	return img
}

// setVersion has an image be another version, of another source.
func (f *testFleet) setVersion(img *v1alpha1.FleetDiskImage, version string) {
	img.Spec.Version = version
	img.Spec.Template.URL = fmt.Sprintf("%s/%s/%s.qcow2", f.source.URL, img.Name, version)
}

// setMissingSource has an image be of a source that does not have it.
func (f *testFleet) setMissingSource(img *v1alpha1.FleetDiskImage) {
	img.Spec.Template.URL = fmt.Sprintf("%s/missing/%s.qcow2", f.source.URL, img.Name)
}

// setOneAtATime sets maxConcurrency and maxFailures, and waves by a label.
func setOneAtATime(img *v1alpha1.FleetDiskImage, waves ...v1alpha1.Wave) {
	img.Spec.Rollout.Waves = waves
	img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
}

// newWave of the members whose label has one of the values.
func newWave(name, label string, values ...string) v1alpha1.Wave {
	return v1alpha1.Wave{Name: name, ClusterSelector: newSelector(label, values...)}
}

func newSelector(label string, values ...string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: metav1.LabelSelectorOpIn, Values: values}}}
}

// createFleetImage creates a FleetDiskImage, which goes with the test. Its images stay.
func (f *testFleet) createFleetImage(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	require.NoError(t, f.Create(t.Context(), img))
	t.Cleanup(func() {
		ctx := context.Background()
		gone := &v1alpha1.FleetDiskImage{ObjectMeta: metav1.ObjectMeta{Name: img.Name}}
		require.NoError(t, client.IgnoreNotFound(f.Patch(ctx, gone, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"deletionPolicy":"Retain"}}`)))))
		require.NoError(t, client.IgnoreNotFound(f.Delete(ctx, gone)))
		assert.NoError(t, f.awaitSetup(ctx, "FleetDiskImage "+img.Name+" to go", func() bool {
			return apierrors.IsNotFound(f.Get(ctx, client.ObjectKeyFromObject(gone), gone))
		}))
	})
}

// updateFleetImage reads a FleetDiskImage, changes it and stores it, again on conflict.
func (f *testFleet) updateFleetImage(t *testing.T, img *v1alpha1.FleetDiskImage, how func()) {
	t.Helper()
	require.NoError(t, f.tryUpdateFleetImage(t.Context(), img, how))
}

// tryUpdateFleetImage is change where it may be refused.
func (f *testFleet) tryUpdateFleetImage(ctx context.Context, img *v1alpha1.FleetDiskImage, how func()) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := f.Get(ctx, client.ObjectKeyFromObject(img), img); err != nil {
			return err
		}
		how()
		return f.Update(ctx, img)
	})
}

// relabelMember sets a label of a MemberCluster for as long as the test runs; an empty
// value removes it.
func (f *testFleet) relabelMember(t *testing.T, cluster, label, value string) {
	t.Helper()
	set := func(ctx context.Context, value string) error {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, label, value)
		if value == "" {
			patch = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, label)
		}
		m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: cluster}}
		return f.Patch(ctx, m, client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	require.NoError(t, set(t.Context(), value))
	t.Cleanup(func() { require.NoError(t, set(context.Background(), "")) })
}

// awaitFleetImage reads a FleetDiskImage until its status is of its spec as it is now
// and as wanted.
func (f *testFleet) awaitFleetImage(t *testing.T, img *v1alpha1.FleetDiskImage, wanted string, holds ...func(*v1alpha1.FleetDiskImage) bool) *v1alpha1.FleetDiskImage {
	t.Helper()
	got := &v1alpha1.FleetDiskImage{}
	if !testenv.Await(t, func() bool {
		got = &v1alpha1.FleetDiskImage{}
		if f.Get(t.Context(), client.ObjectKeyFromObject(img), got) != nil || got.Status.ObservedGeneration != got.Generation {
			return false
		}
		return !slices.ContainsFunc(holds, func(hold func(*v1alpha1.FleetDiskImage) bool) bool { return !hold(got) })
	}) {
		require.Failf(t, "FleetDiskImage "+img.Name+" is not as wanted: "+wanted, "%s\nthe hub's log is %s", describeFleetImage(got), f.Hub.LogFile())
	}
	return got
}

// awaitEvent waits for an event about a FleetDiskImage.
func (f *testFleet) awaitEvent(t *testing.T, img *v1alpha1.FleetDiskImage, reason string) {
	t.Helper()
	var reasons []string
	require.True(t, testenv.Await(t, func() bool {
		reasons = nil
		var list eventsv1.EventList
		require.NoError(t, f.List(t.Context(), &list))
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Kind == "FleetDiskImage" && e.Regarding.Name == img.Name {
				reasons = append(reasons, e.Reason)
			}
		}
		return slices.Contains(reasons, reason)
	}), "no event %s about %s, but %q", reason, img.Name, &reasons)
}

func describeFleetImage(img *v1alpha1.FleetDiskImage) string {
	st := img.Status
	text := fmt.Sprintf("generation %d of %d, version %s, %s, %s: %s\nclusters %+v, wave %q, waves %+v\nfailing %+v\nversions %+v",
		st.ObservedGeneration, img.Generation, img.Spec.Version, st.Phase, st.Reason, st.Message, st.Clusters, st.CurrentWave, st.Waves, st.Failing, st.Versions)
	for _, c := range st.Conditions {
		text += fmt.Sprintf("\n%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return text
}

// hasSucceeded wants a rollout that is over and did not fail.
func hasSucceeded(img *v1alpha1.FleetDiskImage) bool {
	return img.Status.Phase == v1alpha1.RolloutSucceeded && isConditionTrue(img, v1alpha1.ConditionFinished) && isConditionTrue(img, v1alpha1.ConditionSucceeded)
}

// hasReason wants a phase and a reason.
func hasReason(phase v1alpha1.RolloutPhase, reason string) func(*v1alpha1.FleetDiskImage) bool {
	return func(img *v1alpha1.FleetDiskImage) bool {
		return img.Status.Phase == phase && img.Status.Reason == reason
	}
}

// hasMessage wants words in the message.
func hasMessage(words ...string) func(*v1alpha1.FleetDiskImage) bool {
	return func(img *v1alpha1.FleetDiskImage) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(img.Status.Message, word) })
	}
}

// hasCounts wants so many clusters in each state.
func hasCounts(want v1alpha1.ClusterCounts) func(*v1alpha1.FleetDiskImage) bool {
	return func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Clusters == want }
}

// hasWaveCounts wants so many clusters of a wave in each state.
func hasWaveCounts(name string, want v1alpha1.ClusterCounts) func(*v1alpha1.FleetDiskImage) bool {
	return func(img *v1alpha1.FleetDiskImage) bool {
		return slices.ContainsFunc(img.Status.Waves, func(w v1alpha1.WaveStatus) bool { return w.Name == name && w.Clusters == want })
	}
}

// isConditionTrue tells whether a condition is True, and of the generation that there is.
func isConditionTrue(img *v1alpha1.FleetDiskImage, condition string) bool {
	c := meta.FindStatusCondition(img.Status.Conditions, condition)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == img.Generation
}

// requireAllConditions wants all conditions to be there, and of the generation that
// there is.
func requireAllConditions(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	for _, kind := range []string{v1alpha1.ConditionFinished, v1alpha1.ConditionSucceeded, v1alpha1.ConditionProgressing, v1alpha1.ConditionStalled} {
		if c := meta.FindStatusCondition(img.Status.Conditions, kind); assert.NotNil(t, c, kind) {
			assert.Equal(t, img.Generation, c.ObservedGeneration, kind)
		}
	}
}

// findPlannedImage is what the hub's plan of a member says of an image; nil for nothing.
func (f *testFleet) findPlannedImage(t *testing.T, cluster, image string) *v1alpha1.PlannedImage {
	t.Helper()
	return plannedImage(f.getPlan(t, f, v1alpha1.MemberNamespacePrefix+cluster), image)
}

func plannedImage(plan *v1alpha1.ClusterPlan, image string) *v1alpha1.PlannedImage {
	at := slices.IndexFunc(plan.Spec.Images, func(p v1alpha1.PlannedImage) bool { return p.Name == image })
	if at < 0 {
		return nil
	}
	return &plan.Spec.Images[at]
}

func plansRetention(plan *v1alpha1.ClusterPlan, image string) bool {
	return slices.Contains(plan.Spec.Kept, v1alpha1.KeptImage{Namespace: namespace, Name: image})
}

func plansRetirement(plan *v1alpha1.ClusterPlan, image string) bool {
	return slices.ContainsFunc(plan.Spec.Retired, func(r v1alpha1.RetiredImage) bool { return r.Namespace == namespace && r.Name == image })
}

// getHubPlan is a member's plan as the hub has it.
func (f *testFleet) getHubPlan(t *testing.T, cluster string) *v1alpha1.ClusterPlan {
	t.Helper()
	return f.getPlan(t, f, v1alpha1.MemberNamespacePrefix+cluster)
}

func (f *testFleet) getPlan(t *testing.T, from client.Reader, mailbox string) *v1alpha1.ClusterPlan {
	t.Helper()
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(t, client.IgnoreNotFound(from.Get(t.Context(), client.ObjectKey{Namespace: mailbox, Name: v1alpha1.MailboxName}, plan)))
	return plan
}

// awaitPlan waits until a member has a plan that is as wanted.
func (f *testFleet) awaitPlan(t *testing.T, cluster, wanted string, holds func(*v1alpha1.ClusterPlan) bool) {
	t.Helper()
	var plan *v1alpha1.ClusterPlan
	require.True(t, testenv.Await(t, func() bool {
		plan = f.getPlan(t, f.Members[cluster], program.AgentNamespace)
		return holds(plan)
	}), "%s: the plan is not as wanted: %s\nimages %+v\nkept %+v\nretired %+v", cluster, wanted, &plan.Spec.Images, &plan.Spec.Kept, &plan.Spec.Retired)
}

// getImage is a VMDiskImage of a member, nil for none.
func (s *testMember) getImage(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{}
	err := s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, img)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return img
}

// awaitPhase waits until a member has an image in a phase.
func (s *testMember) awaitPhase(t *testing.T, name string, phase v1alpha1.Phase) *v1alpha1.VMDiskImage {
	t.Helper()
	var img *v1alpha1.VMDiskImage
	require.True(t, testenv.Await(t, func() bool {
		img = s.getImage(t, name)
		return img != nil && img.Status.Phase == phase
	}), "%s: want image %s %s, there is %+v", s.name, name, phase, &img)
	return img
}

// awaitImageGone waits until a member has an image no more.
func (s *testMember) awaitImageGone(t *testing.T, name string) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool { return s.getImage(t, name) == nil }), "%s: image %s is still there: %+v", s.name, name, s.getImage(t, name))
}

// countDownloads counts the DataVolumes that a member has made for an image.
func (s *testMember) countDownloads(t *testing.T, name string) (n int) {
	t.Helper()
	for _, start := range testenv.History(t, s.Observer).Creations() {
		if start.Name == name {
			n++
		}
	}
	return n
}

// getReportedImage is what the hub's copy of a member's report says of an image; the zero
// value for nothing.
func (f *testFleet) getReportedImage(t *testing.T, cluster, image string) v1alpha1.ReportedImage {
	t.Helper()
	var list v1alpha1.ClusterReportList
	require.NoError(t, f.List(t.Context(), &list, client.InNamespace(v1alpha1.MemberNamespacePrefix+cluster)))
	for i := range list.Items {
		if list.Items[i].Page == nil {
			continue
		}
		for _, img := range list.Items[i].Page.Images {
			if img.Name == image {
				return img
			}
		}
	}
	return v1alpha1.ReportedImage{}
}

// holdImport keeps the imports of an image from ending in a member, until release, or
// the end of the test.
func (s *testMember) holdImport(t *testing.T, name string) (release func()) {
	t.Helper()
	release = s.InstantImporter().HoldImports(func(dv *cdiv1.DataVolume) bool { return dv.Annotations[v1alpha1.AnnotationImageName] == name })
	t.Cleanup(release)
	return release
}

// createMachine creates one that names an image, and that nothing is made for.
func (s *testMember) createMachine(t *testing.T, name, image string) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := testenv.NewMachine(namespace, name, &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: image}})
	vm.Spec.IgnoreOnDeploy = true
	require.NoError(t, s.Create(t.Context(), vm))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(s.Delete(context.Background(), vm))) })
	return vm
}

// awaitFreshPlans rolls a further image out to clusters. When that is over, the hub has
// had its time to do to them what it should not have.
func (f *testFleet) awaitFreshPlans(t *testing.T, name string, clusters ...string) {
	t.Helper()
	img := f.newFleetImage(name, clusters...)
	f.createFleetImage(t, img)
	f.awaitFleetImage(t, img, "rolled out", hasSucceeded)
	for _, cluster := range clusters {
		f.Members[cluster].awaitPhase(t, img.ImageNameForVersion("1"), v1alpha1.PhaseSucceeded)
	}
}
