package prometheus

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/hub/history"
)

// Filler fills a History once, with what was before it. It tries with each sample, which is
// every minute, until it has succeeded; answers never wait for it.
type Filler struct {
	Reader Reader
	// Filled is called when an answer may have changed.
	Filled func()

	offered chan *history.History
}

// NewFiller returns a Filler.
func NewFiller(o Options, filled func()) *Filler {
	return &Filler{Reader: Reader{o}, Filled: filled, offered: make(chan *history.History, 1)}
}

// Offer has a History filled, unless the Filler is busy.
func (f *Filler) Offer(h *history.History) {
	select {
	case f.offered <- h:
	default:
	}
}

// Start implements manager.Runnable. It runs in the elected replica only.
func (f *Filler) Start(ctx context.Context) error {
	var done *history.History
	for {
		select {
		case <-ctx.Done():
			return nil
		case h := <-f.offered:
			if h == done {
				continue
			}
			if f.readSeries(ctx, h, time.Now()) {
				done = h
			}
			f.Filled()
		}
	}
}

// queries for the series of a History. %s are matchers of labels.
var queries = []struct {
	by, series, label, query string
}{
	{readapi.ByFleet, readapi.SeriesBytes, "source", `max by (source) (ot_hub_fleet_transfers_bytes_per_second{%s})`},
	{readapi.ByFleet, readapi.SeriesSlots, "source", `max by (source) (ot_hub_fleet_transfers_running{%s})`},
	{readapi.ByFleet, readapi.SeriesQueued, "source", `max by (source) (ot_hub_fleet_transfers_queued{%s})`},
	{readapi.ByFleet, history.SeriesUnknown, "", `max(ot_hub_fleet_transfers_unknown_members{%s})`},
	{readapi.ByCluster, readapi.SeriesBytes, "member", `max by (member) (ot_hub_member_bytes_per_second{%s})`},
	{readapi.ByCluster, readapi.SeriesSlots, "member", `max by (member) (ot_hub_member_slots{%s})`},
	{readapi.ByCluster, readapi.SeriesQueued, "member", `max by (member) (ot_hub_member_images{phase="Queued",%s})`},
}

// readSeries asks for all series; false where one could not be read.
func (f *Filler) readSeries(ctx context.Context, h *history.History, now time.Time) bool {
	for _, q := range queries {
		step, window := history.Step, history.Window
		if q.by == readapi.ByCluster {
			step, window = history.MemberStep, history.MemberWindow
		}
		until := h.Since().Truncate(step)
		all, err := f.Reader.queryRange(ctx, fmt.Sprintf(q.query, f.Reader.Selector), until.Add(-window), until, step)
		if err != nil {
			if ctx.Err() == nil {
				log.FromContext(ctx).Info("Failed to read the history from Prometheus; trying again in a minute", "series", q.series, "by", q.by, "error", err)
				h.SetPastProblem(err.Error(), now)
			}
			return false
		}
		for _, s := range all {
			by, name := q.by, s.labels[q.label]
			if by == readapi.ByFleet && name != "" {
				by = readapi.BySource
			}
			h.FillPast(by, name, q.series, s.points)
		}
	}
	h.SetPastProblem("", now)
	return true
}
