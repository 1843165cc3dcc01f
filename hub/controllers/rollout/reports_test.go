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
	f := newTestState(t, "bergen", "oslo")
	f.SetImage(storedImage(ubuntu.WithFormer("1.0.0", "0.9.0")))
	f.SetImage(storedImage(apitest.FleetDiskImage("debian")))
	f.decideAll("ubuntu", "debian")
	f.applyPlans("bergen", "oslo")
	f.decideAll("ubuntu", "debian")

	state := func() v1alpha1.ClusterState {
		placed, found := f.listPlaced("ubuntu")
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
		f.resetCalls()
		f.reportImages("bergen", step.images...)
		assert.Equal(t, step.wantLooked, append([]string{}, sortedKeys(f.enqueued)...), step.name)
		assert.Equal(t, step.wantState, state(), step.name)
	}
	f.reportImages("bergen", withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), ubuntu))
	f.DropPage("bergen", "page")
	assert.Equal(t, v1alpha1.ClusterProgressing, state(), "the page is dropped")
	f.reportImages("bergen", withRevisionOf(newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded), ubuntu))
	f.Forget("bergen")
	assert.Equal(t, v1alpha1.ClusterProgressing, state(), "the report is dropped")
}

// Pages that the root does not list are ignored.
func TestMovedImageIsReadFromNewestPage(t *testing.T) {
	f := newTestState(t, "bergen")
	m := f.members["bergen"]
	phase := func() v1alpha1.Phase { return m.newestReport(newImageKey("images", "ubuntu-1.0.0")).Phase }
	f.SetPage("bergen", "a", 1, []v1alpha1.ReportedImage{newReported("ubuntu-1.0.0", v1alpha1.PhaseQueued)})
	assert.Empty(t, phase())
	f.SetRoot("bergen", newRoot(v1alpha1.PageRef{Name: "a", Sequence: 1}))
	assert.Equal(t, v1alpha1.PhaseQueued, phase())
	f.SetPage("bergen", "b", 2, []v1alpha1.ReportedImage{newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded)})
	assert.Equal(t, v1alpha1.PhaseQueued, phase())
	f.SetRoot("bergen", newRoot(v1alpha1.PageRef{Name: "a", Sequence: 1}, v1alpha1.PageRef{Name: "b", Sequence: 2}))
	assert.Equal(t, v1alpha1.PhaseSucceeded, phase())
	f.SetRoot("bergen", newRoot(v1alpha1.PageRef{Name: "b", Sequence: 2}))
	assert.Equal(t, v1alpha1.PhaseSucceeded, phase())
	f.SetRoot("bergen", nil)
	assert.Empty(t, phase())
}

// A FleetDiskImage that is deleted with its images stays until each member has reported
// their deletion.
func TestMembersHoldingADeletedImage(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").WithFormer("1.0.0", "0.9.0")
	leaving := func(t *testing.T) *testState {
		f := newTestState(t, "bergen")
		f.SetImage(storedImage(img))
		f.decideAll("ubuntu")
		f.applyPlans("bergen")
		f.reportImages("bergen", newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded))
		gone := storedImage(img)
		gone.DeletionTimestamp, gone.Spec.DeletionPolicy, gone.Generation = &metav1.Time{Time: now}, v1alpha1.DeletionDelete, 2
		f.SetImage(gone)
		return f
	}
	held := func(f *testState) bool {
		_, held, found := f.Decide("ubuntu", now)
		require.True(f.t, found)
		return held
	}
	for name, tt := range map[string]struct {
		then     func(*testState)
		wantHeld bool
	}{
		"nothing changed": {func(*testState) {}, true},
		"the plan does not retire it yet": {func(f *testState) {
			f.reportImages("bergen")
		}, true},
		"the plan is not acknowledged": {func(f *testState) {
			f.reportImages("bergen")
			w, _ := f.ForMember("bergen")
			f.SetPlan("bergen", f.buildPlan("bergen", w))
		}, true},
		"it was not planned, and a plan may still be written": {func(f *testState) {
			f.reportImages("bergen")
			f.SetPlan("bergen", f.buildPlan("bergen", rollout.DesiredImages{}))
			f.acknowledgePlan("bergen")
		}, true},
		"it still exists": {func(f *testState) { f.applyPlans("bergen") }, true},
		"a former version still exists": {func(f *testState) {
			f.applyPlans("bergen")
			f.reportImages("bergen", newReported("ubuntu-0.9.0", v1alpha1.PhaseSucceeded))
		}, true},
		"a page is missing": {func(f *testState) {
			f.applyPlans("bergen")
			f.reportImages("bergen")
			m := f.members["bergen"]
			f.SetRoot("bergen", &v1alpha1.ReportRoot{Plan: m.acknowledged, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: m.listedPages["page"]}, {Name: "other", Sequence: 1}}})
		}, true},
		"a page is older than the root": {func(f *testState) {
			f.applyPlans("bergen")
			f.reportImages("bergen")
			m := f.members["bergen"]
			f.SetRoot("bergen", &v1alpha1.ReportRoot{Plan: m.acknowledged, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: m.listedPages["page"] + 1}}})
		}, true},
		"offline, and had it": {func(f *testState) {
			f.applyPlans("bergen")
			f.SetMember(offlineMember("bergen"))
		}, true},
		"deleted": {func(f *testState) {
			f.applyPlans("bergen")
			f.reportImages("bergen")
		}, false},
		"being deleted": {func(f *testState) {
			f.applyPlans("bergen")
			f.reportImages("bergen", newReported("ubuntu-1.0.0", v1alpha1.PhaseDeleting), newReported("ubuntu-0.9.0", v1alpha1.PhaseTerminating))
		}, false},
		"a foreign image": {func(f *testState) {
			f.applyPlans("bergen")
			theirs := newReported("ubuntu-1.0.0", v1alpha1.PhaseSucceeded)
			theirs.Origin = ""
			f.reportImages("bergen", theirs)
		}, false},
		"deleted before it went offline": {func(f *testState) {
			f.applyPlans("bergen")
			f.reportImages("bergen")
			f.SetMember(offlineMember("bergen"))
		}, false},
		"the member is removed": {func(f *testState) { f.RemoveMember("bergen") }, false},
		"the member never had a plan": {func(f *testState) {
			f.reportImages("bergen")
			f.SetPlan("bergen", nil)
		}, false},
		"the images may stay": {func(f *testState) {
			retained := f.copyStoredImage("ubuntu")
			retained.Spec.DeletionPolicy, retained.Generation = v1alpha1.DeletionRetain, 3
			f.SetImage(retained)
		}, false},
		"they are an older one's": {func(f *testState) {
			older := storedImage(apitest.FleetDiskImage("older").WithImageName("ubuntu").Created(apitest.Epoch.Add(-time.Hour)))
			f.SetImage(older)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := leaving(t)
			require.True(t, held(f))
			f.resetCalls()
			tt.then(f)
			require.True(t, tt.wantHeld || f.enqueued["ubuntu"] > 0, "it is enqueued")
			assert.Equal(t, tt.wantHeld, held(f))
		})
	}
}

// fleetInputs are all inputs of a FleetState.
type fleetInputs struct {
	members map[string]*v1alpha1.MemberCluster
	plans   map[string]*v1alpha1.ClusterPlan
	images  map[string]*v1alpha1.FleetDiskImage
	roots   map[string]*v1alpha1.ReportRoot
	pages   map[[2]string]v1alpha1.ClusterReport
}

func (in *fleetInputs) applyTo(f *FleetState) {
	for name, img := range in.images {
		f.SetImage(img)
		_ = name
	}
	for key, p := range in.pages {
		f.SetPage(key[0], key[1], p.Sequence, p.Page.Images)
	}
	for name, r := range in.roots {
		f.SetRoot(name, r)
	}
	for name, p := range in.plans {
		f.SetPlan(name, p)
	}
	for _, m := range in.members {
		f.SetMember(m)
	}
}

// gathered is what gatherView returns.
type gathered struct {
	rollout.View
	nameTaken bool
}

// gatherViews returns the view of each FleetDiskImage.
func gatherViews(f *FleetState) map[string]gathered {
	views := map[string]gathered{}
	for _, c := range slices.Clone(f.sorted) {
		c.mu.Lock()
		v, nameTaken := f.gatherView(c, now)
		v.Clusters = slices.Clone(v.Clusters)
		views[c.name] = gathered{v, nameTaken}
		c.mu.Unlock()
	}
	return views
}

// Whatever the order of changes, a FleetState that saw each of them has the same views as
// one that sees only the result, and has enqueued each FleetDiskImage whose view changed.
func TestIncrementalStateMatchesFreshState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := fleetInputs{
			map[string]*v1alpha1.MemberCluster{}, map[string]*v1alpha1.ClusterPlan{}, map[string]*v1alpha1.FleetDiskImage{},
			map[string]*v1alpha1.ReportRoot{}, map[[2]string]v1alpha1.ClusterReport{},
		}
		f := NewFleetState(func() bool { return true })
		enqueued := map[string]bool{}
		f.OnImageChange(func(image string) { enqueued[image] = true })
		member := rapid.SampledFrom([]string{"bergen", "lab", "oslo"})
		image := rapid.SampledFrom([]string{"debian", "ubuntu"})
		version := rapid.SampledFrom([]string{"1", "2"})
		builder := func(t *rapid.T, name string) *apitest.FleetDiskImageBuilder {
			return apitest.FleetDiskImage(name).WithVersion(version.Draw(t, "version")).WithURL("https://images.example.com/" + version.Draw(t, "url"))
		}
		shown := gatherViews(f)
		sequence := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"a member": func(t *rapid.T) {
				m := onlineMember(member.Draw(t, "member"))
				if rapid.Bool().Draw(t, "offline") {
					m = offlineMember(m.Name)
				}
				m.Labels["edge"] = fmt.Sprint(rapid.Bool().Draw(t, "edge"))
				in.members[m.Name] = m
				f.SetMember(m)
			},
			"a member is removed": func(t *rapid.T) {
				name := member.Draw(t, "member")
				delete(in.members, name)
				f.RemoveMember(name)
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
				f.SetImage(img)
			},
			"a FleetDiskImage is removed": func(t *rapid.T) {
				name := image.Draw(t, "image")
				delete(in.images, name)
				f.RemoveImage(name)
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
				f.SetPlan(name, p)
			},
			"a plan is removed": func(t *rapid.T) {
				name := member.Draw(t, "member")
				delete(in.plans, name)
				f.SetPlan(name, nil)
			},
			"a page": func(t *rapid.T) {
				key := [2]string{member.Draw(t, "member"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "page")}
				sequence++
				p := v1alpha1.ClusterReport{Sequence: sequence, Page: &v1alpha1.ReportPage{}}
				for _, img := range rapid.SliceOfNDistinct(image, 0, 2, rapid.ID[string]).Draw(t, "images") {
					p.Page.Images = append(p.Page.Images, newReported(img+"-"+version.Draw(t, "version"), rapid.SampledFrom([]v1alpha1.Phase{v1alpha1.PhaseSyncing, v1alpha1.PhaseSucceeded}).Draw(t, "phase")))
				}
				in.pages[key] = p
				f.SetPage(key[0], key[1], p.Sequence, p.Page.Images)
			},
			"a page is removed": func(t *rapid.T) {
				key := [2]string{member.Draw(t, "member"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "page")}
				delete(in.pages, key)
				f.DropPage(key[0], key[1])
			},
			"a root": func(t *rapid.T) {
				name := member.Draw(t, "member")
				r := &v1alpha1.ReportRoot{}
				for _, page := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b"}), 0, 2, rapid.ID[string]).Draw(t, "pages") {
					r.Pages = append(r.Pages, v1alpha1.PageRef{Name: page, Sequence: in.pages[[2]string{name, page}].Sequence})
				}
				in.roots[name] = r
				f.SetRoot(name, r)
			},
			"a report is removed": func(t *rapid.T) {
				name := member.Draw(t, "member")
				delete(in.roots, name)
				delete(in.pages, [2]string{name, "a"})
				delete(in.pages, [2]string{name, "b"})
				f.Forget(name)
			},
			"": func(t *rapid.T) {
				views := gatherViews(f)
				fresh := NewFleetState(func() bool { return true })
				in.applyTo(fresh)
				require.Equal(t, gatherViews(fresh), views)
				for name, v := range views {
					if !enqueued[name] {
						require.Equal(t, shown[name], v, "%s shows something new and was not enqueued", name)
					}
				}
				clear(enqueued)
				shown = views
			},
		})
		for name := range in.members {
			f.RemoveMember(name)
		}
		for name := range in.images {
			f.RemoveImage(name)
		}
		for name := range in.plans {
			f.SetPlan(name, nil)
		}
		for _, name := range []string{"bergen", "lab", "oslo"} {
			f.Forget(name)
		}
		require.Empty(t, f.members, "no member is left behind")
		require.Empty(t, f.byImageName)
	})
}

// A member that lists two pages of one sequence with the same image has one state of it, whatever the
// order in which pages are looked through.
func TestPagesOfOneSequence(t *testing.T) {
	m := &member{listedPages: map[string]int64{}, pages: map[string]*reportPage{}}
	for _, name := range []string{"b", "a", "c"} {
		img := newReported("ubuntu-1.0.0", v1alpha1.PhaseFailed)
		img.Message = name
		m.listedPages[name] = 7
		m.pages[name] = &reportPage{sequence: 7, images: map[imageKey]reportedImage{newImageKey(img.Namespace, img.Name): newReportedImage(&img)}}
	}
	for range 50 {
		require.Equal(t, "a", m.newestReport(newImageKey("images", "ubuntu-1.0.0")).Message)
	}
}
