//go:build linux

package prune_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// gibibyte is the size of every image here.
const gibibyte = 1 << 30

func imageSpec(name string) v1alpha1.VMDiskImageSpec {
	return v1alpha1.VMDiskImageSpec{
		Name: name, SourceType: v1alpha1.SourceHTTP, URL: "http://images.example.com/" + name + ".qcow2",
		DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
	}
}

// createImage makes an image as a person does, that nothing makes gone but what the test
// is about.
func (s *testMember) createImage(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: imageSpec(name)}
	require.NoError(t, s.Create(t.Context(), img))
	return img
}

// createLeftoverImages makes an image as a plan has left it: made by one, named by none any more,
// and synced.
func (s *testMember) createLeftoverImages(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		img := &v1alpha1.VMDiskImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.LabelPlanned: "true"}}, Spec: imageSpec(name),
		}
		require.NoError(t, s.Create(t.Context(), img))
	}
	for _, name := range names {
		s.awaitPhase(t, name, v1alpha1.PhaseSucceeded)
	}
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
	return s.awaitImage(t, name, string(phase), func(img *v1alpha1.VMDiskImage) bool { return img.Status.Phase == phase })
}

// awaitImage waits until a member has an image that is as wanted.
func (s *testMember) awaitImage(t *testing.T, name, wanted string, holds func(*v1alpha1.VMDiskImage) bool) *v1alpha1.VMDiskImage {
	t.Helper()
	var img *v1alpha1.VMDiskImage
	if !testenv.Await(t, func() bool {
		img = s.getImage(t, name)
		return img != nil && holds(img)
	}) {
		require.Failf(t, "image is not as wanted", "%s: want %s %s, there is %+v", s.name, name, wanted, img)
	}
	return img
}

// requireServing waits until a member has an image that serves, and that nothing is about to
// take away.
func (s *testMember) requireServing(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := s.awaitPhase(t, name, v1alpha1.PhaseSucceeded)
	assert.Nil(t, img.DeletionTimestamp)
	requireReady(t, img)
	return img
}

// requireReady wants an image that machines can be built from.
func requireReady(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	assert.NotNil(t, img.Status.Serving, "%s serves", img.Name)
	assert.True(t, meta.IsStatusConditionTrue(img.Status.Conditions, v1alpha1.ConditionReady), "%s is ready: %+v", img.Name, img.Status.Conditions)
}

// awaitImageGone waits until a member has neither an image nor its storage any more.
func (s *testMember) awaitImageGone(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	var got *v1alpha1.VMDiskImage
	require.True(t, testenv.Await(t, func() bool {
		got = s.getImage(t, img.Name)
		return got == nil || got.UID != img.UID
	}), "%s: image %s is still there: %+v", s.name, img.Name, &got)
	assert.Empty(t, s.listStorage(t, img), "%s: storage of %s", s.name, img.Name)
}

// listStorage are the objects of a member that were made for an image.
func (s *testMember) listStorage(t *testing.T, img *v1alpha1.VMDiskImage) (objects []string) {
	t.Helper()
	for _, list := range []client.ObjectList{&cdiv1.DataVolumeList{}, &corev1.PersistentVolumeClaimList{}} {
		require.NoError(t, s.Client().List(t.Context(), list, client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
		require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
			objects = append(objects, fmt.Sprintf("%T %s", o, o.(client.Object).GetName()))
			return nil
		}))
	}
	return objects
}

// createMachine creates one that names an image, and that nothing is made for.
func (s *testMember) createMachine(t *testing.T, image string) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := testenv.NewMachine(namespace, image, &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: image}})
	vm.Spec.IgnoreOnDeploy = true
	require.NoError(t, s.Create(t.Context(), vm))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(s.Delete(context.Background(), vm))) })
	return vm
}

// awaitMachineReady waits until a machine has its image: the very one that is there.
func (s *testMember) awaitMachineReady(t *testing.T, vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) {
	t.Helper()
	got := &v1alpha1.VirtualMachine{}
	require.True(t, testenv.Await(t, func() bool {
		got = &v1alpha1.VirtualMachine{}
		return s.Get(t.Context(), client.ObjectKeyFromObject(vm), got) == nil && got.Status.Phase == v1alpha1.MachineReady
	}), "%s: machine %s is not ready: %s, %s: %s", s.name, vm.Name, &got.Status.Phase, &got.Status.Reason, &got.Status.Message)
	there := s.getImage(t, img.Name)
	require.NotNil(t, there, "%s: the image of machine %s has vanished", s.name, vm.Name)
	assert.Equal(t, img.UID, there.UID)
	requireReady(t, there)
}

// newPruneReport is one of images whose names begin so, in some clusters, not created
// yet.
func newPruneReport(name, prefix string, clusters ...string) *v1alpha1.PruneReport {
	return &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.PruneReportSpec{
			Placement:     &v1alpha1.Placement{ClusterNames: clusters},
			ImageSelector: &v1alpha1.ImageSelector{Namespaces: []string{namespace}, Names: []string{prefix + "*"}},
		},
	}
}

// createReport creates a PruneReport, which goes with the test.
func (f *testFleet) createReport(t *testing.T, r *v1alpha1.PruneReport) {
	t.Helper()
	require.NoError(t, f.Create(t.Context(), r))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), r))) })
}

// createCompleteReport has one made of images whose names begin so, in some clusters.
func (f *testFleet) createCompleteReport(t *testing.T, prefix string, clusters ...string) *v1alpha1.PruneReport {
	t.Helper()
	r := newPruneReport(strings.TrimSuffix(prefix, "-"), prefix, clusters...)
	f.createReport(t, r)
	return f.awaitReportComplete(t, r)
}

// awaitReportComplete waits until a PruneReport is.
func (f *testFleet) awaitReportComplete(t *testing.T, r *v1alpha1.PruneReport) *v1alpha1.PruneReport {
	t.Helper()
	return f.awaitReport(t, r, "complete", func(r *v1alpha1.PruneReport) bool {
		return r.Status.Phase == v1alpha1.PruneReportComplete && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete)
	})
}

// awaitReport reads a PruneReport until it is as wanted.
func (f *testFleet) awaitReport(t *testing.T, r *v1alpha1.PruneReport, wanted string, holds func(*v1alpha1.PruneReport) bool) *v1alpha1.PruneReport {
	t.Helper()
	got := &v1alpha1.PruneReport{}
	if !testenv.Await(t, func() bool {
		got = &v1alpha1.PruneReport{}
		return f.Get(t.Context(), client.ObjectKeyFromObject(r), got) == nil && holds(got)
	}) {
		require.Failf(t, "PruneReport "+r.Name+" is not as wanted: "+wanted, "%+v\nthe hub's log is %s", got.Status, f.Hub.LogFile())
	}
	return got
}

// listWrittenPages are all pages of a PruneReport, those of tries that came to nothing too.
func (f *testFleet) listWrittenPages(t *testing.T, r *v1alpha1.PruneReport) []v1alpha1.PruneReportPage {
	t.Helper()
	var list v1alpha1.PruneReportPageList
	require.NoError(t, f.List(t.Context(), &list, client.MatchingLabels{v1alpha1.LabelPruneReport: string(r.UID)}))
	return list.Items
}

// listReportPages that a PruneReport consists of, in their order.
func (f *testFleet) listReportPages(t *testing.T, r *v1alpha1.PruneReport) []v1alpha1.PruneReportPage {
	t.Helper()
	pages := slices.DeleteFunc(f.listWrittenPages(t, r), func(page v1alpha1.PruneReportPage) bool {
		return !strings.HasPrefix(page.Name, r.Name+"-"+r.Status.Digest+"-")
	})
	number := func(page v1alpha1.PruneReportPage) (n int) {
		_, err := fmt.Sscan(page.Name[strings.LastIndex(page.Name, "-")+1:], &n)
		require.NoError(t, err, page.Name)
		return n
	}
	slices.SortFunc(pages, func(a, b v1alpha1.PruneReportPage) int { return cmp.Compare(number(a), number(b)) })
	require.Len(t, pages, int(r.Status.Pages))
	return pages
}

// clustersInReport is what the pages of a PruneReport say of each cluster.
func (f *testFleet) clustersInReport(t *testing.T, r *v1alpha1.PruneReport) map[string]*v1alpha1.ReportedCluster {
	t.Helper()
	said := map[string]*v1alpha1.ReportedCluster{}
	for _, page := range f.listReportPages(t, r) {
		for i := range page.Clusters {
			part := &page.Clusters[i]
			if whole := said[part.Cluster]; whole != nil {
				whole.Candidates = append(whole.Candidates, part.Candidates...)
				whole.Kept = append(whole.Kept, part.Kept...)
				whole.Orphans = append(whole.Orphans, part.Orphans...)
				continue
			}
			said[part.Cluster] = part
		}
	}
	return said
}

// candidateNames of a cluster, by name.
func candidateNames(c *v1alpha1.ReportedCluster) []string {
	names := []string{}
	for i := range c.Candidates {
		names = append(names, c.Candidates[i].Name)
	}
	return names
}

// keptReasons are the images that a cluster keeps, by name, with why.
func keptReasons(c *v1alpha1.ReportedCluster) map[string]string {
	why := map[string]string{}
	for _, k := range c.Kept {
		for _, key := range k.Images {
			why[strings.TrimPrefix(key, namespace+"/")] = strings.TrimSuffix(string(k.Reason)+": "+k.Detail, ": ")
		}
	}
	return why
}

// newImagePrune is one of all candidates of a report that plans have made, without an
// undo window, not created yet.
func newImagePrune(name string, r *v1alpha1.PruneReport) *v1alpha1.ImagePrune {
	return &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ImagePruneSpec{
			ReportRef:  v1alpha1.PruneReportRef{Name: r.Name, Digest: r.Status.Digest},
			ApprovedBy: approver, UndoWindow: &metav1.Duration{}, Deadline: &metav1.Duration{Duration: time.Hour},
		},
	}
}

// withUndoWindow has an ImagePrune have an undo window.
func withUndoWindow(p *v1alpha1.ImagePrune, window time.Duration) *v1alpha1.ImagePrune {
	p.Spec.UndoWindow = &metav1.Duration{Duration: window}
	return p
}

// createPrune creates an ImagePrune, which goes with the test.
func (f *testFleet) createPrune(t *testing.T, p *v1alpha1.ImagePrune) {
	t.Helper()
	require.NoError(t, f.Create(t.Context(), p))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), p))) })
}

// createPendingPrune has all candidates of a report that plans have made go after a window, and
// waits until all of them are in it.
func (f *testFleet) createPendingPrune(t *testing.T, name string, r *v1alpha1.PruneReport, window time.Duration) *v1alpha1.ImagePrune {
	t.Helper()
	p := withUndoWindow(newImagePrune(name, r), window)
	f.createPrune(t, p)
	return f.awaitPrune(t, p, "all pending", func(p *v1alpha1.ImagePrune) bool {
		return p.Status.Targets.Total > 0 && p.Status.Targets.Pending == p.Status.Targets.Total
	})
}

// awaitPrune reads an ImagePrune until it is as wanted.
func (f *testFleet) awaitPrune(t *testing.T, p *v1alpha1.ImagePrune, wanted string, holds ...func(*v1alpha1.ImagePrune) bool) *v1alpha1.ImagePrune {
	t.Helper()
	got := &v1alpha1.ImagePrune{}
	if !testenv.Await(t, func() bool {
		got = &v1alpha1.ImagePrune{}
		return f.Get(t.Context(), client.ObjectKeyFromObject(p), got) == nil && got.Status.ObservedGeneration == got.Generation &&
			!slices.ContainsFunc(holds, func(hold func(*v1alpha1.ImagePrune) bool) bool { return !hold(got) })
	}) {
		require.Failf(t, "ImagePrune "+p.Name+" is not as wanted: "+wanted, "generation %d: %+v\nthe hub's log is %s", got.Generation, got.Status, f.Hub.LogFile())
	}
	return got
}

// awaitPruneEnd waits until an ImagePrune has ended as wanted.
func (f *testFleet) awaitPruneEnd(t *testing.T, p *v1alpha1.ImagePrune, phase v1alpha1.ImagePrunePhase, reason string, want v1alpha1.TargetCounts) *v1alpha1.ImagePrune {
	t.Helper()
	got := f.awaitPrune(t, p, "ended", func(p *v1alpha1.ImagePrune) bool { return p.Status.Phase.IsFinal() })
	assert.Equal(t, phase, got.Status.Phase, "%+v", got.Status)
	assert.Equal(t, reason, got.Status.Reason, "%+v", got.Status)
	assert.Equal(t, want, got.Status.Targets, "%+v", got.Status)
	finished := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionFinished)
	if assert.NotNil(t, finished) {
		assert.Equal(t, metav1.ConditionTrue, finished.Status)
		assert.Equal(t, got.Generation, finished.ObservedGeneration)
	}
	assert.Equal(t, want.Skipped+want.Unknown == 0, meta.IsStatusConditionTrue(got.Status.Conditions, v1alpha1.ConditionSucceeded))
	assert.NotNil(t, got.Status.FinishedAt)
	return got
}

// awaitPruned waits until an ImagePrune has had all of its images go.
func (f *testFleet) awaitPruned(t *testing.T, p *v1alpha1.ImagePrune, n int32) *v1alpha1.ImagePrune {
	t.Helper()
	got := f.awaitPruneEnd(t, p, v1alpha1.ImagePruneComplete, v1alpha1.ReasonPruned, v1alpha1.TargetCounts{Total: n, Pruned: n})
	assert.Equal(t, int64(n)*gibibyte, got.Status.PrunedBytes)
	return got
}

// undoPrune takes an ImagePrune back.
func (f *testFleet) undoPrune(t *testing.T, p *v1alpha1.ImagePrune) {
	t.Helper()
	require.NoError(t, f.Patch(t.Context(), p.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"undo":true}}`))))
}

// skippedReasons are the images that an ImagePrune has not pruned, as cluster/name, with
// why.
func skippedReasons(p *v1alpha1.ImagePrune) map[string]string {
	why := map[string]string{}
	for _, s := range p.Status.Skipped {
		why[s.Cluster+"/"+s.Name] = fmt.Sprintf("%s %s", s.State, s.Reason)
	}
	return why
}

// newFleetImage is version 1 of an image for clusters, not created yet.
func newFleetImage(name string, clusters ...string) *v1alpha1.FleetDiskImage {
	img := &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.FleetDiskImageSpec{
			TargetNamespace: namespace, Template: imageSpec(name), Placement: v1alpha1.Placement{ClusterNames: clusters},
		},
	}
	setVersion(img, "1")
	return img
}

func setVersion(img *v1alpha1.FleetDiskImage, version string) {
	img.Spec.Version = version
	img.Spec.Template.URL = fmt.Sprintf("http://images.example.com/%s/%s.qcow2", img.Name, version)
}

// rollOut stores a FleetDiskImage as it is and waits until it is rolled out. It goes
// with the test; its images stay.
func (f *testFleet) rollOut(t *testing.T, img *v1alpha1.FleetDiskImage) {
	t.Helper()
	if img.UID == "" {
		require.NoError(t, f.Create(t.Context(), img))
		t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), img))) })
	} else {
		spec := img.Spec
		require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // its status is still being told
			if err := f.Get(t.Context(), client.ObjectKeyFromObject(img), img); err != nil {
				return err
			}
			img.Spec = spec
			return f.Update(t.Context(), img)
		}))
	}
	got := &v1alpha1.FleetDiskImage{}
	require.True(t, testenv.Await(t, func() bool {
		got = &v1alpha1.FleetDiskImage{}
		require.NoError(t, f.Get(t.Context(), client.ObjectKeyFromObject(img), got))
		return got.Status.ObservedGeneration == got.Generation && got.Status.Phase == v1alpha1.RolloutSucceeded
	}), "FleetDiskImage %s is not rolled out: %+v", img.Name, &got)
}

// unreferencedSince is when an image has been without machines for so long.
func unreferencedSince(now time.Time, by time.Duration) *metav1.Time {
	return ptr.To(metav1.NewTime(now.Add(-by).Truncate(time.Second)))
}

// mailboxKey is the key of a member's plan on the hub.
func mailboxKey(cluster string) client.ObjectKey {
	return client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + cluster, Name: v1alpha1.MailboxName}
}

func keyOf(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }
