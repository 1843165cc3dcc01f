//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/multicluster-runtime/pkg/manager/coordinator/sharded/sharder"
)

// coordinationResources are written to coordinate replicas.
var coordinationResources = []string{"leases", "memberlinks"}

// maxCoordinationWrites limits a replica's coordination writes per second: its own Lease, every two
// seconds, and that of the election.
const maxCoordinationWrites = 2

// writesPerSecond returns the writes of "resource" or "resource/subresource" names per second; of all
// without names.
func (w usageWindow) writesPerSecond(of ...string) float64 {
	n := 0
	for _, r := range w.requests {
		_, what, _ := strings.Cut(r.operation, " ")
		if len(of) == 0 || slices.Contains(of, what) {
			n++
		}
	}
	return float64(n) / w.duration.Seconds()
}

// formatMebibytes formats the memory of several replicas.
func formatMebibytes(of []float64) string {
	texts := make([]string, len(of))
	for i, b := range of {
		texts[i] = fmt.Sprintf("%.0f", b/(1<<20))
	}
	return strings.Join(texts, "/")
}

func formatPerCount(of map[int][]float64) string {
	var texts []string
	for _, count := range replicaCounts {
		texts = append(texts, formatMebibytes(of[count]))
	}
	return strings.Join(texts, ", ") + " MiB"
}

// decreases reports whether two maxima fall as replicas are added: that of all replicas, and that of
// those that are not elected. The first replica is elected.
func decreases(of map[int][]float64) bool {
	for i, count := range replicaCounts[1:] {
		before := of[replicaCounts[i]]
		if slices.Max(of[count]) >= slices.Max(before) || len(before) > 1 && slices.Max(of[count][1:]) >= slices.Max(before[1:]) {
			return false
		}
	}
	return true
}

// formatQuotient formats the quotient of two values.
func formatQuotient(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2g", a/b)
}

// formatLargestRatios formats the ratios of the largest replicas.
func formatLargestRatios(a, b map[int][]float64) string {
	var texts []string
	for _, count := range replicaCounts {
		texts = append(texts, formatQuotient(slices.Max(a[count]), slices.Max(b[count])))
	}
	return strings.Join(texts, ", ") + " (largest)"
}

// spreadByHash returns how multicluster-runtime's sharded coordinator spreads clusters over replicas
// of a StatefulSet.
func spreadByHash(clusters, replicas int) []int {
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

func formatPercent(cores float64) string { return fmt.Sprintf("%.1f %% of a core", 100*cores) }

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// compareSides returns the hub's figures with those of the plain hub.
func compareSides(ours *hubResult, plain *sideResult, heartbeat time.Duration) ([]figureRow, []string) {
	of := func(f figureRow, beside string, a, b float64) figureRow {
		f.beside, f.ratio = beside, formatQuotient(a, b)
		return f
	}
	both := func(f figureRow, beside, ratio string) figureRow {
		f.beside, f.ratio = beside, ratio
		return f
	}
	alone := func(f figureRow) figureRow { return both(f, "-", "-") }
	each := func(name, format string, unit float64, of func(*sideResult) memoryUse) figureRow {
		text := func(m memoryUse) string { return fmt.Sprintf(format+" ("+format+")", m.heap/unit, m.resident/unit) }
		a, b := of(&ours.sideResult), of(plain)
		return both(figureInfo(name, text(a)), text(b), formatQuotient(a.heap, b.heap)+" ("+formatQuotient(a.resident, b.resident)+")")
	}
	rests := func(name string, of func(usageWindow) float64, format string) figureRow {
		text := func(s *sideResult) string { return fmt.Sprintf(format, of(s.idle[1]), of(s.idle[4])) }
		return both(figureInfo(name, text(&ours.sideResult)), text(plain), formatQuotient(of(ours.idle[1]), of(plain.idle[1]))+", "+formatQuotient(of(ours.idle[4]), of(plain.idle[4])))
	}
	writes := func(of ...string) func(usageWindow) float64 {
		return func(w usageWindow) float64 { return w.writesPerSecond(of...) }
	}
	settled := func(s *sideResult) string {
		return fmt.Sprintf("%.0f s, %.0f s", s.settled[2].Seconds(), s.settled[4].Seconds())
	}
	changing := func(s *sideResult) string {
		return fmt.Sprintf("%.1f ms, %s (%.0f/s were made)", s.cpuPerChange().Seconds()*1000, formatPercent(changesPerSecond*s.cpuPerChange().Seconds()), s.changesPerSecond())
	}
	planes := func(w usageWindow) string {
		return fmt.Sprintf("%.0f %%, %.0f %%", 100*w.coresOf(w.onHub), 100*w.coresOf(w.inMember))
	}
	four, hers := ours.idle[4], plain.idle[4]
	most := max(four.writesPerSecond(coordinationResources...)/4, ours.idle[1].writesPerSecond(coordinationResources...))

	heap := figureJudged("heap of each replica, of 1, 2 and 4", formatPerCount(ours.heaps), "falls", decreases(ours.heaps))
	even := figureJudged("members of each of 4 replicas, of 3 after one is lost", formatCounts(ours.counts)+", "+formatCounts(ours.after), "within 1", countSpread(ours.counts) <= 1 && countSpread(ours.after) <= 1)
	coordinating := rests("coordination writes per second at rest, of 1 and of 4 replicas", writes(coordinationResources...), "%.1f, %.1f")
	coordinating.wanted, coordinating.missed, coordinating.ok = "O(replicas)", most > maxCoordinationWrites, "yes"
	if coordinating.missed {
		coordinating.ok = "NO"
	}
	figures := []figureRow{
		each("memory per idle member: heap (resident)", "%.0f KiB", 1<<10, func(s *sideResult) memoryUse { return s.idleMemory }),
		each("memory per image x cluster: heap (resident)", "%.0f B", 1, func(s *sideResult) memoryUse { return s.imageMemory }),
		both(heap, formatPerCount(plain.heaps), formatLargestRatios(ours.heaps, plain.heaps)),
		both(figureInfo("resident memory of each replica, of 1, 2 and 4", formatPerCount(ours.residents)), formatPerCount(plain.residents), formatLargestRatios(ours.residents, plain.residents)),
		both(even, formatCounts(plain.counts), "-"),
		coordinating,
		rests("heartbeats: copies of reports written per second", writes("clusterreports"), "%.1f, %.1f"),
		rests("grants written per second", writes("transfergrants"), "%.1f, %.1f"),
		rests("status of MemberClusters and MemberLinks written per second", writes("memberclusters/status", "memberlinks/status"), "%.1f, %.1f"),
		rests("all writes per second", writes(), "%.1f, %.1f"),
		rests("all writes per member and minute", func(w usageWindow) float64 { return 60 * w.writesPerSecond() / float64(ours.members) }, "%.2f, %.2f"),
		both(figureInfo("2, then 4 replicas run -> all members are carried for", settled(&ours.sideResult)), settled(plain), "-"),
		of(figureInfo("replica killed -> its members are carried for", formatSeconds(ours.takeover)), formatSeconds(plain.takeover), ours.takeover.Seconds(), plain.takeover.Seconds()),
		alone(figureInfo("elected replica killed -> next one elected, serves all members", formatSeconds(ours.elected)+", "+formatSeconds(ours.forwarded))),
		rests("CPU at rest of 1 and of 4 replicas, % of a core", func(w usageWindow) float64 { return 100 * w.coresOf(w.cpu) }, "%.1f, %.1f"),
		both(figureInfo("meanwhile, of 4: CPU of the hub's API server, the members'", planes(four)), planes(hers), "-"),
		of(figureInfo("CPU per change; at 100 changes/s", changing(&ours.sideResult)), changing(plain), ours.cpuPerChange().Seconds(), plain.cpuPerChange().Seconds()),
		both(figureInfo("meanwhile: CPU of the hub's API server, the members'", planes(ours.changing)), planes(plain.changing), "-"),
		of(figureInfo("image changed in a member -> on the hub, meanwhile", ours.latencies.format()), plain.latencies.format(), ours.latencies.percentile(0.99).Seconds(), plain.latencies.percentile(0.99).Seconds()),
	}
	return figures, append([]string{
		fmt.Sprintf("scale: %d logical members with %d images each. A member is a namespace of one API server with an account of its own and a stand-in for its agent (e2e/harness/fakemember), which beats every %s; both hubs, their replicas, both API servers and etcds are real, and share this machine with the stand-ins.", ours.members, imagesPerMember, heartbeat),
		"BESIDE: multicluster-runtime with its clusters provider and its sharded coordinator, each at its defaults, watching the VMDiskImages of the same members (e2e/bench/plain). The images were put into etcd as its API server stores them. It keeps no copy that outlives it, plans nothing and has no say in the members: it looks at what has changed.",
		"Of several replicas the first is elected and has the view of the fleet beside its share of the members. Resident memory of one that lost members falls as Go gives it back; heap is measured after a collection.",
		fmt.Sprintf("CPU per change is what replicas use beyond their rest, divided by the changes; per second they are changed one member after another, a page of %d images and the root in each.", imagesPerPage),
		fmt.Sprintf("On the hub: after %s the members of the lost replica were assigned to others. Leases last 15 s, as in the chart: that long a silent replica is waited for.", formatSeconds(ours.assigned)),
		fmt.Sprintf("The hash of the sharded coordinator, 1000 clusters on ot-hub-0 to -3, to -4: %s, %s.", formatCounts(spreadByHash(1000, 4)), formatCounts(spreadByHash(1000, 5))),
		"Writes of 4 replicas at rest, per member:",
	}, indentLines(four.requests.breakdown(ours.members))...)
}
