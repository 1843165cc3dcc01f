package preload_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/preload"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

func newImage() *v1alpha1.FleetDiskImage {
	img := apitest.FleetDiskImage("win-11").WithVersion("24.2").WithFormer("24.2", "24.1").Obj()
	img.Spec.Placement = v1alpha1.Placement{ClusterNames: []string{"kiel"}, ExcludedClusters: []string{"lab"}}
	return img
}

func newTarget(name string, silent bool, reported *v1alpha1.ReportedImage) preload.Target {
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Status.LastReport = ptr.To(metav1.NewTime(now))
	if silent {
		m.Status.SilentSince = ptr.To(metav1.NewTime(now.Add(-time.Hour)))
	}
	t := preload.Target{Member: m}
	if reported != nil {
		t.Reported = []v1alpha1.ReportedImage{*reported}
	}
	return t
}

func ready(img *v1alpha1.FleetDiskImage) *v1alpha1.ReportedImage {
	return &v1alpha1.ReportedImage{Namespace: "images", Name: "win-11-24.2", UID: "1", Phase: v1alpha1.PhaseSucceeded, Revision: img.Spec.Template.Revision(), DownloadBytes: 600 << 20}
}

func TestCost(t *testing.T) {
	img := newImage()
	old := ready(img)
	old.Revision = "old"
	targets := []preload.Target{
		newTarget("bergen", false, ready(img)), newTarget("oslo", false, nil), newTarget("turku", false, old), newTarget("edge-3", true, ready(img)),
		newTarget("kiel", false, nil), newTarget("lab", false, nil),
	}
	got, err := preload.NewImage(img, targets, 0)
	require.NoError(t, err)
	assert.Equal(t, []string{"bergen"}, got.There)
	assert.Equal(t, []string{"oslo", "turku", "edge-3"}, got.Download, "what a silent cluster has reported is not relied on")
	assert.Equal(t, []string{"edge-3"}, got.Silent)
	assert.Equal(t, []string{"kiel"}, got.Placed)
	assert.Equal(t, []string{"lab"}, got.Excluded)
	assert.EqualValues(t, 3*600<<20, got.Bytes)
	assert.False(t, got.AtMost)
	img.Spec.Rollout.Paused = true
	unknown, err := preload.NewImage(img, targets[1:2], 0)
	require.NoError(t, err)
	assert.True(t, unknown.AtMost)
	p := preload.New(now, []preload.Image{got, unknown})
	assert.Equal(t, got.Bytes+1<<30, p.Bytes)
	rendertest.Golden(t, "cost", now, p)
	none, err := preload.NewImage(img, targets[:1], 0)
	require.NoError(t, err)
	assert.False(t, preload.New(now, []preload.Image{none}).HasDownloads())
}

func TestFindImage(t *testing.T) {
	images := []v1alpha1.FleetDiskImage{*apitest.FleetDiskImage("ubuntu").Obj(), *newImage()}
	for _, name := range []string{"win-11", "win-11-24.2"} {
		img, err := preload.FindImage(images, name)
		require.NoError(t, err)
		assert.Equal(t, "win-11", img.Name)
	}
	_, err := preload.FindImage(images, "win-11-24.1")
	require.ErrorContains(t, err, "kubectl ot rollout abort win-11 --back-to 24.1")
	_, err = preload.FindImage(images, "debian")
	require.ErrorContains(t, err, "there is no FleetDiskImage debian")
}

func TestPlace(t *testing.T) {
	img := newImage()
	require.NoError(t, preload.Place(img, []string{"oslo", "kiel", "bergen"}))
	assert.Equal(t, []string{"bergen", "kiel", "oslo"}, img.Spec.Placement.ClusterNames)
	var many []string
	for i := range preload.MaxClusterNames {
		many = append(many, fmt.Sprint(i))
	}
	require.ErrorContains(t, preload.Place(img, many), "select them by labels")
}

// The plan takes the image over: by its mark, and without another revision.
func TestMemberImage(t *testing.T) {
	img := newImage()
	member := newTarget("oslo", false, nil).Member
	image, err := preload.NewMemberImage(img, member)
	require.NoError(t, err)
	assert.Equal(t, "images/win-11-24.2", image.Namespace+"/"+image.Name)
	assert.Equal(t, img.Spec.Template.Revision(), image.Spec.Revision())
	assert.Equal(t, "true", image.Labels[v1alpha1.LabelPlanned])

	stored := image.DeepCopy()
	stored.Status.Phase = v1alpha1.PhaseSyncing
	scope := []string{"--cluster", "oslo", "--live", "--member-context", "'the lab'"}
	require.NoError(t, preload.CheckExisting(stored, image, "oslo", scope), "it was preloaded before")
	for name, change := range map[string]func(*v1alpha1.VMDiskImage){
		"failed":         func(i *v1alpha1.VMDiskImage) { i.Status.Phase = v1alpha1.PhaseFailed },
		"another source": func(i *v1alpha1.VMDiskImage) { i.Spec.URL += "x" },
		"is pruned":      func(i *v1alpha1.VMDiskImage) { i.Status.Phase = v1alpha1.PhasePrunePending },
		"of somebody":    func(i *v1alpha1.VMDiskImage) { i.Labels = nil },
		"is deleted":     func(i *v1alpha1.VMDiskImage) { i.DeletionTimestamp = &metav1.Time{} },
	} {
		other := stored.DeepCopy()
		change(other)
		require.EqualError(t, preload.CheckExisting(other, image, "oslo", scope),
			"VMDiskImage images/win-11-24.2 exists in oslo: kubectl ot why image win-11-24.2 -n images --cluster oslo --live --member-context 'the lab' says what it does", name)
	}
}

func TestOverridesDecideTheCost(t *testing.T) {
	img := newImage()
	img.Spec.Template.SourceType, img.Spec.Template.URL = v1alpha1.SourceHTTP, "https://images.example.com/a"
	img.Spec.Overrides = []v1alpha1.ImageOverride{
		{ClusterNames: []string{"oslo"}, DiskSize: ptr.To(resource.MustParse("3Gi")), URL: ptr.To("https://mirror.example.com/a")},
		{ClusterNames: []string{"bergen"}, StorageClass: ptr.To("lvm")},
		{ClusterNames: []string{"turku"}, URL: ptr.To("https://${labels.site}.example.com/a")},
	}
	got, err := preload.NewImage(img, []preload.Target{newTarget("bergen", false, ready(img)), newTarget("oslo", false, nil), newTarget("turku", false, nil)}, 600<<20)
	require.NoError(t, err)
	assert.Empty(t, got.There, "bergen has it in another storage class")
	assert.EqualValues(t, 600<<20+3<<30, got.Bytes, "turku cannot begin")
	assert.True(t, got.AtMost)
	require.Len(t, got.Notes, 1)
	assert.Contains(t, got.Notes[0], "turku is placed, and waits: its MemberCluster has no label site")

	image, err := preload.NewMemberImage(img, newTarget("oslo", false, nil).Member)
	require.NoError(t, err)
	assert.Equal(t, "https://mirror.example.com/a", image.Spec.URL)
	_, err = preload.NewMemberImage(img, newTarget("turku", false, nil).Member)
	require.ErrorContains(t, err, "cannot be brought to turku")
}
