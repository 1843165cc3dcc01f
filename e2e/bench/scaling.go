//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/member"
)

// scale is a run of the same work behind a short and a long queue.
type scale struct {
	short, long int // images that wait all the time
	processed   int // images that are imported behind each
	budget      int
}

// cost of some images, for each of them.
type cost struct {
	cpu    time.Duration
	writes float64
}

func (c cost) plus(d cost) cost { return cost{c.cpu + d.cpu, c.writes + d.writes} }

// queueCost is what images cost behind a queue of one length.
type queueCost struct {
	arrival, processing cost
	queued              memory   // of each that has arrived
	requests            requests // of processing
}

// measure runs both queues, on one agent: the long one is the short one grown.
func (sc scale) measure(ctx context.Context) (short, long queueCost, err error) {
	s, err := newStage(ctx, member.Options{Name: "scaling", Instant: true}, sc.budget, "--kube-api-qps=5000")
	if err != nil {
		return short, long, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.settle(ctx); err != nil {
		return short, long, err
	}
	// The first images fill the slots: what follows are 1:1 exchanges.
	if err := s.enqueue(ctx, sc.budget, 0, s.queuedImage); err != nil {
		return short, long, err
	}
	if short, err = sc.behind(ctx, s, sc.short+sc.processed, sc.short); err != nil {
		return short, long, err
	}
	long, err = sc.behind(ctx, s, sc.long+sc.processed-sc.short, sc.long)
	return short, long, err
}

func (s *stage) queuedImage() *v1alpha1.VMDiskImage { return s.httpImage("/images/lab-151/1.0.0/") }

// behind has images arrive and then processes some, until those that are to wait
// all the time are left.
func (sc scale) behind(ctx context.Context, s *stage, arriving, queued int) (c queueCost, err error) {
	before, err := memoryOf(ctx, s.agent, s.pprof)
	if err != nil {
		return c, err
	}
	if c.arrival, _, err = s.spent(arriving, func() error {
		return s.enqueue(ctx, arriving, queued+sc.processed, s.queuedImage)
	}); err != nil {
		return c, err
	}
	after, err := memoryOf(ctx, s.agent, s.pprof)
	if err != nil {
		return c, err
	}
	c.queued = after.since(before, arriving)
	c.processing, c.requests, err = s.spent(sc.processed, func() error { return s.process(ctx, sc.processed) })
	return c, err
}

// spent is what something costs the agent per image.
func (s *stage) spent(images int, do func() error) (cost, requests, error) {
	offset := s.audit.size()
	before, err := cpuTime(s.agent.Pid())
	if err != nil {
		return cost{}, nil, err
	}
	if err := do(); err != nil {
		return cost{}, nil, err
	}
	after, err := cpuTime(s.agent.Pid())
	if err != nil {
		return cost{}, nil, err
	}
	asked, err := s.audit.since(offset)
	if err != nil {
		return cost{}, nil, err
	}
	return cost{cpu: (after - before) / time.Duration(images), writes: float64(asked.writes()) / float64(images)}, asked, nil
}

const (
	mostGrowth       = 1.3
	mostBytesInQueue = 10 << 10
)

func scaling(ctx context.Context, queued int) ([]figure, []string, error) {
	sc := scale{short: 100, long: queued, processed: 200, budget: 4}
	short, long, err := sc.measure(ctx)
	if err != nil {
		return nil, nil, err
	}
	ratio := func(what string, of func(queueCost) cost) []figure {
		a, b := of(short), of(long)
		cpu, writes := b.cpu.Seconds()/a.cpu.Seconds(), b.writes/a.writes
		return []figure{
			atMost(fmt.Sprintf("%s: CPU per image, %d queued / %d", what, sc.long, sc.short), cpu, mostGrowth,
				fmt.Sprintf("%.2f (%.1f ms / %.1f ms)", cpu, b.cpu.Seconds()*1000, a.cpu.Seconds()*1000)),
			atMost(fmt.Sprintf("%s: writes per image, %d queued / %d", what, sc.long, sc.short), writes, mostGrowth,
				fmt.Sprintf("%.2f (%.2f / %.2f)", writes, b.writes, a.writes)),
		}
	}
	figures := ratio("arrival", func(c queueCost) cost { return c.arrival })
	figures = append(figures, ratio("slot to ready", func(c queueCost) cost { return c.processing })...)
	figures = append(figures, ratio("both", func(c queueCost) cost { return c.arrival.plus(c.processing) })...)
	figures = append(figures,
		atMost("memory per queued image, Go heap after GC", long.queued.heap, mostBytesInQueue, fmt.Sprintf("%.1f KiB", long.queued.heap/1024)),
		told("memory per queued image, resident", fmt.Sprintf("%.1f KiB", long.queued.resident/1024)))
	notes := []string{fmt.Sprintf("scaling: instant CDI (simulator.Instant), HTTP images with preflight, %d processed, %d slots; Events count as writes, Leases do not.", sc.processed, sc.budget)}
	for _, q := range []struct {
		n int
		c queueCost
	}{{sc.short, short}, {sc.long, long}} {
		notes = append(notes, fmt.Sprintf("Requests per image from slot to ready, %d queued, by the API server's time:", q.n))
		notes = append(notes, indent(q.c.requests.breakdown(sc.processed))...)
	}
	return figures, notes, nil
}
