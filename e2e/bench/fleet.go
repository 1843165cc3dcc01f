//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

const (
	fewMembers  = 20
	manyMembers = 50
	// policyRounds and phaseRounds are the numbers of measured changes.
	policyRounds = 10
	phaseRounds  = 100
	// pagesPerMember is how many pages each member reports when memory is measured.
	pagesPerMember  = 8
	maxPhaseLatency = time.Second
)

// measureFleet measures a hub with fake members.
func measureFleet(ctx context.Context) (figures []figureRow, notes []string, err error) {
	s, err := startSingleHub(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	few, err := s.joinMembers(ctx, "few", fewMembers)
	if err != nil {
		return nil, nil, err
	}
	acknowledged, err := s.measurePolicyChanges(ctx, few)
	if err != nil {
		return nil, nil, err
	}
	figures = append(figures, figureInfo(fmt.Sprintf("policy key changed -> acknowledged by %d light members", len(few)), acknowledged.format()))
	phase, err := s.measurePhaseChanges(ctx, few)
	if err != nil {
		return nil, nil, err
	}
	figures = append(figures, figureJudged("phase changed in a light member -> on the hub", phase.format(), fmt.Sprintf("p99 at most %s", maxPhaseLatency), phase.percentile(0.99) <= maxPhaseLatency))
	writes, err := s.countHubWrites(ctx, few)
	if err != nil {
		return nil, nil, err
	}
	figures = append(figures, figureInfo("hub API writes per 1,000 image changes, one at a time", fmt.Sprintf("%.0f", writes)))

	before, err := s.readMemories(ctx)
	if err != nil {
		return nil, nil, err
	}
	more, err := s.joinMembers(ctx, "more", manyMembers-fewMembers)
	if err != nil {
		return nil, nil, err
	}
	with, err := s.readMemories(ctx)
	if err != nil {
		return nil, nil, err
	}
	each := with[0].perThingSince(before[0], len(more))
	figures = append(figures, figureInfo("hub memory per member: heap (resident)", fmt.Sprintf("%.0f KiB (%.0f KiB)", each.heap/1024, each.resident/1024)))
	idle, err := s.measureIdle(ctx)
	if err != nil {
		return nil, nil, err
	}
	figures = append(figures, figureInfo(fmt.Sprintf("hub CPU, idle, %d light members", manyMembers), fmt.Sprintf("%.1f %% of a core", 100*idle.coresOf(idle.cpu))))
	images := manyMembers * pagesPerMember * v1alpha1.MaxReportedImages
	if err := s.reportImages(ctx, slices.Concat(few, more), pagesPerMember, v1alpha1.MaxReportedImages); err != nil {
		return nil, nil, err
	}
	full, err := s.readMemories(ctx)
	if err != nil {
		return nil, nil, err
	}
	each = full[0].perThingSince(with[0], images)
	figures = append(figures, figureInfo(fmt.Sprintf("hub memory per image x cluster, %d of them: heap (resident)", images), fmt.Sprintf("%.0f B (%.0f B)", each.heap, each.resident)))
	return figures, []string{
		"fleet: light members are namespaces of one API server with stand-ins for their agents, which acknowledge and report at once (e2e/harness/fakemember).",
		"A change is measured from its write until the member has written its acknowledgement, or until a watch of the hub's copy of the page shows it.",
	}, nil
}

// measurePolicyChanges changes the fleet's policy and waits for each member.
func (s *hubSetup) measurePolicyChanges(ctx context.Context, members []*fakemember.Member) (latencies, error) {
	var all latencies
	for round := range policyRounds {
		want := fmt.Sprint(2 + round)
		cm := &corev1.ConfigMap{}
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
			return nil, err
		}
		cm.Data["concurrency"] = want
		start := time.Now()
		if err := s.client.Update(ctx, cm); err != nil {
			return nil, err
		}
		took := make(latencies, len(members))
		group, waiting := errgroup.WithContext(ctx)
		for i, m := range members {
			group.Go(func() error {
				err := m.AwaitPlan(waiting, func(root *v1alpha1.ReportRoot) bool { return root.Policy["concurrency"] == want })
				took[i] = time.Since(start)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
		all = append(all, took...)
	}
	return all, nil
}

// measurePhaseChanges changes one image of one member and waits for it on the hub.
func (s *hubSetup) measurePhaseChanges(ctx context.Context, members []*fakemember.Member) (latencies, error) {
	var all latencies
	for round := range phaseRounds {
		m := members[round%len(members)]
		watching, cancel := context.WithTimeout(ctx, waitTimeout)
		w, err := s.client.Watch(watching, &v1alpha1.ClusterReportList{}, client.InNamespace(v1alpha1.MemberNamespacePrefix+m.Name))
		if err != nil {
			cancel()
			return nil, err
		}
		want, start := fmt.Sprintf("round %d", round), time.Now()
		img := newReportedImage(1, v1alpha1.PhaseSyncing)
		img.Message = want
		err = m.SetImages(ctx, "page", []v1alpha1.ReportedImage{img})
		for err == nil {
			e, open := <-w.ResultChan()
			if !open {
				err = fmt.Errorf("waiting for a page of %s on the hub: %w", m.Name, context.DeadlineExceeded)
				break
			}
			if r, ok := e.Object.(*v1alpha1.ClusterReport); ok && r.Page != nil && r.Page.Images[0].Message == want {
				all = append(all, time.Since(start))
				break
			}
		}
		w.Stop()
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// countHubWrites returns the hub's writes to its own API server per 1,000 changes of images.
func (s *hubSetup) countHubWrites(ctx context.Context, members []*fakemember.Member) (float64, error) {
	offset := s.audit.size()
	if _, err := s.measurePhaseChanges(ctx, members); err != nil {
		return 0, err
	}
	asked, err := s.audit.requestsSince(offset)
	return float64(asked.countWrites()) / phaseRounds * 1000, err
}

// measureAgentToHub measures how long a change of a real agent's image takes to reach the hub.
func measureAgentToHub(ctx context.Context) (_ []figureRow, _ []string, err error) {
	s, err := startSingleHub(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	m, err := startMemberSetup(ctx, member.Options{Name: "agent", InstantImporter: true}, 1)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	if err := s.createMemberCluster(ctx, "agent", m.ControlPlane.Config(), program.AgentNamespace); err != nil {
		return nil, nil, err
	}
	if err := s.awaitMembers(ctx, "the agent is healthy", 1, func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
	}); err != nil {
		return nil, nil, err
	}
	w, err := s.client.Watch(ctx, &v1alpha1.ClusterReportList{}, client.InNamespace(v1alpha1.MemberNamespacePrefix+"agent"))
	if err != nil {
		return nil, nil, err
	}
	defer w.Stop()
	var all latencies
	// The first one is a warm-up: CDI is played, so nobody else has listed StorageProfiles yet, and the
	// API server has the first list of a kind come again after a second.
	for range 1 + phaseRounds {
		img := m.newBlankImage()
		start := time.Now()
		if err := m.Client().Create(ctx, img); err != nil {
			return nil, nil, err
		}
		for e := range w.ResultChan() {
			r, ok := e.Object.(*v1alpha1.ClusterReport)
			if ok && r.Page != nil && slices.ContainsFunc(r.Page.Images, func(i v1alpha1.ReportedImage) bool { return i.Name == img.Name && i.Phase != "" }) {
				all = append(all, time.Since(start))
				break
			}
		}
	}
	if len(all) <= phaseRounds {
		return nil, nil, fmt.Errorf("waiting for images on the hub: the watch ended after %d of %d", len(all), 1+phaseRounds)
	}
	all = all[1:]
	return []figureRow{figureJudged("image created in a member -> its phase on the hub", all.format(), fmt.Sprintf("p99 at most %s", maxPhaseLatency), all.percentile(0.99) <= maxPhaseLatency)},
		[]string{"The agent is real there; the time until it has looked at the image and its report's interval of 200 ms are in it."}, nil
}

type latencies []time.Duration

// percentile is a percentile.
func (l latencies) percentile(p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(l))
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

func (l latencies) format() string {
	return fmt.Sprintf("p50 %.0f ms, p99 %.0f ms", l.percentile(0.5).Seconds()*1000, l.percentile(0.99).Seconds()*1000)
}
