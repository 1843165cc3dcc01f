//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/multicluster-runtime/pkg/manager/coordinator/sharded/sharder"
)

// What is written so that replicas know who does what, by resource.
var coordination = []string{"leases", "memberlinks"}

// mostPerReplica are the coordination writes of a replica in a second: its own Lease,
// every two seconds or so, and the election's.
const mostPerReplica = 2

// perSecond counts the writes of some kinds, named "resource" or "resource/subresource";
// without a name, all.
func (w window) perSecond(of ...string) float64 {
	n := 0
	for _, r := range w.asked {
		_, what, _ := strings.Cut(r.what, " ")
		if len(of) == 0 || slices.Contains(of, what) {
			n++
		}
	}
	return float64(n) / w.took.Seconds()
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

// ratio of two of a kind.
func ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2g", a/b)
}

// largest are the ratios of the largest replicas.
func largest(a, b map[int][]float64) string {
	var texts []string
	for _, count := range replicaCounts {
		texts = append(texts, ratio(slices.Max(a[count]), slices.Max(b[count])))
	}
	return strings.Join(texts, ", ") + " (largest)"
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

func percent(cores float64) string { return fmt.Sprintf("%.1f %% of a core", 100*cores) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// compared are the figures of the hub beside those of the plain one.
func compared(ours *hubSide, plain *side, heartbeat time.Duration) ([]figure, []string) {
	of := func(f figure, beside string, a, b float64) figure {
		f.beside, f.ratio = beside, ratio(a, b)
		return f
	}
	both := func(f figure, beside, ratio string) figure {
		f.beside, f.ratio = beside, ratio
		return f
	}
	alone := func(f figure) figure { return both(f, "-", "-") }
	each := func(name, format string, unit float64, of func(*side) memory) figure {
		text := func(m memory) string { return fmt.Sprintf(format+" ("+format+")", m.heap/unit, m.resident/unit) }
		a, b := of(&ours.side), of(plain)
		return both(told(name, text(a)), text(b), ratio(a.heap, b.heap)+" ("+ratio(a.resident, b.resident)+")")
	}
	rests := func(name string, of func(window) float64, format string) figure {
		text := func(s *side) string { return fmt.Sprintf(format, of(s.rest[1]), of(s.rest[4])) }
		return both(told(name, text(&ours.side)), text(plain), ratio(of(ours.rest[1]), of(plain.rest[1]))+", "+ratio(of(ours.rest[4]), of(plain.rest[4])))
	}
	writes := func(of ...string) func(window) float64 {
		return func(w window) float64 { return w.perSecond(of...) }
	}
	settled := func(s *side) string {
		return fmt.Sprintf("%.0f s, %.0f s", s.settled[2].Seconds(), s.settled[4].Seconds())
	}
	changing := func(s *side) string {
		return fmt.Sprintf("%.1f ms, %s (%.0f/s were made)", s.perChange().Seconds()*1000, percent(changesPerSecond*s.perChange().Seconds()), s.perSecond())
	}
	planes := func(w window) string {
		return fmt.Sprintf("%.0f %%, %.0f %%", 100*w.cores(w.onHub), 100*w.cores(w.inMember))
	}
	four, hers := ours.rest[4], plain.rest[4]
	most := max(four.perSecond(coordination...)/4, ours.rest[1].perSecond(coordination...))

	heap := judged("heap of each replica, of 1, 2 and 4", perCount(ours.heaps), "falls", falls(ours.heaps))
	even := judged("members of each of 4 replicas, of 3 after one is lost", counted(ours.counts)+", "+counted(ours.after), "within 1", spread(ours.counts) <= 1 && spread(ours.after) <= 1)
	coordinating := rests("coordination writes per second at rest, of 1 and of 4 replicas", writes(coordination...), "%.1f, %.1f")
	coordinating.wanted, coordinating.missed, coordinating.ok = "O(replicas)", most > mostPerReplica, "yes"
	if coordinating.missed {
		coordinating.ok = "NO"
	}
	figures := []figure{
		each("memory per idle member: heap (resident)", "%.0f KiB", 1<<10, func(s *side) memory { return s.idle }),
		each("memory per image x cluster: heap (resident)", "%.0f B", 1, func(s *side) memory { return s.image }),
		both(heap, perCount(plain.heaps), largest(ours.heaps, plain.heaps)),
		both(told("resident memory of each replica, of 1, 2 and 4", perCount(ours.residents)), perCount(plain.residents), largest(ours.residents, plain.residents)),
		both(even, counted(plain.counts), "-"),
		coordinating,
		rests("heartbeats: copies of reports written per second", writes("clusterreports"), "%.1f, %.1f"),
		rests("grants written per second", writes("transfergrants"), "%.1f, %.1f"),
		rests("status of MemberClusters and MemberLinks written per second", writes("memberclusters/status", "memberlinks/status"), "%.1f, %.1f"),
		rests("all writes per second", writes(), "%.1f, %.1f"),
		rests("all writes per member and minute", func(w window) float64 { return 60 * w.perSecond() / float64(ours.members) }, "%.2f, %.2f"),
		both(told("2, then 4 replicas run -> all members are carried for", settled(&ours.side)), settled(plain), "-"),
		of(told("replica killed -> its members are carried for", seconds(ours.takeover)), seconds(plain.takeover), ours.takeover.Seconds(), plain.takeover.Seconds()),
		alone(told("elected replica killed -> next one elected, tells of all members", seconds(ours.elected)+", "+seconds(ours.forwarded))),
		rests("CPU at rest of 1 and of 4 replicas, % of a core", func(w window) float64 { return 100 * w.cores(w.cpu) }, "%.1f, %.1f"),
		both(told("meanwhile, of 4: CPU of the hub's API server, the members'", planes(four)), planes(hers), "-"),
		of(told("CPU per change; at 100 changes/s", changing(&ours.side)), changing(plain), ours.perChange().Seconds(), plain.perChange().Seconds()),
		both(told("meanwhile: CPU of the hub's API server, the members'", planes(ours.changing)), planes(plain.changing), "-"),
		of(told("image changed in a member -> on the hub, meanwhile", ours.took.text()), plain.took.text(), ours.took.at(0.99).Seconds(), plain.took.at(0.99).Seconds()),
	}
	return figures, append([]string{
		fmt.Sprintf("scale: %d logical members with %d images each. A member is a namespace of one API server with an account of its own and a stand-in for its agent (e2e/light), which beats every %s; both hubs, their replicas, both API servers and etcds are real, and share this machine with the stand-ins.", ours.members, imagesEach, heartbeat),
		"BESIDE: multicluster-runtime with its clusters provider and its sharded coordinator, each at its defaults, watching the VMDiskImages of the same members (e2e/bench/plain). The images were put into etcd as its API server stores them. It keeps no copy that outlives it, plans nothing and has no say in the members: it looks at what has changed.",
		"Of several replicas the first is elected and has the view of the fleet beside its share of the members. Resident memory of one that lost members falls as Go gives it back; heap is measured after a collection.",
		fmt.Sprintf("CPU per change is what replicas use beyond their rest, divided by the changes; per second they are changed one member after another, a page of %d images and the root in each.", imagesPage),
		fmt.Sprintf("On the hub: after %s the members of the lost replica were assigned to others. Leases last 15 s, as in the chart: that long a silent replica is waited for.", seconds(ours.assigned)),
		fmt.Sprintf("The hash of the sharded coordinator, 1000 clusters on ot-hub-0 to -3, to -4: %s, %s.", counted(byHash(1000, 4)), counted(byHash(1000, 5))),
		"Writes of 4 replicas at rest, per member:",
	}, indent(four.asked.breakdown(ours.members))...)
}
