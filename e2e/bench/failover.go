//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

const (
	// agentFailovers is how often the leader is killed, and how often it is stopped.
	agentFailovers = 3
	// maxLeadDelay is how long after the Lease of a killed leader, and after the end of a
	// stopped one began, the next one may lead.
	maxLeadDelay = time.Second
)

// agentFailover is how long it took the next agent to lead, and to give an image a slot that was
// created when the leader ended.
type agentFailover struct{ leads, admits time.Duration }

// measureAgentFailover ends the leader of two agents by signals, in turn.
func measureAgentFailover(ctx context.Context) (_ []figureRow, _ []string, err error) {
	s, err := startMemberSetup(ctx, member.Options{Name: "failover", InstantImporter: true}, 2*agentFailovers)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	ended := map[syscall.Signal][]agentFailover{}
	for range agentFailovers {
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			one, err := s.replaceLeader(ctx, signal)
			if err != nil {
				return nil, nil, err
			}
			ended[signal] = append(ended[signal], one)
		}
	}
	lease := agentLease.Seconds()
	var killed, stopped []float64
	text := func(all []agentFailover) (text string) {
		for _, one := range all {
			text += fmt.Sprintf("%.1f (%.1f) s ", one.leads.Seconds(), one.admits.Seconds())
		}
		return text
	}
	for i := range agentFailovers {
		killed = append(killed, ended[syscall.SIGKILL][i].leads.Seconds()-lease)
		stopped = append(stopped, ended[syscall.SIGTERM][i].leads.Seconds())
	}
	return []figureRow{
			figureAtMost("agent killed: next one leads (admits an image), seconds beyond the Lease", slices.Max(killed), maxLeadDelay.Seconds(),
				fmt.Sprintf("%+.1f; %s", slices.Max(killed), text(ended[syscall.SIGKILL]))),
			figureAtMost("agent stopped in order: next one leads (admits an image), seconds", slices.Max(stopped), maxLeadDelay.Seconds(), text(ended[syscall.SIGTERM])),
		}, []string{
			fmt.Sprintf("failover: two agents with the chart's Lease of %s, and images whose imports never end. A killed leader has renewed its Lease up to 2 s before.", agentLease),
		}, nil
}

// replaceLeader starts a standby and then ends the leader.
func (s *memberSetup) replaceLeader(ctx context.Context, signal syscall.Signal) (f agentFailover, err error) {
	leader := s.agent
	held := program.AgentLeaseHolder(ctx, s.Client())
	standby, err := program.StartAgent(ctx, s.ControlPlane, program.Options{LeaseDuration: agentLease})
	if err != nil {
		return f, err
	}
	s.agent = standby
	if _, err := standby.ReadMetrics(ctx); err != nil { // waits until they are served
		return f, errors.Join(err, leader.Stop(agentLease))
	}
	if err := s.awaitIdle(ctx); err != nil { // its caches are filled
		return f, errors.Join(err, leader.Stop(agentLease))
	}
	start := time.Now()
	if err := leader.Signal(signal); err != nil {
		return f, err
	}
	img := s.newHTTPImage("/ok/1h/")
	if err := s.Client().Create(ctx, img); err != nil {
		return f, err
	}
	err = s.awaitCondition(ctx, "another agent leads", func(ctx context.Context) (bool, error) {
		holder := program.AgentLeaseHolder(ctx, s.Client())
		f.leads = time.Since(start)
		return holder != "" && holder != held, nil
	})
	if err != nil {
		return f, err
	}
	err = s.awaitCondition(ctx, "the image has a slot", func(ctx context.Context) (bool, error) {
		err := s.Client().Get(ctx, client.ObjectKeyFromObject(img), img)
		f.admits = time.Since(start)
		return img.Status.Phase == v1alpha1.PhaseSyncing, err
	})
	<-leader.Done()
	return f, err
}
