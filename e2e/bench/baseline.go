//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
)

// baselineClient does the least that a rollout takes: it writes the plans of fake members, some
// at a time, and watches their reports.
type baselineClient struct {
	client.WithWatch
	members     []*fakemember.Member
	concurrency int
}

func (p preloadRun) newBaselineClient(ctx context.Context, s *hubSetup) (*baselineClient, error) {
	all, err := fakemember.Start(ctx, s.members, "bare", p.members)
	if err != nil {
		return nil, err
	}
	s.lightMembers = append(s.lightMembers, all)
	all.PlayImports(p.importDuration)
	c, err := client.NewWithWatch(s.members.Config(), client.Options{Scheme: s.client.Scheme()})
	if err != nil {
		return nil, err
	}
	return &baselineClient{c, all.List, p.concurrency}, nil
}

// rollOutPlans returns how long it takes until all members have the image.
func (c *baselineClient) rollOutPlans(ctx context.Context, img v1alpha1.PlannedImage) (time.Duration, error) {
	watching, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	w, err := c.Watch(watching, &v1alpha1.ClusterReportList{})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	start := time.Now()
	waiting, running := c.members, map[string]bool{}
	for {
		for len(waiting) > 0 && len(running) < c.concurrency {
			m := waiting[0]
			waiting = waiting[1:]
			running[m.Name] = true
			if err := c.Create(ctx, newPlanFor(m, img)); err != nil {
				return 0, fmt.Errorf("writing the plan of %s: %w", m.Name, err)
			}
		}
		if len(running) == 0 {
			return time.Since(start), nil
		}
		e, open := <-w.ResultChan()
		if !open {
			return 0, fmt.Errorf("waiting for the images of %d members: %w", len(waiting)+len(running), context.DeadlineExceeded)
		}
		if r, ok := e.Object.(*v1alpha1.ClusterReport); ok && r.Page != nil && r.Page.Images[0].Phase == v1alpha1.PhaseSucceeded {
			delete(running, r.Namespace)
		}
	}
}

func newPlanFor(m *fakemember.Member, img v1alpha1.PlannedImage) *v1alpha1.ClusterPlan {
	return &v1alpha1.ClusterPlan{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Name, Name: v1alpha1.MailboxName},
		Spec: v1alpha1.ClusterPlanSpec{
			PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: m.UID,
			Policy: map[string]string{"concurrency": "1"}, Images: []v1alpha1.PlannedImage{img},
		},
	}
}
