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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/light"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/process"
)

const (
	fewMembers  = 20
	manyMembers = 50
	// policyRounds and phaseRounds are how often a change is measured.
	policyRounds = 10
	phaseRounds  = 100
	// idleFor is how long the hub is watched while nothing happens.
	idleFor = 20 * time.Second
	// pagesEach is how many pages of images each member reports where memory is measured.
	pagesEach = 8
	mostPhase = time.Second
)

// hubStage is a hub, whose requests are written down, and an API server for
// light members.
type hubStage struct {
	plane   *controlplane.ControlPlane
	members *controlplane.ControlPlane
	hub     *hub.Hub
	pprof   string
	client  client.WithWatch
	audit   *audit
	light   []*light.Members
}

func newHubStage(ctx context.Context) (_ *hubStage, err error) {
	s := &hubStage{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.audit, err = newAudit(hub.Namespace + ":ot-hub"); err != nil {
		return nil, err
	}
	planes, err := controlplane.StartAll(ctx,
		controlplane.Options{Name: "hub", ControllerManager: true, APIServerMemory: "1GiB", APIServerArgs: s.audit.apiServerArgs()},
		controlplane.Options{Name: "members", ControllerManager: true, APIServerMemory: "1GiB"})
	if err != nil {
		return nil, err
	}
	s.plane, s.members = planes[0], planes[1]
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	if s.client, err = client.NewWithWatch(s.plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if err := hub.Install(ctx, s.plane, map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": "1"}}}); err != nil {
		return nil, err
	}
	if err := agent.Install(ctx, s.members, nil); err != nil { // for the kinds
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	s.pprof = fmt.Sprintf("127.0.0.1:%d", port)
	s.hub, err = hub.Start(ctx, s.plane, hub.Options{Args: []string{"--pprof-bind-address=" + s.pprof}})
	return s, err
}

func (s *hubStage) stop() error {
	var errs []error
	for _, l := range s.light {
		l.Stop()
	}
	if s.hub != nil {
		errs = append(errs, s.hub.Stop(15*time.Second))
	}
	for _, p := range []*controlplane.ControlPlane{s.members, s.plane} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	if s.audit != nil {
		errs = append(errs, s.audit.remove())
	}
	return errors.Join(errs...)
}

// join adds members and waits until the hub has each one's acknowledgement.
func (s *hubStage) join(ctx context.Context, prefix string, n int) ([]*light.Member, error) {
	all, err := light.Start(ctx, s.members, prefix, n)
	if err != nil {
		return nil, err
	}
	s.light = append(s.light, all)
	for _, m := range all.List {
		cfg, err := m.Config(ctx)
		if err != nil {
			return nil, err
		}
		if err := s.connect(ctx, m.Name, cfg, m.Name); err != nil {
			return nil, err
		}
	}
	return all.List, s.await(ctx, prefix+" are healthy", func(members []v1alpha1.MemberCluster) bool {
		return len(members) >= n && !slices.ContainsFunc(members, func(m v1alpha1.MemberCluster) bool {
			return !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
		})
	})
}

// settle waits until the hub asks its API server for nothing any more.
func (s *hubStage) settle(ctx context.Context) error {
	size, since := s.audit.size(), time.Now()
	err := wait.PollUntilContextTimeout(ctx, tick, patience, true, func(context.Context) (bool, error) {
		if now := s.audit.size(); now != size {
			size, since = now, time.Now()
		}
		return time.Since(since) >= quiet, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until the hub has settled: %w", err)
	}
	return nil
}

func (s *hubStage) connect(ctx context.Context, name string, cfg *rest.Config, namespace string) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}},
		&v1alpha1.MemberCluster{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.MemberClusterSpec{
				Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}},
				AgentNamespace: namespace,
			},
		},
	} {
		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("making member %s known to the hub: %w", name, err)
		}
	}
	return nil
}

func (s *hubStage) await(ctx context.Context, what string, holds func([]v1alpha1.MemberCluster) bool) error {
	err := wait.PollUntilContextTimeout(ctx, scrape, patience, true, func(ctx context.Context) (bool, error) {
		var list v1alpha1.MemberClusterList
		if err := s.client.List(ctx, &list); err != nil {
			return false, err
		}
		return holds(list.Items), nil
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}

// fleetFigures measures a hub with light members.
func fleetFigures(ctx context.Context) (figures []figure, notes []string, err error) {
	s, err := newHubStage(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	few, err := s.join(ctx, "few", fewMembers)
	if err != nil {
		return nil, nil, err
	}
	acknowledged, err := s.policyChanges(ctx, few)
	if err != nil {
		return nil, nil, err
	}
	figures = append(figures, told(fmt.Sprintf("policy key changed -> acknowledged by %d light members", len(few)), acknowledged.text()))
	phase, err := s.phaseChanges(ctx, few)
	if err != nil {
		return nil, nil, err
	}
	figures = append(figures, judged("phase changed in a light member -> on the hub", phase.text(), fmt.Sprintf("p99 at most %s", mostPhase), phase.at(0.99) <= mostPhase))
	writes, err := s.writes(ctx, few)
	if err != nil {
		return nil, nil, err
	}
	figures = append(figures, told("hub API writes per 1,000 image changes, one at a time", fmt.Sprintf("%.0f", writes)))

	before, err := memoryOf(ctx, s.hub, s.pprof)
	if err != nil {
		return nil, nil, err
	}
	more, err := s.join(ctx, "more", manyMembers-fewMembers)
	if err != nil {
		return nil, nil, err
	}
	with, err := memoryOf(ctx, s.hub, s.pprof)
	if err != nil {
		return nil, nil, err
	}
	each := with.since(before, len(more))
	figures = append(figures, told("hub memory per member: heap (resident)", fmt.Sprintf("%.0f KiB (%.0f KiB)", each.heap/1024, each.resident/1024)))
	idle, err := s.idle(ctx)
	if err != nil {
		return nil, nil, err
	}
	figures = append(figures, told(fmt.Sprintf("hub CPU, idle, %d light members", manyMembers), fmt.Sprintf("%.1f %% of a core", 100*idle)))
	images, err := s.report(ctx, slices.Concat(few, more))
	if err != nil {
		return nil, nil, err
	}
	full, err := memoryOf(ctx, s.hub, s.pprof)
	if err != nil {
		return nil, nil, err
	}
	each = full.since(with, images)
	figures = append(figures, told(fmt.Sprintf("hub memory per image x cluster, %d of them: heap (resident)", images), fmt.Sprintf("%.0f B (%.0f B)", each.heap, each.resident)))
	return figures, []string{
		"fleet: light members are namespaces of one API server with stand-ins for their agents, which acknowledge and report at once (e2e/light).",
		"A change is measured from its write until the member has written its acknowledgement, or until a watch of the hub's copy of the page shows it.",
	}, nil
}

// policyChanges changes the fleet's policy and waits for each member.
func (s *hubStage) policyChanges(ctx context.Context, members []*light.Member) (latencies, error) {
	var all latencies
	for round := range policyRounds {
		want := fmt.Sprint(2 + round)
		cm := &corev1.ConfigMap{}
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: hub.PolicyNamespace, Name: hub.PolicyName}, cm); err != nil {
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
				err := m.Await(waiting, func(root *v1alpha1.ReportRoot) bool { return root.Policy["concurrency"] == want })
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

func image(n int, phase v1alpha1.Phase) v1alpha1.ReportedImage {
	name := fmt.Sprintf("image-%05d", n)
	return v1alpha1.ReportedImage{
		Namespace: namespace, Name: name, Source: "http https://images.example.com/" + name + ".qcow2", Revision: "1cu4lz8bfceqj",
		Phase: phase, Reason: v1alpha1.ReasonImporting, Message: "importing, attempt 1 of 4", Bytes: 24 << 30,
	}
}

// phaseChanges has one image of one member change and waits for it on the hub.
func (s *hubStage) phaseChanges(ctx context.Context, members []*light.Member) (latencies, error) {
	var all latencies
	for round := range phaseRounds {
		m := members[round%len(members)]
		watching, cancel := context.WithTimeout(ctx, patience)
		w, err := s.client.Watch(watching, &v1alpha1.ClusterReportList{}, client.InNamespace(v1alpha1.MemberNamespacePrefix+m.Name))
		if err != nil {
			cancel()
			return nil, err
		}
		want, start := fmt.Sprintf("round %d", round), time.Now()
		img := image(1, v1alpha1.PhaseSyncing)
		img.Message = want
		err = m.SetImages(ctx, "page", []v1alpha1.ReportedImage{img})
		for err == nil {
			e, open := <-w.ResultChan()
			if !open {
				err = fmt.Errorf("waiting for a page of %s on the hub: %w", m.Name, context.DeadlineExceeded)
				break
			}
			if r, is := e.Object.(*v1alpha1.ClusterReport); is && r.Page != nil && r.Page.Images[0].Message == want {
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

// writes counts what the hub writes on its own API server while images change,
// per 1,000 changes.
func (s *hubStage) writes(ctx context.Context, members []*light.Member) (float64, error) {
	offset := s.audit.size()
	if _, err := s.phaseChanges(ctx, members); err != nil {
		return 0, err
	}
	asked, err := s.audit.since(offset)
	return float64(asked.writes()) / phaseRounds * 1000, err
}

func (s *hubStage) idle(ctx context.Context) (float64, error) {
	before, err := cpuTime(s.hub.Pid())
	if err != nil {
		return 0, err
	}
	start := time.Now()
	select {
	case <-time.After(idleFor):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := cpuTime(s.hub.Pid())
	return (after - before).Seconds() / time.Since(start).Seconds(), err
}

// report has every member report images, and waits until the hub has counted
// them. It returns how many there are.
func (s *hubStage) report(ctx context.Context, members []*light.Member) (int, error) {
	each := pagesEach * v1alpha1.MaxReportedImages
	for _, m := range members {
		for p := range pagesEach {
			images := make([]v1alpha1.ReportedImage, v1alpha1.MaxReportedImages)
			for i := range images {
				images[i] = image(p*v1alpha1.MaxReportedImages+i, v1alpha1.PhaseSucceeded)
			}
			if err := m.SetImages(ctx, fmt.Sprintf("page-%03b", p), images); err != nil {
				return 0, err
			}
		}
	}
	return each * len(members), s.await(ctx, "the hub has counted all images", func(all []v1alpha1.MemberCluster) bool {
		return !slices.ContainsFunc(all, func(m v1alpha1.MemberCluster) bool {
			return m.Status.Images == nil || int(m.Status.Images.Total) < each
		})
	})
}

// agentFigures measures the whole way, from an image of a real agent to the hub.
func agentFigures(ctx context.Context) (_ []figure, _ []string, err error) {
	s, err := newHubStage(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	m, err := newStage(ctx, member.Options{Name: "agent", Instant: true}, 1)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	if err := s.connect(ctx, "agent", m.ControlPlane.Config(), agent.Namespace); err != nil {
		return nil, nil, err
	}
	if err := s.await(ctx, "the agent is healthy", func(all []v1alpha1.MemberCluster) bool {
		return len(all) == 1 && meta.IsStatusConditionTrue(all[0].Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
	}); err != nil {
		return nil, nil, err
	}
	w, err := s.client.Watch(ctx, &v1alpha1.ClusterReportList{}, client.InNamespace(v1alpha1.MemberNamespacePrefix+"agent"))
	if err != nil {
		return nil, nil, err
	}
	defer w.Stop()
	var all latencies
	for range phaseRounds {
		img := m.blankImage()
		start := time.Now()
		if err := m.Client().Create(ctx, img); err != nil {
			return nil, nil, err
		}
		for e := range w.ResultChan() {
			r, is := e.Object.(*v1alpha1.ClusterReport)
			if is && r.Page != nil && slices.ContainsFunc(r.Page.Images, func(i v1alpha1.ReportedImage) bool { return i.Name == img.Name && i.Phase != "" }) {
				all = append(all, time.Since(start))
				break
			}
		}
	}
	if len(all) < phaseRounds {
		return nil, nil, fmt.Errorf("waiting for images on the hub: the watch ended after %d of %d", len(all), phaseRounds)
	}
	return []figure{judged("image created in a member -> its phase on the hub", all.text(), fmt.Sprintf("p99 at most %s", mostPhase), all.at(0.99) <= mostPhase)},
		[]string{"The agent is real there; the time until it has looked at the image and its report's interval of 200 ms are in it."}, nil
}

type latencies []time.Duration

// at is a percentile.
func (l latencies) at(p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(l))
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

func (l latencies) text() string {
	return fmt.Sprintf("p50 %.0f ms, p99 %.0f ms", l.at(0.5).Seconds()*1000, l.at(0.99).Seconds()*1000)
}
