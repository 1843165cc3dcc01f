//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/multicluster-runtime/pkg/manager/coordinator/sharded/sharder"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/hub"
)

// replicaCounts are those that memory is measured at.
var replicaCounts = []int{1, 2, 4}

// What is written so that replicas know who does what, by resource.
var coordination = []string{"leases", "memberlinks"}

// hubRun is what was measured of the hub.
type hubRun struct {
	members            int
	idle, image        memory
	heaps, residents   map[int][]float64
	rest               map[int]window
	spread, after      int
	counts             string
	changing           window
	perSecond          float64
	took               latencies
	assigned, carried  time.Duration
	elected, forwarded time.Duration
}

// measureHub has all members join one replica, and then adds others.
func (s *scaleStage) measureHub(ctx context.Context, members int) (run hubRun, err error) {
	run = hubRun{members: members, heaps: map[int][]float64{}, residents: map[int][]float64{}, rest: map[int]window{}}
	if err := s.startHub(ctx, 1); err != nil {
		return run, err
	}
	empty, err := s.memories(ctx)
	if err != nil {
		return run, err
	}
	if err := s.join(ctx, members); err != nil {
		return run, err
	}
	idle, err := s.memories(ctx)
	if err != nil {
		return run, err
	}
	if err := s.report(ctx); err != nil {
		return run, err
	}
	for _, count := range replicaCounts {
		if err := s.startHub(ctx, count); err != nil {
			return run, err
		}
		if _, _, err := s.carried(ctx, time.Now()); err != nil {
			return run, err
		}
		if run.rest[count], err = s.rest(ctx); err != nil {
			return run, err
		}
		all, err := s.memories(ctx)
		if err != nil {
			return run, err
		}
		if count == 1 {
			run.idle, run.image = idle[0].since(empty[0], members), all[0].since(idle[0], members*imagesEach)
		}
		run.heaps[count], run.residents[count] = split(all)
	}
	if run.spread, run.counts, err = s.spread(ctx); err != nil {
		return run, err
	}
	run.changing, err = s.during(func() (err error) {
		run.perSecond, run.took, err = s.changesCarried(ctx)
		return err
	})
	if err != nil {
		return run, err
	}
	return run, s.measureLoss(ctx, &run)
}

// measureLoss kills one replica that is not elected, and then the one that is.
func (s *scaleStage) measureLoss(ctx context.Context, run *hubRun) (err error) {
	s.kill(s.replicas[len(s.replicas)-1])
	if run.assigned, run.carried, err = s.carried(ctx, time.Now()); err != nil {
		return err
	}
	if run.after, _, err = s.spread(ctx); err != nil {
		return err
	}
	before, err := s.challenge(ctx)
	if err != nil {
		return err
	}
	s.kill(s.replicas[0])
	since := time.Now()
	err = s.await(ctx, tick, "another replica is elected", func(ctx context.Context) (bool, error) {
		now, err := s.challenge(ctx)
		run.elected = time.Since(since)
		return now != before, err
	})
	if err != nil {
		return err
	}
	// Whichever is asked: one of the two forwards.
	last := s.replicas[len(s.replicas)-1].running.(*hub.Hub)
	return s.await(ctx, tick, "the read API tells of all members", func(ctx context.Context) (bool, error) {
		all, err := last.Members(ctx)
		run.forwarded = time.Since(since)
		switch {
		case errors.Is(err, hub.ErrNotServed):
			return false, nil
		case err != nil:
			return false, err
		}
		return len(all) == run.members, nil
	})
}

// challenge of the elected replica, as it stands in the first member's MemberLink.
func (s *scaleStage) challenge(ctx context.Context) (string, error) {
	link := &v1alpha1.MemberLink{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + s.members[0].Name, Name: v1alpha1.MailboxName}, link)
	return link.Spec.Challenge, err
}

func split(all []memory) (heaps, residents []float64) {
	for _, m := range all {
		heaps, residents = append(heaps, m.heap), append(residents, m.resident)
	}
	return heaps, residents
}

// mebibytes of several replicas.
func mebibytes(of []float64) string {
	texts := make([]string, len(of))
	for i, b := range of {
		texts[i] = fmt.Sprintf("%.0f", b/(1<<20))
	}
	return strings.Join(texts, "/")
}

func perCount(of map[int][]float64) string {
	var texts []string
	for _, count := range replicaCounts {
		texts = append(texts, mebibytes(of[count]))
	}
	return strings.Join(texts, ", ") + " MiB"
}

// falls tells whether the largest, and the largest of those that are not elected,
// fall as replicas are added; the first is elected.
func falls(of map[int][]float64) bool {
	for i, count := range replicaCounts[1:] {
		before := of[replicaCounts[i]]
		if slices.Max(of[count]) >= slices.Max(before) || len(before) > 1 && slices.Max(of[count][1:]) >= slices.Max(before[1:]) {
			return false
		}
	}
	return true
}

// byHash is how the sharded coordinator of multicluster-runtime spreads clusters over
// replicas of a StatefulSet.
func byHash(clusters, replicas int) []int {
	var all []sharder.PeerInfo
	for i := range replicas {
		all = append(all, sharder.PeerInfo{ID: fmt.Sprintf("ot-hub-%d", i)})
	}
	counts := make([]int, replicas)
	hash := sharder.NewHRW()
	for c := range clusters {
		for i := range all {
			if hash.ShouldOwn(fmt.Sprintf("cluster-%d", c), all, all[i]) {
				counts[i]++
			}
		}
	}
	return counts
}

// scaleFigures measures the hub with many members and several replicas, and beside
// it the plain one with some of them.
func scaleFigures(ctx context.Context, members, plainMembers int) (figures []figure, notes []string, err error) {
	s, err := newScaleStage(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	run, err := s.measureHub(ctx, members)
	if err != nil {
		return nil, nil, err
	}
	figures, notes = run.figures()
	if err := s.stopReplicas(); err != nil {
		return nil, nil, err
	}
	plain, err := s.measurePlain(ctx, plainMembers)
	if err != nil {
		return nil, nil, err
	}
	more, explained := plain.figures(&run)
	return append(figures, more...), append(notes, explained...), nil
}

func (run *hubRun) figures() ([]figure, []string) {
	one, four := run.rest[1], run.rest[4]
	const mostPerReplica = 2 // its own Lease, every two seconds or so, and the election's
	return []figure{
			told("hub memory per idle member: heap (resident)", fmt.Sprintf("%.0f KiB (%.0f KiB)", run.idle.heap/1024, run.idle.resident/1024)),
			told("hub memory per image x cluster: heap (resident)", fmt.Sprintf("%.0f B (%.0f B)", run.image.heap, run.image.resident)),
			judged("heap of each replica, of 1, 2 and 4", perCount(run.heaps), "falls", falls(run.heaps)),
			told("resident memory of each replica, of 1, 2 and 4", perCount(run.residents)),
			judged("members of each of 4 replicas; spread, and after one is lost", fmt.Sprintf("%s; %d, %d", run.counts, run.spread, run.after), "at most 1", run.spread <= 1 && run.after <= 1),
			judged("coordination writes per second, at rest, of 1 and of 4 replicas", fmt.Sprintf("%.1f, %.1f", one.perSecond(coordination...), four.perSecond(coordination...)),
				"O(replicas)", one.perSecond(coordination...) <= mostPerReplica && four.perSecond(coordination...) <= 4*mostPerReplica),
			told("replica killed -> its members assigned, carried for", fmt.Sprintf("%.1f s, %.1f s", run.assigned.Seconds(), run.carried.Seconds())),
			told("elected replica killed -> next one elected, tells of all members", fmt.Sprintf("%.1f s, %.1f s", run.elected.Seconds(), run.forwarded.Seconds())),
			told("CPU of 4 replicas at rest, members beating every 20 s", four.cores()),
			told(fmt.Sprintf("CPU of 4 replicas at %.0f changes/s", run.perSecond), run.changing.cores()),
			told("image changed in a member -> on the hub, meanwhile", run.took.text()),
		}, append([]string{
			fmt.Sprintf("scale: %d logical members, %d images each in %d pages. A member is a namespace of one API server with a stand-in for its agent (e2e/light); the hub, its replicas and both API servers are real, and share this machine.", run.members, imagesEach, imagesEach/imagesPage),
			"Of several replicas the first is elected and has the view of the fleet beside its share of the members. Resident memory of one that lost members falls as Go gives it back; heap is measured after a collection.",
			fmt.Sprintf("Writes per second at rest, of 4 replicas, per member and not for coordination: reports carried %.1f, status of MemberLinks %.1f, status of MemberClusters %.1f.",
				four.perSecond("clusterreports"), four.perSecond("memberlinks/status"), four.perSecond("memberclusters/status")),
			"Leases last 15 s, as in the chart: that long a silent replica is waited for.",
		}, indent(four.asked.breakdown(run.members))...)
}

func (p *plainRun) figures(run *hubRun) ([]figure, []string) {
	ratio := func(a, b float64) string {
		if b == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", a/b)
	}
	leases, ours := p.rest.perSecond("leases"), run.rest[4].perSecond(coordination...)
	return []figure{
			told("plain: memory per idle member: heap (resident)", fmt.Sprintf("%.0f KiB (%.0f KiB)", p.idle.heap/1024, p.idle.resident/1024)),
			told("plain: memory per image x cluster: heap (resident)", fmt.Sprintf("%.0f B (%.0f B)", p.image.heap, p.image.resident)),
			told("plain: heap of each replica, of 1, 2 and 4", perCount(p.heaps)),
			told("plain: resident memory of each replica, of 1, 2 and 4", perCount(p.residents)),
			told("plain: members of each of 4 replicas", counted(p.counts)),
			told("plain: its sharder, 1000 clusters on ot-hub-0 to -3, to -4", counted(byHash(1000, 4))+", "+counted(byHash(1000, 5))),
			told("plain: Lease writes per second of 4 replicas, for each 1000 members", fmt.Sprintf("%.1f", leases*1000/float64(p.members))),
			told("plain: replica killed -> its members are worked on", fmt.Sprintf("%.1f s", p.takeover.Seconds())),
			told("plain: CPU of 4 replicas at rest, nothing changing", p.rest.cores()),
			told(fmt.Sprintf("plain: CPU of 4 replicas at %.0f changes/s", p.perSecond), p.changing.cores()),
			told("plain: image changed in a member -> looked at, meanwhile", p.took.text()),
			told("hub / plain: heap per idle member, per image x cluster", ratio(run.idle.heap, p.idle.heap)+", "+ratio(run.image.heap, p.image.heap)),
			told("hub / plain: coordination writes, for each 1000 members", ratio(ours*1000/float64(run.members), leases*1000/float64(p.members))),
			told("hub / plain: CPU at 100 changes/s, p99 of a change", ratio(run.changing.cpu.Seconds()/run.changing.took.Seconds(), p.changing.cpu.Seconds()/p.changing.took.Seconds())+", "+
				ratio(run.took.at(0.99).Seconds(), p.took.at(0.99).Seconds())),
		}, []string{
			fmt.Sprintf("plain: multicluster-runtime with its clusters provider and its sharded coordinator, each at its defaults, watching the VMDiskImages of %d of those members, %d each (e2e/bench/plain). It has no report, no plan and no stored copy: it looks at what has changed.", p.members, plainImages),
			fmt.Sprintf("Started beside each other, 1, 2 and 4 of its replicas had all members after %.1f, %.1f and %.1f s.", p.settled[1].Seconds(), p.settled[2].Seconds(), p.settled[4].Seconds()),
		}
}
