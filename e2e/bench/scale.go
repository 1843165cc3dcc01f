//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

const (
	// Each member has imagesPerMember images, in pages of imagesPerPage, which is about what an
	// agent divides hundreds of images into.
	imagesPerMember = 200
	imagesPerPage   = 25
)

// replicaCounts are the measured numbers of replicas.
var replicaCounts = []int{1, 2, 4}

// scaleAudit logs the writes of both hubs, including renewals of Leases.
const scaleAudit = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {level: None, verbs: [get, list, watch]}
- {level: None, nonResourceURLs: ["*"]}
- {level: Metadata, users: ["system:serviceaccount:` + program.HubNamespace + `:ot-hub", "system:serviceaccount:` + plainName + `:` + plainName + `"], omitManagedFields: true}
`

// scaleHubOptions size the API servers for both hubs: for the plain one, that of the members has 200
// VMDiskImages per member.
var scaleHubOptions = hubSetupOptions{audit: scaleAudit, apiServerHeapMiB: 2048, etcdBytes: 4 << 30}

// sideResult is the result of one of the two hubs.
type sideResult struct {
	idleMemory, imageMemory memoryUse
	// By the number of replicas: memory of each replica, its members, and the time until
	// every member was served.
	heaps, residents map[int][]float64
	settled          map[int]time.Duration
	idle             map[int]usageWindow
	counts           []int
	changing         usageWindow
	changes          int
	latencies        latencies
	takeover         time.Duration
}

func newSideResult() sideResult {
	return sideResult{
		heaps: map[int][]float64{}, residents: map[int][]float64{}, settled: map[int]time.Duration{}, idle: map[int]usageWindow{},
	}
}

// recordMemory records the memory use of count replicas.
func (s *sideResult) recordMemory(count int, all []memoryUse) {
	for _, m := range all {
		s.heaps[count], s.residents[count] = append(s.heaps[count], m.heap), append(s.residents[count], m.resident)
	}
}

// cpuPerChange returns the CPU time of one change, beyond that of the idle replicas.
func (s *sideResult) cpuPerChange() time.Duration {
	return (s.changing.cpu - time.Duration(s.idle[4].coresOf(s.idle[4].cpu)*float64(s.changing.duration))) / time.Duration(s.changes)
}

func (s *sideResult) changesPerSecond() float64 {
	return float64(s.changes) / s.changing.duration.Seconds()
}

// countSpread returns the difference between the most and the fewest members of a replica.
func countSpread(counts []int) int { return slices.Max(counts) - slices.Min(counts) }

// hubResult is the result of the hub, with what the plain one does not have.
type hubResult struct {
	sideResult
	members            int
	after              []int
	assigned           time.Duration
	elected, forwarded time.Duration
}

// printProgress prints the step of a benchmark that takes minutes.
func printProgress(start time.Time, what string) {
	fmt.Fprintf(os.Stderr, "\n  %4.0f s: %s", time.Since(start).Seconds(), what)
}

// measureScale measures the hub with many members and several replicas, and then the plain hub with
// the same members.
func measureScale(ctx context.Context, members int, heartbeat time.Duration) (figures []figureRow, notes []string, err error) {
	of := scaleHubOptions
	of.heartbeat = heartbeat
	s, err := startHubPlanes(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	ours, list, err := s.measureHub(ctx, members)
	if err != nil {
		return nil, nil, err
	}
	if err := s.stopReplicas(); err != nil {
		return nil, nil, err
	}
	plain, err := s.measurePlain(ctx, list)
	if err != nil {
		return nil, nil, err
	}
	figures, notes = compareSides(&ours, &plain, heartbeat)
	return figures, notes, nil
}

// measureHub registers all members with one replica, and then adds replicas.
func (s *hubSetup) measureHub(ctx context.Context, members int) (run hubResult, list []*fakemember.Member, err error) {
	start := time.Now()
	run = hubResult{sideResult: newSideResult(), members: members}
	if err := s.startHub(ctx, 1); err != nil {
		return run, nil, err
	}
	empty, err := s.readMemories(ctx)
	if err != nil {
		return run, nil, err
	}
	if list, err = s.joinMembers(ctx, "scale", members); err != nil {
		return run, list, err
	}
	printProgress(start, "all members have joined")
	idle, err := s.readMemories(ctx)
	if err != nil {
		return run, list, err
	}
	if err := s.reportImages(ctx, list, imagesPerMember/imagesPerPage, imagesPerPage); err != nil {
		return run, list, err
	}
	printProgress(start, "they have reported all images")
	for _, count := range replicaCounts {
		since := time.Now()
		if err := s.startHub(ctx, count); err != nil {
			return run, list, err
		}
		if _, run.settled[count], err = s.awaitRelayed(ctx, since); err != nil {
			return run, list, err
		}
		if run.idle[count], err = s.measureIdle(ctx); err != nil {
			return run, list, err
		}
		all, err := s.readMemories(ctx)
		if err != nil {
			return run, list, err
		}
		if count == 1 {
			run.idleMemory, run.imageMemory = idle[0].perThingSince(empty[0], members), all[0].perThingSince(idle[0], members*imagesPerMember)
		}
		run.recordMemory(count, all)
		printProgress(start, fmt.Sprintf("measured at rest, replicas: %d", count))
	}
	if run.counts, err = s.countMembersPerReplica(ctx); err != nil {
		return run, list, err
	}
	run.changing, err = s.measureDuring(func() (err error) {
		run.changes, run.latencies, err = s.measureRelayedChanges(ctx, list)
		return err
	})
	if err != nil {
		return run, list, err
	}
	printProgress(start, "measured while images change")
	err = s.measureLoss(ctx, &run)
	printProgress(start, "measured what is lost")
	return run, list, err
}

// measureLoss kills a replica that is not elected, and then the elected one.
func (s *hubSetup) measureLoss(ctx context.Context, run *hubResult) (err error) {
	elected, err := s.findElected(ctx)
	if err != nil {
		return err
	}
	s.killReplica(s.replicaBeside(elected))
	if run.assigned, run.takeover, err = s.awaitRelayed(ctx, time.Now()); err != nil {
		return err
	}
	if run.after, err = s.countMembersPerReplica(ctx); err != nil {
		return err
	}
	run.elected, run.forwarded, err = s.killElected(ctx, run.members)
	return err
}

// findElected waits until a replica is elected, and returns it.
func (s *hubSetup) findElected(ctx context.Context) (elected *replica, err error) {
	err = s.awaitCondition(ctx, pollInterval, "a replica is elected", func(ctx context.Context) (bool, error) {
		for _, r := range s.replicas {
			status, err := readMetric(ctx, r, `leader_election_master_status{name="ot-hub"}`)
			if err != nil {
				return false, err
			}
			if status == 1 {
				elected = r
				return true, nil
			}
		}
		return false, nil
	})
	return elected, err
}

// replicaBeside returns another replica.
func (s *hubSetup) replicaBeside(r *replica) *replica {
	last := len(s.replicas) - 1
	if s.replicas[last] == r {
		last--
	}
	return s.replicas[last]
}

// killElected kills the elected replica, and returns when another one was elected, and when the read
// API of the last one had all members.
func (s *hubSetup) killElected(ctx context.Context, members int) (elected, forwarded time.Duration, err error) {
	before, err := s.readLeader(ctx)
	if err != nil {
		return 0, 0, err
	}
	replica, err := s.findElected(ctx)
	if err != nil {
		return 0, 0, err
	}
	s.killReplica(replica)
	since := time.Now()
	err = s.awaitCondition(ctx, pollInterval, "another replica is elected", func(ctx context.Context) (bool, error) {
		now, err := s.readLeader(ctx)
		elected = time.Since(since)
		return now != before, err
	})
	if err != nil {
		return elected, 0, err
	}
	// Requests to a replica that is not elected are forwarded.
	last := s.replicas[len(s.replicas)-1].running.(*program.Hub)
	err = s.awaitCondition(ctx, 5*pollInterval, "the read API has all members", func(ctx context.Context) (bool, error) {
		all, err := last.ListMembers(ctx)
		forwarded = time.Since(since)
		switch {
		case errors.Is(err, program.ErrNotServed):
			return false, nil
		case err != nil:
			return false, err
		}
		return len(all) == members, nil
	})
	return elected, forwarded, err
}

// readLeader returns who holds the Lease of the elected replica.
func (s *hubSetup) readLeader(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: program.HubNamespace, Name: binaries.HubProgram.Name}, lease)
	return ptr.Deref(lease.Spec.HolderIdentity, ""), err
}

// listMemberLinks returns the MemberLinks: which replica is assigned to a member, and which serves it.
func (s *hubSetup) listMemberLinks(ctx context.Context) (v1alpha1.MemberLinkList, error) {
	var list v1alpha1.MemberLinkList
	err := s.client.List(ctx, &list)
	return list, err
}

// awaitRelayed waits until every member is served by the running replica that it is assigned to.
// assigned is the time until the last assignment.
func (s *hubSetup) awaitRelayed(ctx context.Context, since time.Time) (assigned, carried time.Duration, err error) {
	names := map[string]bool{}
	for _, r := range s.replicas {
		names[r.name] = true
	}
	err = s.awaitCondition(ctx, 500*time.Millisecond, "all members are carried for", func(ctx context.Context) (bool, error) {
		list, err := s.listMemberLinks(ctx)
		if err != nil || len(list.Items) != len(s.lightMembers[0].List) {
			return false, err
		}
		per := map[string]int{}
		done := true
		for i := range list.Items {
			l := &list.Items[i]
			if !names[l.Spec.Replica] {
				return false, nil
			}
			per[l.Spec.Replica]++
			done = done && isServed(l)
		}
		if len(per) < len(names) {
			return false, nil
		}
		if assigned == 0 {
			assigned = time.Since(since)
		}
		return done, nil
	})
	return assigned, time.Since(since), err
}

// isServed reports whether a member is served by the replica that it is assigned to.
func isServed(l *v1alpha1.MemberLink) bool {
	return l.Status.Reachable && l.Status.Carrier == l.Spec.Replica && l.Status.ObservedGeneration == l.Generation
}

// countMembersPerReplica returns the numbers of members of the replicas, in ascending order.
func (s *hubSetup) countMembersPerReplica(ctx context.Context) ([]int, error) {
	list, err := s.listMemberLinks(ctx)
	if err != nil {
		return nil, err
	}
	per := map[string]int{}
	for i := range list.Items {
		per[list.Items[i].Spec.Replica]++
	}
	counts := make([]int, 0, len(per))
	for _, n := range per {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	return counts, nil
}

func formatCounts(counts []int) string {
	texts := make([]string, len(counts))
	for i, n := range counts {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, "/")
}
