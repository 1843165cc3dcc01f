//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
)

// scaleRun processes the same number of images behind a short and a long queue.
type scaleRun struct {
	short, long int // images that keep waiting
	processed   int // images that are imported behind each
	budget      int
}

// costPerImage is the agent's cost of one image.
type costPerImage struct {
	cpu    time.Duration
	writes float64
}

func (c costPerImage) add(d costPerImage) costPerImage {
	return costPerImage{c.cpu + d.cpu, c.writes + d.writes}
}

// queueCost is the cost of images behind a queue of one length.
type queueCost struct {
	arrival, processing costPerImage
	queued              memoryUse   // of each that has arrived
	requests            requestList // of processing
}

// measureQueues measures both queues with one agent: the short one grows into the long one.
func (sc scaleRun) measureQueues(ctx context.Context) (short, long queueCost, err error) {
	s, err := startMemberSetup(ctx, member.Options{Name: "scaling", InstantImporter: true}, sc.budget, "--kube-api-qps=5000")
	if err != nil {
		return short, long, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.awaitIdle(ctx); err != nil {
		return short, long, err
	}
	// The first images fill the slots: afterwards each image replaces one.
	if err := s.enqueueImages(ctx, sc.budget, 0, s.queuedImage); err != nil {
		return short, long, err
	}
	if short, err = sc.measureBehindQueue(ctx, s, sc.short+sc.processed, sc.short); err != nil {
		return short, long, err
	}
	long, err = sc.measureBehindQueue(ctx, s, sc.long+sc.processed-sc.short, sc.long)
	return short, long, err
}

func (s *memberSetup) queuedImage() *v1alpha1.VMDiskImage {
	return s.newHTTPImage("/images/lab-151/1.0.0/")
}

// measureBehindQueue adds images and processes some, until only the queue is left.
func (sc scaleRun) measureBehindQueue(ctx context.Context, s *memberSetup, arriving, queued int) (c queueCost, err error) {
	before, err := readMemory(ctx, s.agent, s.pprof)
	if err != nil {
		return c, err
	}
	if c.arrival, _, err = s.measureSpent(arriving, func() error {
		return s.enqueueImages(ctx, arriving, queued+sc.processed, s.queuedImage)
	}); err != nil {
		return c, err
	}
	after, err := readMemory(ctx, s.agent, s.pprof)
	if err != nil {
		return c, err
	}
	c.queued = after.perThingSince(before, arriving)
	c.processing, c.requests, err = s.measureSpent(sc.processed, func() error { return s.processImages(ctx, sc.processed) })
	return c, err
}

// measureSpent returns the agent's cost per image while a function runs.
func (s *memberSetup) measureSpent(images int, do func() error) (costPerImage, requestList, error) {
	offset := s.audit.size()
	before, err := readCPUTime(s.agent.Pid())
	if err != nil {
		return costPerImage{}, nil, err
	}
	if err := do(); err != nil {
		return costPerImage{}, nil, err
	}
	after, err := readCPUTime(s.agent.Pid())
	if err != nil {
		return costPerImage{}, nil, err
	}
	asked, err := s.audit.requestsSince(offset)
	if err != nil {
		return costPerImage{}, nil, err
	}
	return costPerImage{cpu: (after - before) / time.Duration(images), writes: float64(asked.countWrites()) / float64(images)}, asked, nil
}

const (
	maxGrowth              = 1.3
	maxBytesPerQueuedImage = 10 << 10
	// maxResidentPerQueuedImage leaves a third to what was measured: when garbage is collected
	// is chance.
	maxResidentPerQueuedImage = 18 << 10
)

func measureScaling(ctx context.Context, queued int) ([]figureRow, []string, error) {
	sc := scaleRun{short: 100, long: queued, processed: 200, budget: 4}
	short, long, err := sc.measureQueues(ctx)
	if err != nil {
		return nil, nil, err
	}
	ratio := func(what string, of func(queueCost) costPerImage) []figureRow {
		a, b := of(short), of(long)
		cpu, writes := b.cpu.Seconds()/a.cpu.Seconds(), b.writes/a.writes
		return []figureRow{
			figureAtMost(fmt.Sprintf("%s: CPU per image, %d queued / %d", what, sc.long, sc.short), cpu, maxGrowth,
				fmt.Sprintf("%.2f (%.1f ms / %.1f ms)", cpu, b.cpu.Seconds()*1000, a.cpu.Seconds()*1000)),
			figureAtMost(fmt.Sprintf("%s: writes per image, %d queued / %d", what, sc.long, sc.short), writes, maxGrowth,
				fmt.Sprintf("%.2f (%.2f / %.2f)", writes, b.writes, a.writes)),
		}
	}
	figures := ratio("arrival", func(c queueCost) costPerImage { return c.arrival })
	figures = append(figures, ratio("slot to ready", func(c queueCost) costPerImage { return c.processing })...)
	figures = append(figures, ratio("both", func(c queueCost) costPerImage { return c.arrival.add(c.processing) })...)
	figures = append(figures,
		figureAtMost("memory per queued image, Go heap after GC", long.queued.heap, maxBytesPerQueuedImage, fmt.Sprintf("%.1f KiB", long.queued.heap/1024)),
		figureAtMost("memory per queued image, resident", long.queued.resident, maxResidentPerQueuedImage, fmt.Sprintf("%.1f KiB", long.queued.resident/1024)).withGoal("8 KiB"))
	notes := []string{fmt.Sprintf("scaling: instant CDI (simulator.Instant), HTTP images with preflight, %d processed, %d slots; Events count as writes, Leases do not.", sc.processed, sc.budget)}
	for _, q := range []struct {
		n int
		c queueCost
	}{{sc.short, short}, {sc.long, long}} {
		notes = append(notes, fmt.Sprintf("Requests per image from slot to ready, %d queued, by the API server's time:", q.n))
		notes = append(notes, indentLines(q.c.requests.breakdown(sc.processed))...)
	}
	return figures, notes, nil
}
