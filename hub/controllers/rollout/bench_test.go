package rollout

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newBenchFleet returns 1,000 clusters with 200 FleetDiskImages in three waves, all rolled out.
func newBenchFleet(b testing.TB) (*testState, []string, []string) {
	b.Helper()
	members, images := numberedNames("member", 1000), numberedNames("image", 200)
	f := newTestState(b, members...)
	for _, name := range images {
		f.SetImage(storedImage(newBenchImage(name)))
	}
	f.decideAll(images...)
	f.applyPlans(members...)
	for _, name := range members {
		f.reportPages(name, images, v1alpha1.PhaseSucceeded)
	}
	f.decideAll(images...)
	require.Equal(b, int32(1000), f.images[images[0]].status.Clusters.Succeeded)
	return f, members, images
}

func newBenchImage(name string) *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage(name).WithMaxFailures("5%").WithFormer("1.0.0", "0.9.0", "0.8.0")
}

// reportPages reports the images of a member on two pages, the first image in a phase.
func (b *testState) reportPages(name string, images []string, first v1alpha1.Phase) {
	sequence := b.members[name].listedPages["a"] + 1
	r := &v1alpha1.ReportRoot{Plan: b.members[name].acknowledged}
	for i, page := range []string{"a", "b"} {
		b.SetPage(name, page, sequence, newPage(images[i*100:(i+1)*100], first))
		r.Pages = append(r.Pages, v1alpha1.PageRef{Name: page, Sequence: sequence})
	}
	b.SetRoot(name, r)
}

func newPage(images []string, first v1alpha1.Phase) []v1alpha1.ReportedImage {
	page := make([]v1alpha1.ReportedImage, len(images))
	for i, image := range images {
		phase := v1alpha1.PhaseSucceeded
		if i == 0 {
			phase = first
		}
		page[i] = withRevisionOf(newReported(image+"-1.0.0", phase), newBenchImage(image))
	}
	return page
}

// BenchmarkChangedReport handles one changed report.
func BenchmarkChangedReport(b *testing.B) {
	f, members, images := newBenchFleet(b)
	pages := [2][]v1alpha1.ReportedImage{newPage(images[:100], v1alpha1.PhaseFailed), newPage(images[:100], v1alpha1.PhaseSucceeded)}
	b.ReportAllocs()
	for n := int64(0); b.Loop(); n++ {
		f.SetPage(members[n%1000], "a", n+2, pages[n%2])
		if _, _, found := f.Decide(images[0], now); !found {
			b.Fatal("not found")
		}
	}
}

// BenchmarkDecideAllImages decides about everything.
func BenchmarkDecideAllImages(b *testing.B) {
	f, _, images := newBenchFleet(b)
	b.ReportAllocs()
	for b.Loop() {
		for _, image := range images {
			f.images[image].clusterIndex = nil
			if _, _, found := f.Decide(image, now); !found {
				b.Fatal("not found")
			}
		}
	}
}

// BenchmarkStartup is what a hub does after its start.
func BenchmarkStartup(b *testing.B) {
	f, members, images := newBenchFleet(b)
	b.ReportAllocs()
	for b.Loop() {
		again := newTestState(b, members...)
		for _, image := range images {
			again.SetImage(f.images[image].stored)
		}
		for _, name := range members {
			again.SetPlan(name, f.members[name].plan)
			again.members[name].pages, again.members[name].listedPages = f.members[name].pages, f.members[name].listedPages
		}
		again.decideAll(images...)
	}
}

// BenchmarkForMember computes one member's desired images.
func BenchmarkForMember(b *testing.B) {
	f, members, _ := newBenchFleet(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, known := f.ForMember(members[7]); !known {
			b.Fatal("not known")
		}
	}
}

// BenchmarkMemory measures the memory of one image in one cluster.
func BenchmarkMemory(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		before := apitest.HeapBytes()
		f, _, _ := newBenchFleet(b)
		b.ReportMetric((apitest.HeapBytes()-before)/(1000*200), "heap-B/image")
		f.resetCalls()
	}
}
