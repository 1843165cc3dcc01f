package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func TestComputeDesiredImages(t *testing.T) {
	const week = 168 * time.Hour
	fdi := func() *builder {
		return apitest.FleetDiskImage("ubuntu").WithVersion("3").WithFormer("3", "2", "1", "0")
	}
	template := fdi().Obj().Spec.Template
	older := template
	older.URL = "https://images.example.com/older.qcow2"
	before := toStoredTime(now.Add(-time.Hour))
	planned := func(spec v1alpha1.VMDiskImageSpec, at *metav1.Time) *v1alpha1.PlannedImage {
		return &v1alpha1.PlannedImage{Namespace: "images", Name: "ubuntu-3", Spec: spec, PlannedAt: at}
	}
	images := func(p *v1alpha1.PlannedImage) []v1alpha1.PlannedImage { return []v1alpha1.PlannedImage{*p} }
	kept := func(names ...string) (kept []v1alpha1.KeptImage) {
		for _, name := range names {
			kept = append(kept, v1alpha1.KeptImage{Namespace: "images", Name: name})
		}
		return kept
	}
	retired := func(after time.Duration, names ...string) (retired []v1alpha1.RetiredImage) {
		for _, name := range names {
			retired = append(retired, v1alpha1.RetiredImage{Namespace: "images", Name: name, UnreferencedFor: metav1.Duration{Duration: after}})
		}
		return retired
	}
	urgent := template
	urgent.Priority = 10

	for name, tt := range map[string]struct {
		img             *builder
		placed, started bool
		current         *v1alpha1.PlannedImage
		lacks           bool // the current version, though it has started
		want            rollout.DesiredImages
	}{
		"starts": {fdi(), true, true, nil, false,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Kept: kept("ubuntu-2")}},
		"started": {fdi(), true, true, planned(template, before), false,
			rollout.DesiredImages{Images: images(planned(template, before)), Kept: kept("ubuntu-2")}},
		"started, without plannedAt": {fdi(), true, true, planned(template, nil), false,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Kept: kept("ubuntu-2")}},
		"starts with another revision": {fdi(), true, true, planned(older, before), false,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Kept: kept("ubuntu-2")}},
		"fields outside the revision change at once": {fdi(), true, true, planned(urgent, before), false,
			rollout.DesiredImages{Images: images(planned(template, before)), Kept: kept("ubuntu-2")}},
		"not started": {fdi(), true, false, nil, false,
			rollout.DesiredImages{Kept: kept("ubuntu-3", "ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"not started, with a former revision": {fdi(), true, false, planned(older, before), false,
			rollout.DesiredImages{Images: images(planned(older, before)), Kept: kept("ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"not placed": {fdi(), false, false, nil, false,
			rollout.DesiredImages{Kept: kept("ubuntu-3", "ubuntu-2")}},
		"no longer placed": {fdi(), false, true, planned(template, before), false,
			rollout.DesiredImages{Kept: kept("ubuntu-3", "ubuntu-2")}},
		"one version is kept": {fdi().WithRetention(1, 0), true, true, nil, false,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now)))}},
		"older ones are retired": {fdi().WithRetention(1, week), true, true, nil, false,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Retired: retired(week, "ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"older ones stay until the current one succeeded": {fdi().WithRetention(1, week), true, true, nil, true,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Kept: kept("ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"older ones stay until the current one succeeded, without keepUnreferencedFor": {fdi().WithRetention(1, 0), true, true, nil, true,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Kept: kept("ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"older ones stay without a retention": {fdi(), true, true, nil, true,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Kept: kept("ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"older ones stay until it starts": {fdi().WithRetention(1, week), true, false, nil, true,
			rollout.DesiredImages{Kept: kept("ubuntu-3", "ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"older ones are retired where it is not placed": {fdi().WithRetention(3, week), false, false, nil, false,
			rollout.DesiredImages{Kept: kept("ubuntu-3", "ubuntu-2", "ubuntu-1"), Retired: retired(week, "ubuntu-0")}},
		"retention without a number keeps two": {fdi().WithRetention(0, week), true, true, nil, false,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Kept: kept("ubuntu-2"), Retired: retired(week, "ubuntu-1", "ubuntu-0")}},
		"keepVersions above the number of versions": {fdi().WithRetention(10, week), true, true, nil, false,
			rollout.DesiredImages{Images: images(planned(template, toStoredTime(now))), Kept: kept("ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"a version that the status lacks": {fdi().WithVersion("4").WithRetention(2, week), false, false, nil, false,
			rollout.DesiredImages{Kept: kept("ubuntu-4", "ubuntu-3"), Retired: retired(week, "ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"a former version is back": {fdi().WithVersion("1").WithRetention(2, week), false, false, nil, false,
			rollout.DesiredImages{Kept: kept("ubuntu-1", "ubuntu-3"), Retired: retired(week, "ubuntu-2", "ubuntu-0")}},
		"two versions that are one image": {
			apitest.FleetDiskImage("ubuntu").WithFormer("b-1").WithImageName("ubuntu-b").WithVersion("1").WithRetention(1, week), false, false, nil, false,
			rollout.DesiredImages{Kept: kept("ubuntu-b-1")}},
		"is being deleted, and its images stay":                {fdi().WithRetention(1, week).Deleted(now, v1alpha1.DeletionRetain), true, true, planned(template, before), false, rollout.DesiredImages{}},
		"is being deleted, no deletionPolicy":                  {fdi().Deleted(now, ""), true, true, planned(template, before), false, rollout.DesiredImages{}},
		"is being deleted before success, and its images stay": {fdi().Deleted(now, v1alpha1.DeletionRetain), true, true, planned(template, before), true, rollout.DesiredImages{}},
		"is being deleted with its images before success": {fdi().Deleted(now, v1alpha1.DeletionDelete), true, true, planned(template, before), true,
			rollout.DesiredImages{Retired: retired(0, "ubuntu-3", "ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"is being deleted with its images": {fdi().WithVersion("4").Deleted(now, v1alpha1.DeletionDelete), true, true, planned(template, before), false,
			rollout.DesiredImages{Retired: retired(0, "ubuntu-4", "ubuntu-3", "ubuntu-2", "ubuntu-1", "ubuntu-0")}},
	} {
		t.Run(name, func(t *testing.T) {
			img := tt.img.Obj()
			before := img.DeepCopy()
			current := tt.current.DeepCopy()
			got := rollout.ComputeDesiredImages(img, rollout.ClusterProgress{Placed: tt.placed, Started: tt.started, Succeeded: tt.placed && tt.started && !tt.lacks}, current, now)
			assert.Equal(t, tt.want, got)
			for i := range got.Images {
				*got.Images[i].PlannedAt, got.Images[i].Spec.Name = *toStoredTime(time.Time{}), "changed"
			}
			assert.Equal(t, before, img, "the result shares nothing with its arguments")
			assert.Equal(t, tt.current, current)
		})
	}
}

func TestEveryFieldOfATemplateIsPlanned(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").WithVersion("1").Obj()
	for field, spec := range apitest.SpecVariants(img.Spec.Template) {
		changed := img.DeepCopy()
		changed.Spec.Template = spec
		got := rollout.ComputeDesiredImages(changed, rollout.ClusterProgress{Placed: true, Started: true}, nil, now)
		require.Len(t, got.Images, 1)
		assert.Equal(t, spec, got.Images[0].Spec, field)
	}
}

// keepUnreferencedFor 0s retires older images at once; without it they stay.
func TestUnkeptVersionsAreRetiredTogether(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").WithVersion("2").WithFormer("1").WithRetention(1, time.Hour).Obj()
	img.Spec.Retention.KeepUnreferencedFor.Duration = 0
	w := rollout.ComputeDesiredImages(img, rollout.ClusterProgress{Placed: true, Started: true, Succeeded: true}, nil, now)
	assert.Equal(t, []v1alpha1.RetiredImage{{Namespace: "images", Name: "ubuntu-1"}}, w.Retired)
}

// In conflict no image is added, and none loses its protection.
func TestComputeDesiredInConflict(t *testing.T) {
	fdi := func() *builder {
		return apitest.FleetDiskImage("ubuntu").WithVersion("2").WithFormer("2", "1", "0").WithRetention(1, time.Hour)
	}
	older := fdi().Obj().Spec.Template
	older.URL = "https://images.example.com/older.qcow2"
	planned := &v1alpha1.PlannedImage{Namespace: "images", Name: "ubuntu-2", Spec: older, PlannedAt: toStoredTime(now.Add(-time.Hour))}
	kept := func(names ...string) (kept []v1alpha1.KeptImage) {
		for _, name := range names {
			kept = append(kept, v1alpha1.KeptImage{Namespace: "images", Name: name})
		}
		return kept
	}
	for name, tt := range map[string]struct {
		img     *builder
		current *v1alpha1.PlannedImage
		want    rollout.DesiredImages
	}{
		"not started, or its name is taken":     {fdi(), nil, rollout.DesiredImages{Kept: kept("ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"started":                               {fdi(), planned, rollout.DesiredImages{Images: []v1alpha1.PlannedImage{*planned}, Kept: kept("ubuntu-1", "ubuntu-0")}},
		"a version that the status lacks":       {fdi().WithVersion("3"), nil, rollout.DesiredImages{Kept: kept("ubuntu-3", "ubuntu-2", "ubuntu-1", "ubuntu-0")}},
		"is being deleted, and its images stay": {fdi().Deleted(now, v1alpha1.DeletionRetain), planned, rollout.DesiredImages{}},
		"is being deleted with its images":      {fdi().Deleted(now, v1alpha1.DeletionDelete), planned, rollout.DesiredImages{}},
	} {
		t.Run(name, func(t *testing.T) {
			img := tt.img.Obj()
			before, current := img.DeepCopy(), tt.current.DeepCopy()
			got := rollout.ComputeDesiredInConflict(img, current, now)
			assert.Equal(t, tt.want, got)
			for i := range got.Images {
				*got.Images[i].PlannedAt = *toStoredTime(time.Time{})
			}
			assert.Equal(t, before, img, "the result shares nothing with its arguments")
			assert.Equal(t, tt.current, current)
		})
	}
}

func TestCurrentNameTaken(t *testing.T) {
	fdi := func(name string) *builder { return apitest.FleetDiskImage(name).WithImageName("ubuntu") }
	img := fdi("m").WithVersion("2").WithFormer("2", "1").Created(apitest.Epoch.Add(time.Hour)).Obj()
	for name, tt := range map[string]struct {
		others []*builder
		want   bool
	}{
		"alone":                               {nil, false},
		"older, the same":                     {[]*builder{fdi("a").WithVersion("2")}, true},
		"older, former version":               {[]*builder{fdi("a").WithVersion("3").WithFormer("3", "2")}, true},
		"older, with a former version of img": {[]*builder{fdi("a").WithVersion("1")}, false},
		"younger, the same":                   {[]*builder{fdi("a").WithVersion("2").Created(apitest.Epoch.Add(2 * time.Hour))}, false},
		"the second oldest has the name":      {[]*builder{fdi("a").WithVersion("1"), fdi("b").WithVersion("2").Created(apitest.Epoch.Add(time.Minute))}, true},
		"another namespace, the same name":    {[]*builder{fdi("a").WithVersion("2").WithTargetNamespace("others")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			all := []v1alpha1.FleetDiskImage{*img}
			for _, o := range tt.others {
				all = append(all, *o.Obj())
			}
			assert.Equal(t, tt.want, rollout.CurrentNameTaken(img, all))
		})
	}
}

func TestImageNames(t *testing.T) {
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "images", Name: name} }
	img := apitest.FleetDiskImage("ubuntu").WithVersion("3").WithFormer("3", "2", "1")
	assert.Equal(t, []types.NamespacedName{key("ubuntu-3"), key("ubuntu-2"), key("ubuntu-1")}, rollout.ImageNames(img.Obj()))
	img.WithVersion("4").WithImageName("jammy")
	assert.Equal(t, []types.NamespacedName{key("jammy-4"), key("ubuntu-3"), key("ubuntu-2"), key("ubuntu-1")}, rollout.ImageNames(img.Obj()))
	img.WithTargetNamespace("others")
	assert.Equal(t, types.NamespacedName{Namespace: "others", Name: "jammy-4"}, rollout.CurrentImage(img.Obj()))
}

func TestFindConflict(t *testing.T) {
	fdi := func(name, image string) *builder { return apitest.FleetDiskImage(name).WithImageName(image) }
	younger := func(b *builder) *builder { return b.Created(apitest.Epoch.Add(time.Hour)) }
	img := younger(fdi("m", "ubuntu").WithVersion("2").WithFormer("2", "1"))
	for name, tt := range map[string]struct {
		others []*builder
		want   string
	}{
		"alone":                               {nil, ""},
		"another image":                       {[]*builder{fdi("a", "jammy").WithVersion("2")}, ""},
		"another version":                     {[]*builder{fdi("a", "ubuntu").WithVersion("3")}, ""},
		"another namespace":                   {[]*builder{fdi("a", "ubuntu").WithVersion("2").WithTargetNamespace("others")}, ""},
		"older, the same":                     {[]*builder{fdi("a", "ubuntu").WithVersion("2")}, "a"},
		"older, with a former version of img": {[]*builder{fdi("a", "ubuntu").WithVersion("1")}, "a"},
		"older, former version":               {[]*builder{fdi("a", "ubuntu").WithVersion("3").WithFormer("3", "2")}, "a"},
		"older, former version of both":       {[]*builder{fdi("a", "ubuntu").WithVersion("3").WithFormer("1")}, "a"},
		"younger":                             {[]*builder{fdi("a", "ubuntu").WithVersion("2").Created(apitest.Epoch.Add(2 * time.Hour))}, ""},
		"as old, first by name":               {[]*builder{younger(fdi("a", "ubuntu").WithVersion("2"))}, "a"},
		"as old, later by name":               {[]*builder{younger(fdi("z", "ubuntu").WithVersion("2"))}, ""},
		"the oldest of several":               {[]*builder{fdi("b", "ubuntu").WithVersion("2"), fdi("a", "ubuntu").WithVersion("2"), fdi("c", "ubuntu").WithVersion("1")}, "a"},
		"the oldest does not share a name":    {[]*builder{fdi("a", "jammy"), fdi("b", "ubuntu").WithVersion("2")}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			all := []v1alpha1.FleetDiskImage{*img.Obj()}
			for _, o := range tt.others {
				all = append(all, *o.Obj())
			}
			assert.Equal(t, tt.want, rollout.FindConflict(img.Obj(), all))
		})
	}
}

// Of several FleetDiskImages with one image name, exactly one has no conflict: plans hold
// one spec for that image.
func TestOldestImageHasNoConflict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "n")
		var all []v1alpha1.FleetDiskImage
		for i := range n {
			b := apitest.FleetDiskImage(string(rune('a' + i))).WithImageName("ubuntu").WithVersion("1").
				Created(apitest.Epoch.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "created")) * time.Second))
			all = append(all, *b.Obj())
		}
		without := 0
		for i := range all {
			if rollout.FindConflict(&all[i], all) == "" {
				without++
			}
		}
		require.Equal(t, 1, without)
	})
}
