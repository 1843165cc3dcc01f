//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
)

// imageBatch is a queue of images with the same import duration.
type imageBatch struct {
	images, budget int
	importDuration time.Duration
	// instant is true where CDI is simulated and an import takes exactly importDuration.
	instant bool
}

// batchResult is what an observer has seen of a batch. It reads no status of the agent.
type batchResult struct {
	aloneDuration time.Duration // of one import without others
	totalDuration time.Duration // from the creation of the first image to the end of the last import
	spans         []observer.Span
	history       observer.History
	requests      requestList
	created       []types.UID
}

// runBatch imports all images of a batch.
func (b imageBatch) runBatch(ctx context.Context) (p batchResult, err error) {
	o := member.Options{Name: "makespan", WithoutSnapshots: true}
	if b.instant {
		o = member.Options{Name: "makespan", InstantImporter: true, InstantImportDuration: b.importDuration}
	}
	s, err := startMemberSetup(ctx, o, b.budget)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if b.instant {
		s.InstantImporter().AllowFinishes(2 * b.images)
	}
	if p.aloneDuration, err = b.runOneByOne(ctx, s); err != nil {
		return p, err
	}
	watching, err := observer.Start(ctx, s.ControlPlane.Config())
	if err != nil {
		return p, err
	}
	defer watching.Stop()
	before, err := s.countImported(ctx)
	if err != nil {
		return p, err
	}
	offset, start := s.audit.size(), time.Now()
	for range b.images {
		img := s.newHTTPImage(b.sourcePath())
		if err := s.Client().Create(ctx, img); err != nil {
			return p, fmt.Errorf("creating an image: %w", err)
		}
		p.created = append(p.created, img.UID)
	}
	if err := s.awaitImported(ctx, before+b.images); err != nil {
		return p, err
	}
	if p.history, err = watching.History(ctx); err != nil {
		return p, err
	}
	p.spans = slices.DeleteFunc(p.history.Spans(), func(sp observer.Span) bool { return !slices.Contains(p.created, sp.Image) })
	if len(p.spans) != b.images {
		return p, fmt.Errorf("%d imports were seen of %d images", len(p.spans), b.images)
	}
	p.totalDuration = p.importEnds()[b.images-1].Sub(start)
	p.requests, err = s.audit.requestsSince(offset)
	return p, err
}

func (b imageBatch) sourcePath() string { return fmt.Sprintf("/ok/%s/", b.importDuration) }

// runOneByOne imports images one after another. The first one is a warm-up.
func (b imageBatch) runOneByOne(ctx context.Context, s *memberSetup) (time.Duration, error) {
	o, err := observer.Start(ctx, s.ControlPlane.Config())
	if err != nil {
		return 0, err
	}
	defer o.Stop()
	for n := range 4 {
		if err := s.Client().Create(ctx, s.newHTTPImage(b.sourcePath())); err != nil {
			return 0, fmt.Errorf("creating an image: %w", err)
		}
		if err := s.awaitImported(ctx, n+1); err != nil {
			return 0, err
		}
		if err := s.awaitIdle(ctx); err != nil {
			return 0, err
		}
	}
	h, err := o.History(ctx)
	if err != nil {
		return 0, err
	}
	var took []time.Duration
	for _, span := range h.Spans()[1:] {
		took = append(took, span.Ended.Sub(span.Begun))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

func (s *memberSetup) countImported(ctx context.Context) (int, error) {
	n, err := readMetric(ctx, s.agent, `ot_agent_attempts_total{reason="",result="Succeeded"}`)
	return int(n), err
}

func (s *memberSetup) awaitImported(ctx context.Context, n int) error {
	return s.awaitEvery(ctx, scrapeInterval, fmt.Sprintf("%d images are imported", n), func(ctx context.Context) (bool, error) {
		done, err := s.countImported(ctx)
		return done >= n, err
	})
}

// importEnds returns when imports ended, in order.
func (p batchResult) importEnds() []time.Time {
	ends := make([]time.Time, len(p.spans))
	for i, span := range p.spans {
		ends[i] = span.Ended
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends
}

// busyTime returns the sum of the times that slots were in use.
func (p batchResult) busyTime() (sum time.Duration) {
	for _, span := range p.spans {
		sum += span.Ended.Sub(span.Begun)
	}
	return sum
}

// idleTimes returns how long freed slots were idle while images waited: the nth freed slot was taken
// by the nth waiting image.
func (p batchResult) idleTimes(budget int) []time.Duration {
	var idle []time.Duration
	for i, end := range p.importEnds()[:len(p.spans)-budget] {
		idle = append(idle, p.spans[budget+i].Begun.Sub(end))
	}
	return idle
}

// findOutOfOrder returns the images that did not start in the order of their creation.
func (p batchResult) findOutOfOrder() (swapped []string) {
	for i, span := range p.spans {
		if span.Image != p.created[i] {
			swapped = append(swapped, fmt.Sprintf("%d at %d", slices.Index(p.created, span.Image), i))
		}
	}
	return swapped
}

// playedBatches are imports of few and of many images, and the most that they may take, as a share
// of the ideal.
var playedBatches = []struct {
	imageBatch
	maxRatio float64
}{
	{imageBatch{images: 40, budget: 4, importDuration: 2 * time.Second, instant: true}, 1.03},
	{imageBatch{images: 300, budget: 16, importDuration: time.Second, instant: true}, 1.2},
}

// measureMakespan runs batches with simulated imports: what exceeds their duration is the agent's.
func measureMakespan(ctx context.Context) (figures []figureRow, notes []string, err error) {
	for _, b := range playedBatches {
		p, err := b.runBatch(ctx)
		if err != nil {
			return nil, nil, err
		}
		how := fmt.Sprintf("%d images × %s, %d at a time, CDI played", b.images, b.importDuration, b.budget)
		nominal := float64(b.images) / float64(b.budget) * b.importDuration.Seconds()
		ratio := p.totalDuration.Seconds() / nominal
		figures = append(figures,
			figureAtMost("makespan / ideal, "+how, ratio, b.maxRatio, fmt.Sprintf("%.3f (%.1f s / %.1f s)", ratio, p.totalDuration.Seconds(), nominal)),
			figureInfo("requests per image, "+how, fmt.Sprintf("%.2f", float64(len(p.requests))/float64(b.images))),
			figureInfo("hand-over of a slot, "+how, p.summarizeHandOvers(b.budget)))
		figures = append(figures, b.judgePromises(how, p)...)
		notes = append(notes, p.explainOverhead(b.budget)...)
		notes = append(notes, "makespan, "+how+": requests of the agent per image, by the API server's time:")
		notes = append(notes, indentLines(p.requests.breakdown(b.images))...)
	}
	return figures, append(notes,
		"CDI is played (simulator.Instant): an import takes exactly its duration; ideal = images / budget × that.",
		"A hand-over is from an import's end to the creation of the next DataVolume."), nil
}

// measureMakespanCDI runs it with real CDI, whose overhead on two cores exceeds the import itself.
func measureMakespanCDI(ctx context.Context) ([]figureRow, []string, error) {
	b := imageBatch{images: 40, budget: 4, importDuration: 2 * time.Second}
	p, err := b.runBatch(ctx)
	if err != nil {
		return nil, nil, err
	}
	ideal := p.busyTime().Seconds() / float64(b.budget)
	beside := p.busyTime() / time.Duration(b.images)
	figures := []figureRow{
		figureInfo("makespan / ideal of this run, real CDI", fmt.Sprintf("%.3f (%.1f s / %.1f s)", p.totalDuration.Seconds()/ideal, p.totalDuration.Seconds(), ideal)),
		figureInfo("hand-over of a slot, real CDI", p.summarizeHandOvers(b.budget)),
		figureInfo("one import, 4 at a time / alone, real CDI", fmt.Sprintf("%.2f (%.2f s / %.2f s)", beside.Seconds()/p.aloneDuration.Seconds(), beside.Seconds(), p.aloneDuration.Seconds())),
	}
	return append(figures, b.judgePromises("real CDI", p)...), append(p.explainOverhead(b.budget),
		fmt.Sprintf("Real CDI: an import of nominally %s takes %.2f s from DataVolume to Succeeded, CDI, scheduler and simulated node included; ideal = %d/%d × that.", b.importDuration, beside.Seconds(), b.images, b.budget)), nil
}

func (p batchResult) explainOverhead(budget int) (notes []string) {
	for _, b := range p.history.EventsExceeding(budget) {
		notes = append(notes, "beyond the budget: "+b)
	}
	return notes
}

// judgePromises returns the promises that a batch shows as figures.
func (b imageBatch) judgePromises(how string, p batchResult) []figureRow {
	most, swapped := p.history.MaxRunning(), p.findOutOfOrder()
	order := "yes"
	if len(swapped) > 0 {
		order = strings.Join(swapped, ", ")
	}
	return []figureRow{
		figureJudged("imports at a time, "+how, fmt.Sprint(most), fmt.Sprintf("at most %d", b.budget), most <= b.budget),
		figureJudged("start order = creation order, "+how, order, "yes", len(swapped) == 0),
	}
}

// summarizeHandOvers formats how long freed slots were idle while images waited.
func (p batchResult) summarizeHandOvers(budget int) string {
	idle := p.idleTimes(budget)
	var sum, worst time.Duration
	for _, d := range idle {
		sum, worst = sum+d, max(worst, d)
	}
	return fmt.Sprintf("%.0f ms, %.0f ms at most, %d of them", sum.Seconds()*1000/float64(len(idle)), worst.Seconds()*1000, len(idle))
}
