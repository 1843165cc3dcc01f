package rollout

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// benchFleet is 1,000 clusters that have each of 200 FleetDiskImages in three waves,
// all rolled out.
func benchFleet(b testing.TB) (*board, []string, []string) {
	b.Helper()
	members, images := numbered("member", 1000), numbered("image", 200)
	f := newBoard(b, members...)
	for _, name := range images {
		f.SetImage(stored(benchImage(name)))
	}
	f.decided(images...)
	f.follow(members...)
	for _, name := range members {
		f.reportPages(name, images, v1alpha1.PhaseSucceeded)
	}
	f.decided(images...)
	require.Equal(b, int32(1000), f.columns[images[0]].status.Clusters.Succeeded)
	return f, members, images
}

func benchImage(name string) *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage(name).WithMaxFailures("5%").WithFormer("1.0.0", "0.9.0", "0.8.0")
}

// reportPages has a member report its images on two pages, the first in a phase.
func (b *board) reportPages(name string, images []string, first v1alpha1.Phase) {
	sequence := b.members[name].listed["a"] + 1
	r := &v1alpha1.ReportRoot{Plan: b.members[name].acknowledged}
	for i, page := range []string{"a", "b"} {
		b.SetPage(name, page, sequence, pageOf(images[i*100:(i+1)*100], first))
		r.Pages = append(r.Pages, v1alpha1.PageRef{Name: page, Sequence: sequence})
	}
	b.SetRoot(name, r)
}

func pageOf(images []string, first v1alpha1.Phase) []v1alpha1.ReportedImage {
	page := make([]v1alpha1.ReportedImage, len(images))
	for i, image := range images {
		phase := v1alpha1.PhaseSucceeded
		if i == 0 {
			phase = first
		}
		page[i] = revisionOf(there(image+"-1.0.0", phase), benchImage(image))
	}
	return page
}

// BenchmarkOneReport is what there is to do when one report has changed.
func BenchmarkOneReport(b *testing.B) {
	f, members, images := benchFleet(b)
	pages := [2][]v1alpha1.ReportedImage{pageOf(images[:100], v1alpha1.PhaseFailed), pageOf(images[:100], v1alpha1.PhaseSucceeded)}
	b.ReportAllocs()
	for n := int64(0); b.Loop(); n++ {
		f.SetPage(members[n%1000], "a", n+2, pages[n%2])
		if _, _, found := f.Decide(images[0], now); !found {
			b.Fatal("not found")
		}
	}
}

// BenchmarkAll is what there is to do when everything is to be decided anew.
func BenchmarkAll(b *testing.B) {
	f, _, images := benchFleet(b)
	b.ReportAllocs()
	for b.Loop() {
		for _, image := range images {
			f.columns[image].at = nil
			if _, _, found := f.Decide(image, now); !found {
				b.Fatal("not found")
			}
		}
	}
}

// BenchmarkStart is all that a hub which has just started decides.
func BenchmarkStart(b *testing.B) {
	f, members, images := benchFleet(b)
	b.ReportAllocs()
	for b.Loop() {
		again := newBoard(b, members...)
		for _, image := range images {
			again.SetImage(f.columns[image].stored)
		}
		for _, name := range members {
			again.SetPlan(name, f.members[name].plan)
			again.members[name].pages, again.members[name].listed = f.members[name].pages, f.members[name].listed
		}
		again.decided(images...)
	}
}

// BenchmarkWants is what one member's wants cost.
func BenchmarkWants(b *testing.B) {
	f, members, _ := benchFleet(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, known := f.Of(members[7]); !known {
			b.Fatal("not known")
		}
	}
}

// BenchmarkMemory is what a cluster's image costs on the Board, with what is wanted
// of it.
func BenchmarkMemory(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		before := heap()
		f, _, _ := benchFleet(b)
		b.ReportMetric((heap()-before)/(1000*200), "heap-B/image")
		f.forgetCalls()
	}
}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
