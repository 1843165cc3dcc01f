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

	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/observer"
)

// batch is a queue of images that all take the same time.
type batch struct {
	images, budget int
	takes          time.Duration
	// instant: CDI is played, and an import takes just that time.
	instant bool
}

// played is what came of a batch, by an observer that reads no status of the
// agent's.
type played struct {
	alone   time.Duration // what one import takes with nothing beside it
	total   time.Duration // from the creation of the first image to the end of the last import
	spans   []observer.Span
	history observer.History
	asked   requests
	created []types.UID
}

// play runs a batch.
func (b batch) play(ctx context.Context) (p played, err error) {
	o := member.Options{Name: "makespan", WithoutSnapshots: true}
	if b.instant {
		o = member.Options{Name: "makespan", Instant: true, InstantTakes: b.takes}
	}
	s, err := newStage(ctx, o, b.budget)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if b.instant {
		s.Instant().Allow(2 * b.images)
	}
	if p.alone, err = b.playAlone(ctx, s); err != nil {
		return p, err
	}
	watching, err := observer.Start(ctx, s.ControlPlane.Config())
	if err != nil {
		return p, err
	}
	defer watching.Stop()
	before, err := s.imported(ctx)
	if err != nil {
		return p, err
	}
	offset, start := s.audit.size(), time.Now()
	for range b.images {
		img := s.httpImage(b.path())
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
	p.total = p.ends()[b.images-1].Sub(start)
	p.asked, err = s.audit.since(offset)
	return p, err
}

func (b batch) path() string { return fmt.Sprintf("/ok/%s/", b.takes) }

// playAlone imports images one by one. The first warms everything up.
func (b batch) playAlone(ctx context.Context, s *stage) (time.Duration, error) {
	o, err := observer.Start(ctx, s.ControlPlane.Config())
	if err != nil {
		return 0, err
	}
	defer o.Stop()
	for n := range 4 {
		if err := s.Client().Create(ctx, s.httpImage(b.path())); err != nil {
			return 0, fmt.Errorf("creating an image: %w", err)
		}
		if err := s.awaitImported(ctx, n+1); err != nil {
			return 0, err
		}
		if err := s.settle(ctx); err != nil {
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

func (s *stage) imported(ctx context.Context) (int, error) {
	n, err := metric(ctx, s.agent, `ot_agent_attempts_total{reason="",result="Succeeded"}`)
	return int(n), err
}

func (s *stage) awaitImported(ctx context.Context, n int) error {
	return s.awaitEvery(ctx, scrape, fmt.Sprintf("%d images are imported", n), func(ctx context.Context) (bool, error) {
		done, err := s.imported(ctx)
		return done >= n, err
	})
}

// ends are when imports ended, in order.
func (p played) ends() []time.Time {
	ends := make([]time.Time, len(p.spans))
	for i, span := range p.spans {
		ends[i] = span.Ended
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends
}

// busy is the time that slots were in use, all together.
func (p played) busy() (sum time.Duration) {
	for _, span := range p.spans {
		sum += span.Ended.Sub(span.Begun)
	}
	return sum
}

// idle lists for how long slots lay idle while images waited: the nth slot that
// became free was taken by the nth image of those that had found none.
func (p played) idle(budget int) []time.Duration {
	var idle []time.Duration
	for i, end := range p.ends()[:len(p.spans)-budget] {
		idle = append(idle, p.spans[budget+i].Begun.Sub(end))
	}
	return idle
}

// outOfOrder lists which of the images started at another place than they were
// created at, by number.
func (p played) outOfOrder() (swapped []string) {
	for i, span := range p.spans {
		if span.Image != p.created[i] {
			swapped = append(swapped, fmt.Sprintf("%d at %d", slices.Index(p.created, span.Image), i))
		}
	}
	return swapped
}

const mostMakespan = 1.05

// makespan plays the batch with imports that take just their time, which leaves
// to see what the agent adds.
func makespan(ctx context.Context) ([]figure, []string, error) {
	b := batch{images: 40, budget: 4, takes: 2 * time.Second, instant: true}
	p, err := b.play(ctx)
	if err != nil {
		return nil, nil, err
	}
	nominal := float64(b.images) / float64(b.budget) * b.takes.Seconds()
	ratio := p.total.Seconds() / nominal
	figures := []figure{
		atMost("makespan / ideal, CDI played", ratio, mostMakespan, fmt.Sprintf("%.3f (%.1f s / %.0f s)", ratio, p.total.Seconds(), nominal)),
		told("hand-over of a slot, CDI played", p.handOvers(b.budget)),
	}
	notes := append(p.beyond(b.budget),
		fmt.Sprintf("makespan: CDI played (simulator.Instant): an import takes %s; ideal = %d/%d × that.", b.takes, b.images, b.budget),
		"A hand-over is from an import's end to the creation of the next DataVolume.",
		"Requests of the agent per image, by the API server's time:")
	return append(figures, b.keeps("CDI played", p)...), append(notes, indent(p.asked.breakdown(b.images))...), nil
}

// makespanCDI plays it with real CDI, which on a machine of two cores takes
// longer for an import than the import does.
func makespanCDI(ctx context.Context) ([]figure, []string, error) {
	b := batch{images: 40, budget: 4, takes: 2 * time.Second}
	p, err := b.play(ctx)
	if err != nil {
		return nil, nil, err
	}
	ideal := p.busy().Seconds() / float64(b.budget)
	beside := p.busy() / time.Duration(b.images)
	figures := []figure{
		told("makespan / ideal of this run, real CDI", fmt.Sprintf("%.3f (%.1f s / %.1f s)", p.total.Seconds()/ideal, p.total.Seconds(), ideal)),
		told("hand-over of a slot, real CDI", p.handOvers(b.budget)),
		told("one import, 4 at a time / alone, real CDI", fmt.Sprintf("%.2f (%.2f s / %.2f s)", beside.Seconds()/p.alone.Seconds(), beside.Seconds(), p.alone.Seconds())),
	}
	return append(figures, b.keeps("real CDI", p)...), append(p.beyond(b.budget),
		fmt.Sprintf("Real CDI: an import of nominally %s takes %.2f s from DataVolume to Succeeded, CDI, scheduler and simulated node included; ideal = %d/%d × that.", b.takes, beside.Seconds(), b.images, b.budget)), nil
}

func (p played) beyond(budget int) (notes []string) {
	for _, b := range p.history.Beyond(budget) {
		notes = append(notes, "beyond the budget: "+b)
	}
	return notes
}

// keeps are the promises that a batch shows.
func (b batch) keeps(how string, p played) []figure {
	most, swapped := p.history.MostRunning(), p.outOfOrder()
	order := "yes"
	if len(swapped) > 0 {
		order = strings.Join(swapped, ", ")
	}
	return []figure{
		judged("imports at a time, "+how, fmt.Sprint(most), fmt.Sprintf("at most %d", b.budget), most <= b.budget),
		judged("start order = creation order, "+how, order, "yes", len(swapped) == 0),
	}
}

// handOvers sums up for how long slots lay idle while images waited.
func (p played) handOvers(budget int) string {
	idle := p.idle(budget)
	var sum, worst time.Duration
	for _, d := range idle {
		sum, worst = sum+d, max(worst, d)
	}
	return fmt.Sprintf("%.0f ms, %.0f ms at most, %d of them", sum.Seconds()*1000/float64(len(idle)), worst.Seconds()*1000, len(idle))
}
