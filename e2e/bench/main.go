//go:build linux

// Command bench measures agent and hub and fails where a figure misses its limit. Figures are ratios
// within one run, because machines and their other load differ.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
)

// benchmark measures one subject. It returns figures, and notes that explain them.
type benchmark struct {
	name, description string
	run               func(context.Context) ([]figureRow, []string, error)
	// long ones run only where they are asked for by name.
	long bool
}

// options are what the flags set.
type options struct {
	queued, members int
	heartbeat       time.Duration
	fleetMembers    int
}

// listBenchmarks lists what can be measured, in the order of the page.
func listBenchmarks(o options) []benchmark {
	return []benchmark{
		{"makespan", "40 images of 2 s, 4 at a time, CDI played", measureMakespan, false},
		{"makespan-cdi", "the same with real CDI", measureMakespanCDI, false},
		{"scaling", fmt.Sprintf("the same work behind 100 and %d images", o.queued), func(ctx context.Context) ([]figureRow, []string, error) { return measureScaling(ctx, o.queued) }, false},
		{"admissions", "how many imports can begin in a second", measureAdmissions, false},
		{"machines", fmt.Sprintf("one machine, and %d of one image, beside a bare client", vmBurst), measureVMs, false},
		{"failover", "the leader of two agents killed, and stopped", measureAgentFailover, false},
		{"fleet", fmt.Sprintf("a hub with up to %d light members", manyMembers), measureFleet, false},
		{"heartbeats", fmt.Sprintf("a hub with %d light members at rest", restingMembers), measureHeartbeats, false},
		{"hub-failover", smallFailover.describe(), smallFailover.measureHubFailover, false},
		{"hub-failover-large", largeFailover.describe(), largeFailover.measureHubFailover, true},
		{"report", "the way of an image from a real agent to the hub", measureAgentToHub, false},
		{"member-memory", "what an idle member costs a hub", measureMemberMemory, false},
		{"planner", fmt.Sprintf("rollouts of %d FleetDiskImages over %d clusters", simulatedImages, simulatedClusters), measurePlanner, false},
		{"preload", fmt.Sprintf("one image over %d light members", wholeFleetPreload.members), measurePreload, false},
		{"accuracy", "when images are expected, against when they came", measureAccuracy, false},
		{"scale", fmt.Sprintf("1, 2 and 4 replicas of a hub with %d light members, and of a plain one", o.members), func(ctx context.Context) ([]figureRow, []string, error) {
			return measureScale(ctx, o.members, o.heartbeat)
		}, false},
		{"fleet3500", fmt.Sprintf("%d replicas with ever more light members, up to %d", largeFleetReplicas, o.fleetMembers), func(ctx context.Context) ([]figureRow, []string, error) {
			return measureLargeFleet(ctx, o.fleetMembers)
		}, true},
	}
}

func main() {
	var o options
	var names []string
	for _, b := range listBenchmarks(o) {
		names = append(names, b.name)
	}
	only := flag.String("only", "", "Measure one thing only: "+strings.Join(names, ", ")+".")
	flag.IntVar(&o.queued, "queued", 10000, "How long the long queue is, for scaling.")
	flag.IntVar(&o.members, "members", 200, "How many members there are, for scale.")
	flag.IntVar(&o.fleetMembers, "fleet-members", 3500, "Up to how many members join, for fleet3500; it takes most of an hour, and runs only with -only.")
	baseline := flag.String("baseline", "", "A tag, branch or commit to measure beside this checkout, with its own charts.")
	flag.DurationVar(&o.heartbeat, "heartbeat", fakemember.HeartbeatInterval, "How often each of them says that nothing has changed, for scale.")
	page := flag.String("write", "", "A page to write the measured figures into, such as "+sizingPage+".")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	var former *formerVersion
	if *baseline != "" {
		var err error
		if former, err = checkOutFormer(ctx, *baseline); err != nil {
			fmt.Fprintln(os.Stderr, "bench: checking out the baseline:", err)
			os.Exit(1)
		}
	}
	missed, err := runBenchmarks(ctx, listBenchmarks(o), *only, former, *page)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if missed > 0 {
		fmt.Fprintf(os.Stderr, "bench: %d figures are not as wanted\n", missed)
		os.Exit(1)
	}
}

var errUnknownBenchmark = errors.New("unknown benchmark")

// runBenchmarks runs all, or only one, beside a former version where there is one, and writes the
// figures into a page where one is given.
func runBenchmarks(ctx context.Context, benches []benchmark, only string, former *formerVersion, page string) (missed int, err error) {
	var figures []figureRow
	measured := map[string][]figureRow{}
	var notes []string
	loads := []string{loadAverage()}
	for _, b := range benches {
		if only != "" && b.name != only || only == "" && b.long {
			continue
		}
		start := time.Now()
		fmt.Fprintf(os.Stderr, "measuring %s: %s …", b.name, b.description)
		run := b.run
		if former != nil {
			run = func(ctx context.Context) ([]figureRow, []string, error) { return former.measureBoth(ctx, b) }
		}
		some, explained, err := run(ctx)
		if err != nil {
			fmt.Fprintln(os.Stderr)
			return 0, fmt.Errorf("measuring %s: %w", b.name, err)
		}
		fmt.Fprintf(os.Stderr, " %.0f s\n", time.Since(start).Seconds())
		figures, notes = append(figures, some...), append(append(notes, ""), explained...)
		measured[b.name] = some
		loads = append(loads, loadAverage())
	}
	if figures == nil {
		return 0, fmt.Errorf("%w: %s", errUnknownBenchmark, only)
	}
	fmt.Print(formatTable(figures))
	fmt.Println(strings.Join(notes, "\n"))
	fmt.Printf("\nLoad of the machine before, between and after: %s\n", strings.Join(loads, ", "))
	if page != "" {
		if err := writeTables(page, measured); err != nil {
			return 0, err
		}
	}
	for _, f := range figures {
		if f.missed {
			missed++
		}
	}
	return missed, nil
}
