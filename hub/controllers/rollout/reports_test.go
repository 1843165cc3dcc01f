package rollout

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func newRoot(pages ...v1alpha1.PageRef) *v1alpha1.ReportRoot {
	return &v1alpha1.ReportRoot{Pages: pages}
}

func TestReportEnqueuesNamedImages(t *testing.T) {
	ubuntu := apitest.FleetDiskImage("ubuntu")
	b := newTestState(t, "bergen", "oslo")
	b.SetImage(storedImage(ubuntu.WithFormer("1.0.0", "0.9.0")))
	b.SetImage(storedImage(apitest.FleetDiskImage("debian")))
	b.decideAll("ubuntu", "debian")
	b.applyPlans("bergen", "oslo")
	b.decideAll("ubuntu", "debian")

	state := func() v1alpha1.ClusterState {
		placed, found := b.PlacedClusters("ubuntu", now)
		require.True(t, found)
		return placed[0].State
	}
	for _, step := range []struct {
		name       string
		images     []v1alpha1.ReportedImage
		wantLooked []string
		wantState  v1alpha1.ClusterState
	}{
		{"another image", []v1alpha1.ReportedImage{newReported("windows", v1alpha1.PhaseSyncing)}, []string{}, v1alpha1.ClusterProgressing},
		{"one of debian", []v1alpha1.ReportedImage{newReported("debian-1.0.0", v1alpha1.PhaseSyncing)}, []string{"debian"}, v1alpha1.ClusterProgressing},
		{"a former one", []v1alpha1.ReportedImage{newReported("debian-1.0.0", v1alpha1.PhaseSyncing), newReported("ubuntu-0.9.0", v1alpha1.PhaseFailed)}, []string{}, v1alpha1.ClusterProgressing},
		{"the current one, and less else", []v1alpha1.ReportedImage{withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), ubuntu)}, []string{"debian", "ubuntu"}, v1alpha1.ClusterSucceeded},
		{"nothing new", []v1alpha1.ReportedImage{withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), ubuntu)}, []string{}, v1alpha1.ClusterSucceeded},
		{"it has failed", []v1alpha1.ReportedImage{withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseFailed), ubuntu)}, []string{"ubuntu"}, v1alpha1.ClusterFailed},
		{"it is gone", nil, []string{"ubuntu"}, v1alpha1.ClusterProgressing},
	} {
		b.resetCalls()
		b.reportImages("bergen", step.images...)
		assert.Equal(t, step.wantLooked, append([]string{}, sortedKeys(b.enqueued)...), step.name)
		assert.Equal(t, step.wantState, state(), step.name)
	}
	b.reportImages("bergen", withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), ubuntu))
	b.DropPage("bergen", "page")
	assert.Equal(t, v1alpha1.ClusterProgressing, state(), "the page is gone")
	b.reportImages("bergen", withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), ubuntu))
	b.Forget("bergen")
	assert.Equal(t, v1alpha1.ClusterProgressing, state(), "so is the report")
}

// Of two pages that have an image, the newer one counts, and none that the root
// does not list.
func TestMovedImageIsReadFromNewestPage(t *testing.T) {
	b := newTestState(t, "bergen")
	m := b.members["bergen"]
	phase := func() v1alpha1.Phase { return m.newestReport(newImageKey("images", "ubuntu-1.0.0")).Phase }
	b.SetPage("bergen", "a", 1, []v1alpha1.ReportedImage{newReported("ubuntu-1.0.0", v1alpha1.PhaseQueued)})
	assert.Empty(t, phase())
	b.SetRoot("bergen", newRoot(v1alpha1.PageRef{Name: "a", Sequence: 1}))
	assert.Equal(t, v1alpha1.PhaseQueued, phase())
	b.SetPage("bergen", "b", 2, []v1alpha1.ReportedImage{newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded)})
	assert.Equal(t, v1alpha1.PhaseQueued, phase())
	b.SetRoot("bergen", newRoot(v1alpha1.PageRef{Name: "a", Sequence: 1}, v1alpha1.PageRef{Name: "b", Sequence: 2}))
	assert.Equal(t, v1alpha1.PhaseSucceeded, phase())
	b.SetRoot("bergen", newRoot(v1alpha1.PageRef{Name: "b", Sequence: 2}))
	assert.Equal(t, v1alpha1.PhaseSucceeded, phase())
	b.SetRoot("bergen", nil)
	assert.Empty(t, phase())
}

// A FleetDiskImage that takes its images with it stays until each member has said
// that they are gone.
func TestMembersHoldingADeletedImage(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").WithFormer("1.0.0", "0.9.0")
	leaving := func(t *testing.T) *testState {
		b := newTestState(t, "bergen")
		b.SetImage(storedImage(img))
		b.decideAll("ubuntu")
		b.applyPlans("bergen")
		b.reportImages("bergen", newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded))
		gone := storedImage(img)
		gone.DeletionTimestamp, gone.Spec.DeletionPolicy, gone.Generation = &metav1.Time{Time: now}, v1alpha1.DeletionDelete, 2
		b.SetImage(gone)
		return b
	}
	held := func(b *testState) bool {
		_, held, found := b.Decide("ubuntu", now)
		require.True(b.t, found)
		return held
	}
	for name, tt := range map[string]struct {
		then     func(*testState)
		wantHeld bool
	}{
		"at first": {func(*testState) {}, true},
		"the plan does not say it yet": {func(b *testState) {
			b.reportImages("bergen")
		}, true},
		"the plan is not acknowledged": {func(b *testState) {
			b.reportImages("bergen")
			w, _ := b.ForMember("bergen")
			b.SetPlan("bergen", b.buildPlan("bergen", w))
		}, true},
		"it was never planned, and may be any moment": {func(b *testState) {
			b.reportImages("bergen")
			b.SetPlan("bergen", b.buildPlan("bergen", rollout.DesiredImages{}))
			b.acknowledgePlan("bergen")
		}, true},
		"it is there yet": {func(b *testState) { b.applyPlans("bergen") }, true},
		"a former one is": {func(b *testState) {
			b.applyPlans("bergen")
			b.reportImages("bergen", newReported("ubuntu-0.9.0", v1alpha1.PhaseSucceeded))
		}, true},
		"a page is missing": {func(b *testState) {
			b.applyPlans("bergen")
			b.reportImages("bergen")
			m := b.members["bergen"]
			b.SetRoot("bergen", &v1alpha1.ReportRoot{Plan: m.acknowledged, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: m.listedPages["page"]}, {Name: "other", Sequence: 1}}})
		}, true},
		"a page is older than the root": {func(b *testState) {
			b.applyPlans("bergen")
			b.reportImages("bergen")
			m := b.members["bergen"]
			b.SetRoot("bergen", &v1alpha1.ReportRoot{Plan: m.acknowledged, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: m.listedPages["page"] + 1}}})
		}, true},
		"it is offline, and had it": {func(b *testState) {
			b.applyPlans("bergen")
			b.SetMember(offlineMember("bergen"))
		}, true},
		"it has gone": {func(b *testState) {
			b.applyPlans("bergen")
			b.reportImages("bergen")
		}, false},
		"it goes": {func(b *testState) {
			b.applyPlans("bergen")
			b.reportImages("bergen", newReported("ubuntu-1.0.0", v1alpha1.PhaseDeleting), newReported("ubuntu-0.9.0", v1alpha1.PhaseTerminating))
		}, false},
		"somebody else has made it": {func(b *testState) {
			b.applyPlans("bergen")
			theirs := newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded)
			theirs.Origin = ""
			b.reportImages("bergen", theirs)
		}, false},
		"it was gone when it was last seen": {func(b *testState) {
			b.applyPlans("bergen")
			b.reportImages("bergen")
			b.SetMember(offlineMember("bergen"))
		}, false},
		"the member has left": {func(b *testState) { b.RemoveMember("bergen") }, false},
		"nothing was ever planned for it": {func(b *testState) {
			b.reportImages("bergen")
			b.SetPlan("bergen", nil)
		}, false},
		"the images may stay": {func(b *testState) {
			retained := b.copyStoredImage("ubuntu")
			retained.Spec.DeletionPolicy, retained.Generation = v1alpha1.DeletionRetain, 3
			b.SetImage(retained)
		}, false},
		"they are an older one's": {func(b *testState) {
			older := storedImage(apitest.FleetDiskImage("older").WithImageName("ubuntu").Created(apitest.Epoch.Add(-time.Hour)))
			b.SetImage(older)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := leaving(t)
			require.True(t, held(b))
			b.resetCalls()
			tt.then(b)
			require.True(t, tt.wantHeld || b.enqueued["ubuntu"] > 0, "it is looked at")
			assert.Equal(t, tt.wantHeld, held(b))
		})
	}
}

// fleetInputs is all that a Board is shown of a fleet.
type fleetInputs struct {
	members map[string]*v1alpha1.MemberCluster
	plans   map[string]*v1alpha1.ClusterPlan
	images  map[string]*v1alpha1.FleetDiskImage
	roots   map[string]*v1alpha1.ReportRoot
	pages   map[[2]string]v1alpha1.ClusterReport
}

func (in *fleetInputs) applyTo(b *FleetState) {
	for name, img := range in.images {
		b.SetImage(img)
		_ = name
	}
	for key, p := range in.pages {
		b.SetPage(key[0], key[1], p.Sequence, p.Page.Images)
	}
	for name, r := range in.roots {
		b.SetRoot(name, r)
	}
	for name, p := range in.plans {
		b.SetPlan(name, p)
	}
	for _, m := range in.members {
		b.SetMember(m)
	}
}

// gatherViews is what is decided on about each FleetDiskImage.
func gatherViews(b *FleetState) map[string]rollout.View {
	views := map[string]rollout.View{}
	for _, c := range slices.Clone(b.sorted) {
		c.mu.Lock()
		v := b.gatherView(c, now)
		v.Clusters = slices.Clone(v.Clusters)
		views[c.name] = v
		c.mu.Unlock()
	}
	return views
}

// Whatever came in whatever order: a Board that was told of each change shows the
// same as one that is told of all at once. And it has asked to be looked at where
// it shows something new.
func TestIncrementalStateMatchesFreshState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := fleetInputs{
			map[string]*v1alpha1.MemberCluster{}, map[string]*v1alpha1.ClusterPlan{}, map[string]*v1alpha1.FleetDiskImage{},
			map[string]*v1alpha1.ReportRoot{}, map[[2]string]v1alpha1.ClusterReport{},
		}
		b := NewFleetState(func() bool { return true })
		looked := map[string]bool{}
		b.OnImageChange(func(image string) { looked[image] = true })
		member := rapid.SampledFrom([]string{"bergen", "lab", "oslo"})
		image := rapid.SampledFrom([]string{"debian", "ubuntu"})
		version := rapid.SampledFrom([]string{"1", "2"})
		builder := func(t *rapid.T, name string) *apitest.FleetDiskImageBuilder {
			return apitest.FleetDiskImage(name).WithVersion(version.Draw(t, "version")).WithURL("https://images.example.com/" + version.Draw(t, "url"))
		}
		shown := gatherViews(b)
		sequence := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"a member": func(t *rapid.T) {
				m := onlineMember(member.Draw(t, "member"))
				if rapid.Bool().Draw(t, "offline") {
					m = offlineMember(m.Name)
				}
				m.Labels["edge"] = fmt.Sprint(rapid.Bool().Draw(t, "edge"))
				in.members[m.Name] = m
				b.SetMember(m)
			},
			"a member goes": func(t *rapid.T) {
				name := member.Draw(t, "member")
				delete(in.members, name)
				b.RemoveMember(name)
			},
			"a FleetDiskImage": func(t *rapid.T) {
				img := storedImage(builder(t, image.Draw(t, "image")))
				img.Spec.ImageName = rapid.SampledFrom([]string{"", "ubuntu"}).Draw(t, "imageName")
				sequence++
				img.Generation = sequence
				if rapid.Bool().Draw(t, "leaving") {
					img.DeletionTimestamp, img.Spec.DeletionPolicy = &metav1.Time{Time: now}, v1alpha1.DeletionDelete
				}
				in.images[img.Name] = img
				b.SetImage(img)
			},
			"a FleetDiskImage goes": func(t *rapid.T) {
				name := image.Draw(t, "image")
				delete(in.images, name)
				b.RemoveImage(name)
			},
			"a plan": func(t *rapid.T) {
				name := member.Draw(t, "member")
				p := &v1alpha1.ClusterPlan{}
				for _, img := range rapid.SliceOfNDistinct(image, 0, 2, rapid.ID[string]).Draw(t, "images") {
					spec := builder(t, img).Obj()
					at := metav1.NewTime(now)
					p.Spec.Images = append(p.Spec.Images, v1alpha1.PlannedImage{Namespace: "images", Name: spec.ImageNameForVersion(spec.Spec.Version), Spec: spec.Spec.Template, PlannedAt: &at})
				}
				in.plans[name] = p
				b.SetPlan(name, p)
			},
			"a plan goes": func(t *rapid.T) {
				name := member.Draw(t, "member")
				delete(in.plans, name)
				b.SetPlan(name, nil)
			},
			"a page": func(t *rapid.T) {
				key := [2]string{member.Draw(t, "member"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "page")}
				sequence++
				p := v1alpha1.ClusterReport{Sequence: sequence, Page: &v1alpha1.ReportPage{}}
				for _, img := range rapid.SliceOfNDistinct(image, 0, 2, rapid.ID[string]).Draw(t, "images") {
					p.Page.Images = append(p.Page.Images, newReported(img+"-"+version.Draw(t, "version"), rapid.SampledFrom([]v1alpha1.Phase{v1alpha1.PhaseSyncing, v1alpha1.PhaseSucceeded}).Draw(t, "phase")))
				}
				in.pages[key] = p
				b.SetPage(key[0], key[1], p.Sequence, p.Page.Images)
			},
			"a page goes": func(t *rapid.T) {
				key := [2]string{member.Draw(t, "member"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "page")}
				delete(in.pages, key)
				b.DropPage(key[0], key[1])
			},
			"a root": func(t *rapid.T) {
				name := member.Draw(t, "member")
				r := &v1alpha1.ReportRoot{}
				for _, page := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b"}), 0, 2, rapid.ID[string]).Draw(t, "pages") {
					r.Pages = append(r.Pages, v1alpha1.PageRef{Name: page, Sequence: in.pages[[2]string{name, page}].Sequence})
				}
				in.roots[name] = r
				b.SetRoot(name, r)
			},
			"a report goes": func(t *rapid.T) {
				name := member.Draw(t, "member")
				delete(in.roots, name)
				delete(in.pages, [2]string{name, "a"})
				delete(in.pages, [2]string{name, "b"})
				b.Forget(name)
			},
			"": func(t *rapid.T) {
				views := gatherViews(b)
				fresh := NewFleetState(func() bool { return true })
				in.applyTo(fresh)
				require.Equal(t, gatherViews(fresh), views)
				for name, v := range views {
					if !looked[name] {
						require.Equal(t, shown[name], v, "%s shows something new and was not looked at", name)
					}
				}
				clear(looked)
				shown = views
			},
		})
		for name := range in.members {
			b.RemoveMember(name)
		}
		for name := range in.images {
			b.RemoveImage(name)
		}
		for name := range in.plans {
			b.SetPlan(name, nil)
		}
		for _, name := range []string{"bergen", "lab", "oslo"} {
			b.Forget(name)
		}
		require.Empty(t, b.members, "nothing is left of what is gone")
		require.Empty(t, b.byImageName)
	})
}
