//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
)

const (
	// restingMembers with restingPages each are those whose heartbeats are measured, for
	// restingDuration.
	restingMembers  = 200
	restingPages    = 4
	restingDuration = time.Minute
	// maxCPUPerHeartbeat and maxCPUPerChange limit what the hub spends, in milliseconds.
	maxCPUPerHeartbeat = 1.5
	maxCPUPerChange    = 1.0
)

// measureHeartbeats measures what one replica of the hub spends while members only send
// heartbeats, and on each change beyond that.
func measureHeartbeats(ctx context.Context) (figures []figureRow, notes []string, err error) {
	s, err := startSingleHub(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	members, err := s.joinMembers(ctx, "resting", restingMembers)
	if err != nil {
		return nil, nil, err
	}
	if err := s.reportImages(ctx, members, restingPages, imagesPerPage); err != nil {
		return nil, nil, err
	}
	rest, beats, err := s.measureRest(ctx)
	if err != nil {
		return nil, nil, err
	}
	made := 0
	changing, err := s.measureDuring(func() (err error) {
		made, _, err = s.measureRelayedChanges(ctx, members)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	each := rest.cpu.Seconds() * 1000 / float64(beats)
	change := (changing.cpu.Seconds() - rest.coresOf(rest.cpu)*changing.duration.Seconds()) * 1000 / float64(made)
	plain, plainBeats, err := s.measurePlainRest(ctx, members)
	if err != nil {
		return nil, nil, err
	}
	return []figureRow{
			figureAtMost(fmt.Sprintf("hub CPU per heartbeat, %d members at rest, ms", restingMembers), each, maxCPUPerHeartbeat,
				fmt.Sprintf("%.2f (%.1f %% of a core)", each, 100*rest.coresOf(rest.cpu))),
			figureInfo("the same of a plain hub that only watches the reports, ms", fmt.Sprintf("%.2f", plain.cpu.Seconds()*1000/float64(plainBeats))),
			figureAtMost("hub CPU per change, ms", change, maxCPUPerChange, fmt.Sprintf("%.2f (%.0f changes/s)", change, float64(made)/changing.duration.Seconds())),
			figureInfo("hub API server CPU per heartbeat, ms", fmt.Sprintf("%.2f", rest.onHub.Seconds()*1000/float64(beats))),
			figureInfo("hub API writes per heartbeat", fmt.Sprintf("%.2f", float64(rest.requests.countWrites())/float64(beats))),
		}, []string{
			fmt.Sprintf("heartbeats: %d light members send one every %s. All that the hub's process spends in %s is divided by the heartbeats that they wrote, %d: probes, Leases and polls are in it.", restingMembers, fakemember.HeartbeatInterval, restingDuration, beats),
			fmt.Sprintf("A change is one of %d images: of a page of %d and the root. It costs what the hub spends beyond its rest.", restingPages*imagesPerPage, imagesPerPage),
		}, nil
}

// measurePlainRest replaces the hub by the plain one, and measures that at rest.
func (s *hubSetup) measurePlainRest(ctx context.Context, members []*fakemember.Member) (w usageWindow, beats int64, err error) {
	if err := s.stopReplicas(); err != nil {
		return w, 0, err
	}
	p, err := newPlainSetup(ctx, s, members)
	if err != nil {
		return w, 0, err
	}
	p.reports = true
	if _, err := p.start(ctx, 1, p.of); err != nil {
		return w, 0, err
	}
	return s.measureRest(ctx)
}

// measureRest measures the use while only heartbeats arrive, once what came before is over, and counts them.
func (s *hubSetup) measureRest(ctx context.Context) (w usageWindow, beats int64, err error) {
	if err := trigger.Sleep(ctx, memorySettles); err != nil {
		return w, 0, err
	}
	count := func() (all int64) {
		for _, l := range s.lightMembers {
			all += l.CountHeartbeats()
		}
		return all
	}
	before := count()
	w, err = s.measureDuring(func() error { return trigger.Sleep(ctx, restingDuration) })
	return w, count() - before, err
}
