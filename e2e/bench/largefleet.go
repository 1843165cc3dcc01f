//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
)

const (
	largeFleetHeartbeat = time.Minute
	largeFleetReplicas  = 4
	largeFleetImages    = 50
	// largeFleetHeapMiB: with 2,500 members, 4 GiB were too little for each of the two API servers.
	largeFleetHeapMiB = 3072
	// largeFleetStep is how many members join between two measurements.
	largeFleetStep     = 500
	maxResidentReplica = 1536 << 20
	saturatedCPU       = 0.95
	// lateReportAfter: status.lastReport is computed again when a member would be silent, after
	// three heartbeats, and moves by a minute or more.
	lateReportAfter     = 5*largeFleetHeartbeat + time.Minute
	lateHeartbeatAfter  = largeFleetHeartbeat * 3 / 2
	largeFleetStepLimit = 15 * time.Minute
)

// fleetStep is what was measured with a number of members.
type fleetStep struct {
	members  int
	joined   time.Duration
	window   usageWindow
	fakes    time.Duration
	memories []memoryUse
	counts   []int
	// uncarried members are not served by their replica; of lateReports the hub has received
	// nothing for two heartbeats, and lateHeartbeats are members of this process that were late themselves.
	uncarried, lateReports, lateHeartbeats int
	// restarts is how often a replica ended: it had lost its Lease.
	restarts int
}

func (s *fleetStep) largestResident() float64 {
	return slices.MaxFunc(s.memories, func(a, b memoryUse) int { return cmp.Compare(a.resident, b.resident) }).resident
}

// busy returns the share of the machine's CPU time that all of it used.
func (s *fleetStep) busy() float64 {
	w := s.window
	return w.coresOf(w.cpu+w.onHub+w.inMember+s.fakes) / float64(runtime.NumCPU())
}

// givesWay returns what no longer holds; empty for nothing.
func (s *fleetStep) givesWay() string {
	switch {
	case s.largestResident() > maxResidentReplica:
		return "the memory of a replica"
	case s.uncarried > 0:
		return fmt.Sprintf("%d members are not carried", s.uncarried)
	case s.restarts > 0:
		return fmt.Sprintf("replicas lost their Leases and were started again: %d", s.restarts)
	case s.lateHeartbeats > 0:
		return fmt.Sprintf("%d played members are late with their own heartbeats", s.lateHeartbeats)
	case s.lateReports > 0:
		return fmt.Sprintf("%d reports reach the hub late", s.lateReports)
	case s.busy() >= saturatedCPU:
		return "the machine's CPU"
	}
	return ""
}

func (s *fleetStep) format() string {
	resident := make([]float64, len(s.memories))
	heap := make([]float64, len(s.memories))
	for i, m := range s.memories {
		resident[i], heap[i] = m.resident, m.heap
	}
	w := s.window
	return fmt.Sprintf("%d members: joined in %.0f s; members per replica %s; resident %s MiB, heap %s MiB; cores: replicas %.2f, hub's API server %.2f, members' %.2f, played members %.2f; not carried %d, late reports %d, late heartbeats %d, replicas started again %d",
		s.members, s.joined.Seconds(), formatCounts(s.counts), formatMebibytes(resident), formatMebibytes(heap),
		w.coresOf(w.cpu), w.coresOf(w.onHub), w.coresOf(w.inMember), w.coresOf(s.fakes), s.uncarried, s.lateReports, s.lateHeartbeats, s.restarts)
}

// measureLargeFleet adds members step by step, up to a number, and says what gives way first.
func measureLargeFleet(ctx context.Context, members int) (figures []figureRow, notes []string, err error) {
	of := scaleHubOptions
	of.heartbeat, of.apiServerHeapMiB = largeFleetHeartbeat, largeFleetHeapMiB
	s, err := startHubPlanes(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		stopErr := s.stop()
		switch {
		case err != nil:
			err = errors.Join(err, stopErr)
		case stopErr != nil: // replicas may have to be killed where the machine is all in use; what was measured counts
			notes = append(notes, "  in the end: "+stopErr.Error())
		}
	}()
	if err := s.startHub(ctx, largeFleetReplicas); err != nil {
		return nil, nil, err
	}
	s.restarts = 0
	start := time.Now()
	var steps []fleetStep
	var joinErr error
	first := "nothing"
	for joined := 0; joined < members; {
		n := min(largeFleetStep, members-joined)
		var step fleetStep
		step, joinErr = s.joinStep(ctx, fmt.Sprintf("fleet-%d", joined), n)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if joinErr != nil {
			first = fmt.Sprintf("joining, between %d and %d members", joined, joined+n)
			break
		}
		joined += n
		step.members = joined
		steps = append(steps, step)
		printProgress(start, step.format())
		if what := step.givesWay(); what != "" && first == "nothing" {
			first = fmt.Sprintf("%s, at %d members", what, joined)
		}
		if step.largestResident() > 2*maxResidentReplica {
			break // the machine has no memory for more
		}
	}
	fmt.Fprintln(os.Stderr)
	if len(steps) == 0 {
		return nil, nil, fmt.Errorf("not even the first members have joined: %w", joinErr)
	}
	last := &steps[len(steps)-1]
	notes = []string{fmt.Sprintf("fleet3500: members with %d images each, a heartbeat per %s, %d replicas, steps of %d; all of it on %d cores, played members included. After each step everything is measured for more than a heartbeat.",
		largeFleetImages, largeFleetHeartbeat, largeFleetReplicas, largeFleetStep, runtime.NumCPU())}
	for i := range steps {
		notes = append(notes, "  "+steps[i].format())
	}
	if joinErr != nil {
		notes = append(notes, fmt.Sprintf("  then: %v", joinErr))
	}
	if err := s.saveProfiles(ctx); err != nil {
		return nil, nil, err
	}
	return []figureRow{
		figureJudged(fmt.Sprintf("members that %d replicas carry", largeFleetReplicas), fmt.Sprintf("%d (%s)", last.members, formatCounts(last.counts)), fmt.Sprintf("%d, within 1", members), last.members == members && countSpread(last.counts) <= 1),
		figureAtMost("resident memory of the largest replica", last.largestResident(), maxResidentReplica, fmt.Sprintf("%.0f MiB", last.largestResident()/(1<<20))),
		figureInfo("first to give way", first),
		figureInfo("cores in use: replicas, hub's API server, members' API server, played members", fmt.Sprintf("%.2f, %.2f, %.2f, %.2f", last.window.coresOf(last.window.cpu), last.window.coresOf(last.window.onHub), last.window.coresOf(last.window.inMember), last.window.coresOf(last.fakes))),
	}, notes, nil
}

// joinStep adds members with their images, and measures.
func (s *hubSetup) joinStep(ctx context.Context, prefix string, n int) (step fleetStep, err error) {
	start, restarts := time.Now(), s.restarts
	joining, cancel := context.WithTimeout(ctx, largeFleetStepLimit)
	defer cancel()
	list, err := s.joinMembers(joining, prefix, n)
	if err != nil {
		return step, err
	}
	if err := s.reportImages(joining, list, largeFleetImages/imagesPerPage, imagesPerPage); err != nil {
		return step, err
	}
	step.joined = time.Since(start)
	fakesBefore, err := readCPUTime(os.Getpid())
	if err != nil {
		return step, err
	}
	step.window, err = s.measureDuring(func() error {
		since := time.Now()
		return s.awaitCondition(ctx, scrapeInterval, "more than a heartbeat is over", func(context.Context) (bool, error) {
			return time.Since(since) >= largeFleetHeartbeat+largeFleetHeartbeat/4, nil
		})
	})
	if err != nil {
		return step, err
	}
	fakesAfter, err := readCPUTime(os.Getpid())
	if err != nil {
		return step, err
	}
	step.fakes = fakesAfter - fakesBefore
	if step.memories, err = s.readMemories(ctx); err != nil {
		return step, err
	}
	step.restarts = s.restarts - restarts
	return step, s.checkFleet(ctx, &step)
}

// checkFleet counts members that are not carried, and reports and heartbeats that are late.
func (s *hubSetup) checkFleet(ctx context.Context, step *fleetStep) error {
	links, err := s.listMemberLinks(ctx)
	if err != nil {
		return err
	}
	per := map[string]int{}
	for _, r := range s.replicas {
		per[r.name] = 0
	}
	for i := range links.Items {
		l := &links.Items[i]
		per[l.Spec.Replica]++
		if !l.Status.Reachable || l.Status.Carrier != l.Spec.Replica {
			step.uncarried++
		}
	}
	for _, n := range per {
		step.counts = append(step.counts, n)
	}
	slices.Sort(step.counts)
	var members v1alpha1.MemberClusterList
	if err := s.client.List(ctx, &members); err != nil {
		return err
	}
	now := time.Now()
	for i := range members.Items {
		if last := members.Items[i].Status.LastReport; last == nil || now.Sub(last.Time) > lateReportAfter {
			step.lateReports++
		}
	}
	for _, all := range s.lightMembers {
		for _, m := range all.List {
			if now.Sub(m.LastReport()) > lateHeartbeatAfter {
				step.lateHeartbeats++
			}
		}
	}
	return nil
}

// awaitEach waits until the MemberClusters of members match; it reads those that do not yet.
func (s *hubSetup) awaitEach(ctx context.Context, what string, members []*fakemember.Member, holds func(*v1alpha1.MemberCluster) bool) error {
	left := slices.Clone(members)
	var last string
	err := s.awaitCondition(ctx, scrapeInterval, what, func(ctx context.Context) (bool, error) {
		var failed error
		left = slices.DeleteFunc(left, func(m *fakemember.Member) bool {
			var stored v1alpha1.MemberCluster
			if err := s.client.Get(ctx, client.ObjectKey{Name: m.Name}, &stored); err != nil {
				failed = err
				return false
			}
			if ready := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
				last = m.Name + ": " + ready.Message
			}
			return holds(&stored)
		})
		return len(left) == 0, failed
	})
	if err != nil {
		return fmt.Errorf("%w: %d are left, the last is %s", err, len(left), strings.TrimSpace(last))
	}
	return nil
}
