//go:build linux

package main

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/rollout"
)

const (
	simulatedClusters = 1000
	simulatedImages   = 200
	// pageRounds is the number of changed report pages.
	pageRounds = 2000
	maxPlanCPU = time.Millisecond
)

// inMemoryFleet is a fleet in the planner's memory only, with every rollout halfway: half of the
// clusters have each image, and some are importing it.
type inMemoryFleet struct {
	board  *rollout.FleetState
	images []*v1alpha1.FleetDiskImage
	// reported are the images of each member, in the order of images.
	reported [][]v1alpha1.ReportedImage
	// lookedAt are the FleetDiskImages that have to be planned.
	lookedAt []string
	now      time.Time
}

func clusterName(i int) string { return fmt.Sprintf("cluster-%04d", i) }

// simulatedState returns the state of an image in a cluster. The waves are a canary of 10 clusters,
// 190 more, and the rest.
func simulatedState(cluster, image int) (planned bool, phase v1alpha1.Phase) {
	switch place := (cluster*137 + image*211) % simulatedClusters; {
	case cluster < 200 || place < 450:
		return true, v1alpha1.PhaseSucceeded
	case place < 500:
		return true, v1alpha1.PhaseSyncing
	default:
		return false, ""
	}
}

func newInMemoryFleet() *inMemoryFleet {
	f := &inMemoryFleet{board: rollout.NewFleetState(func() bool { return true }), now: time.Now()}
	f.board.OnImageChange(func(image string) { f.lookedAt = append(f.lookedAt, image) })
	started := metav1.NewTime(f.now.Add(-time.Hour))
	quarter := intstr.FromString("25%")
	for i := range simulatedImages {
		name := fmt.Sprintf("image-%03d", i)
		wave := func(name string) v1alpha1.Wave {
			return v1alpha1.Wave{Name: name, ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": name}}}
		}
		img := &v1alpha1.FleetDiskImage{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: started},
			Spec: v1alpha1.FleetDiskImageSpec{
				Version: "2.1.0", TargetNamespace: namespace,
				Template: v1alpha1.VMDiskImageSpec{
					Name: name, SourceType: v1alpha1.SourceHTTP, URL: "https://images.example.com/" + name + ".qcow2", DiskSize: resource.MustParse("24Gi"),
				},
				Placement: v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}},
				Rollout:   v1alpha1.Rollout{Waves: []v1alpha1.Wave{wave("canary"), wave("early")}, MaxConcurrency: &quarter, MaxFailures: &quarter},
			},
		}
		f.images = append(f.images, img)
		f.board.SetImage(img)
	}
	for c := range simulatedClusters {
		f.addMember(c, started)
	}
	return f
}

func (f *inMemoryFleet) addMember(c int, started metav1.Time) {
	name := clusterName(c)
	stored := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"wave": "rest", "region": "north"}}}
	switch {
	case c < 10:
		stored.Labels["wave"] = "canary"
	case c < 200:
		stored.Labels["wave"] = "early"
	}
	for _, healthy := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		meta.SetStatusCondition(&stored.Status.Conditions, metav1.Condition{Type: healthy, Status: metav1.ConditionTrue, Reason: healthy, LastTransitionTime: started})
	}
	f.board.SetMember(stored)
	plan := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + name, Name: v1alpha1.MailboxName}}
	var reported []v1alpha1.ReportedImage
	for i, img := range f.images {
		planned, phase := simulatedState(c, i)
		if !planned {
			continue
		}
		plan.Spec.Images = append(plan.Spec.Images, v1alpha1.PlannedImage{
			Namespace: namespace, Name: img.ImageNameForVersion(img.Spec.Version), Spec: img.Spec.Template, PlannedAt: &started,
		})
		reported = append(reported, v1alpha1.ReportedImage{
			Namespace: namespace, Name: img.ImageNameForVersion(img.Spec.Version), UID: types.UID(name), Origin: v1alpha1.OriginPlan,
			Revision: img.Spec.Template.Revision(), Phase: phase, Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied},
		})
	}
	f.reported = append(f.reported, reported)
	f.board.SetPlan(name, plan)
	root := &v1alpha1.ReportRoot{}
	for page := range f.countPages(c) {
		f.reportPage(c, page)
		root.Pages = append(root.Pages, v1alpha1.PageRef{Name: fmt.Sprint("page-", page), Sequence: 1})
	}
	f.board.SetRoot(name, root)
}

func (f *inMemoryFleet) countPages(c int) int {
	return (len(f.reported[c]) + v1alpha1.MaxReportedImages - 1) / v1alpha1.MaxReportedImages
}

// reportPage passes one page of a member to the planner.
func (f *inMemoryFleet) reportPage(c, page int) {
	first := page * v1alpha1.MaxReportedImages
	last := min(first+v1alpha1.MaxReportedImages, len(f.reported[c]))
	f.board.SetPage(clusterName(c), fmt.Sprint("page-", page), 1, f.reported[c][first:last])
}

// planAll plans all FleetDiskImages that have to be planned and returns their number.
func (f *inMemoryFleet) planAll() int {
	planned := map[string]bool{}
	for _, image := range f.lookedAt {
		if !planned[image] {
			f.board.Decide(image, f.now)
		}
		planned[image] = true
	}
	f.lookedAt = f.lookedAt[:0]
	return len(planned)
}

// resourceUse is CPU time and allocations of this process. Wall time would include other processes.
type resourceUse struct {
	cpu                time.Duration
	allocations, bytes uint64
}

func (w resourceUse) dividedBy(n int) resourceUse {
	return resourceUse{w.cpu / time.Duration(n), w.allocations / uint64(n), w.bytes / uint64(n)}
}

func (w resourceUse) format() string {
	return fmt.Sprintf("%.2f ms, %d allocations, %d KiB", w.cpu.Seconds()*1000, w.allocations, w.bytes>>10)
}

func measureUse(do func()) (resourceUse, error) {
	var before, after runtime.MemStats
	runtime.GC() // garbage from before does not count
	runtime.ReadMemStats(&before)
	start, err := processCPUTime()
	if err != nil {
		return resourceUse{}, err
	}
	do()
	end, err := processCPUTime()
	runtime.ReadMemStats(&after)
	return resourceUse{end - start, after.Mallocs - before.Mallocs, after.TotalAlloc - before.TotalAlloc}, err
}

// processCPUTime returns the CPU time of this process, including its garbage collector.
func processCPUTime() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, fmt.Errorf("reading the own CPU time: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// measurePlanner measures the rollout planner alone: what the elected replica does between reads and
// writes.
func measurePlanner(context.Context) ([]figureRow, []string, error) {
	empty := heapBytes()
	f := newInMemoryFleet()
	var planned int
	first, err := measureUse(func() { planned = f.planAll() })
	if err != nil {
		return nil, nil, err
	}
	if planned != simulatedImages {
		return nil, nil, fmt.Errorf("%d FleetDiskImages were planned of %d", planned, simulatedImages)
	}
	cell := float64(heapBytes()-empty) / (simulatedClusters * simulatedImages)
	again, err := measureUse(func() {
		for _, img := range f.images {
			f.lookedAt = append(f.lookedAt, img.Name)
		}
		f.planAll()
	})
	if err != nil {
		return nil, nil, err
	}

	// Each round changes one image of one member, on a page of up to 128.
	var each latencies
	changes, err := measureUse(func() {
		for round := range pageRounds {
			c := round % simulatedClusters
			at := round % len(f.reported[c])
			f.reported[c][at].Message = fmt.Sprint("round ", round)
			start := time.Now()
			f.reportPage(c, at/v1alpha1.MaxReportedImages)
			planned = f.planAll()
			each = append(each, time.Since(start))
			if planned != 1 {
				return
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	if planned != 1 {
		return nil, nil, fmt.Errorf("a page with one change had %d FleetDiskImages planned", planned)
	}
	size := fmt.Sprintf("%d clusters x %d FleetDiskImages", simulatedClusters, simulatedImages)
	one := changes.dividedBy(pageRounds)
	return []figureRow{
			figureInfo(size+" planned by a hub that has just started: CPU", first.format()),
			figureInfo("all of them once more: CPU", again.format()),
			figureJudged("one image of one report has changed -> planned: CPU", one.format(), fmt.Sprintf("at most %s", maxPlanCPU), one.cpu <= maxPlanCPU),
			figureInfo("the same by the clock", fmt.Sprintf("p50 %.2f ms, p99 %.2f ms", each.percentile(0.5).Seconds()*1000, each.percentile(0.99).Seconds()*1000)),
			figureInfo("memory per cluster x FleetDiskImage, plans and reports included", fmt.Sprintf("%.0f B", cell)),
		}, []string{
			"planner: the hub's own board and decisions, in memory, three waves, half of the clusters done; without reading and writing the API server.",
		}, nil
}
