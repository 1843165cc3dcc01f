//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// Names of the members.
const (
	bergen = "bergen"
	edge   = "edge"
	lab    = "lab"
)

var memberNames = []string{bergen, edge, lab}

// siteLabel is the label of clusters whose site has a mirror: edge has one.
const siteLabel = "site"

// clusterAPILabel selects the Cluster API Clusters that are members.
const clusterAPILabel = "fleet"

// demoFleet is the hub, the members, and their observers.
type demoFleet struct {
	plane  *controlplane.ControlPlane
	client client.Client // of the hub
	// replicas are those of the hub, by name. The first is elected first.
	replicas  map[string]*program.Hub
	programs  []fleetProgram
	members   map[string]*member.Member
	observers map[string]*observer.Observer
	uplink    *faults.Link // from the hub to edge
	// kubevirt receives the outcome of KubeVirt's installation in bergen.
	kubevirt          chan error
	kubevirtInstalled bool
	cancel            context.CancelFunc
	// plugin is kubectl ot with a context for the hub and each member.
	plugin *plugin.Plugin
	// logs is the directory of the logs; empty to keep none.
	logs string
	// background is true of a fleet that is left running: its imports say how far they are, and
	// it asks and reports less often than the story needs.
	background bool
}

// fleetProgram is an agent or a replica of the hub.
type fleetProgram struct {
	name    string
	process *process.Process
	start   func(context.Context) (*process.Process, error)
}

// startSteps start the fleet in this order.
func (f *demoFleet) startSteps() []startStep {
	return []startStep{
		{"building programs", f.buildPrograms},
		{"starting control planes", f.startClusters},
		{"installing charts", f.installAgents},
		{"starting observers", f.startObservers},
		{"starting agents", f.startAgents},
		{"starting hub", f.startHub},
		{"building kubectl-ot", f.preparePlugin},
	}
}

// preparePlugin builds kubectl ot and gives it a kubeconfig.
func (f *demoFleet) preparePlugin(context.Context) (err error) {
	if _, err = plugin.Build(); err != nil {
		return err
	}
	f.plugin, err = plugin.New(f.plane.Dir(), f.contexts()...)
	return err
}

type startStep struct {
	what string
	do   func(context.Context) error
}

// start runs the steps and prints how long each has taken.
func (f *demoFleet) start(ctx context.Context, steps []startStep) error {
	for _, step := range steps {
		start := time.Now()
		fmt.Printf("  %-24s", step.what)
		if err := step.do(ctx); err != nil {
			fmt.Println()
			return fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Printf("%5.1f s\n", time.Since(start).Seconds())
	}
	fmt.Println()
	return nil
}

// buildPrograms builds what the clusters start with. Where it has to build, that takes most of
// the time of the demo: the rest is built while the story runs.
func (f *demoFleet) buildPrograms(ctx context.Context) error {
	_, err := binaries.Ensure(ctx, binaries.APIServer, binaries.ControllerManager, binaries.Scheduler, binaries.Etcd, binaries.CDI, binaries.KWOK)
	return err
}

func (f *demoFleet) startClusters(ctx context.Context) error {
	options := make([]member.Options, len(memberNames))
	for i, name := range memberNames {
		scheme := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			return err
		}
		options[i] = member.Options{Name: name, Scheme: scheme, WithoutSnapshots: true, LogDir: f.logs, ImportProgress: f.background}
	}
	members, err := member.StartAll(ctx, options...)
	if err != nil {
		return err
	}
	f.members = map[string]*member.Member{}
	for _, m := range members {
		f.members[m.Name()] = m
	}
	if f.uplink, err = faults.StartLink(f.members[edge].ControlPlane.Config()); err != nil {
		return err
	}
	// Only bergen runs VMs. KubeVirt is built and installed while everything else starts,
	// and the story begins without it.
	installing, cancel := context.WithCancel(ctx)
	f.cancel, f.kubevirt = cancel, make(chan error, 1)
	go func() { f.kubevirt <- f.members[bergen].InstallKubeVirt(installing) }()
	f.plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", LogDir: f.logs, ControllerManager: true, BeforeControllers: program.InstallClusterCRD})
	return err
}

func (f *demoFleet) startObservers(ctx context.Context) error {
	f.observers = map[string]*observer.Observer{}
	var mu sync.Mutex
	return f.forEachMember(func(m *member.Member) error {
		o, err := observer.Start(ctx, m.ControlPlane.Config())
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		f.observers[m.Name()] = o
		return nil
	})
}

// forEachMember calls a function for all members concurrently.
func (f *demoFleet) forEachMember(do func(*member.Member) error) error {
	var group errgroup.Group
	for _, m := range f.members {
		group.Go(func() error { return do(m) })
	}
	return group.Wait()
}

// installAgents installs no policy in the members: the hub's is the only one, and nothing is
// downloaded before it arrives.
func (f *demoFleet) installAgents(ctx context.Context) error {
	return f.forEachMember(func(m *member.Member) error {
		return program.InstallAgent(ctx, m.ControlPlane, map[string]any{
			"policy": map[string]any{"create": false},
			"hub":    map[string]any{"serviceAccount": map[string]any{"create": m.Name() == edge}},
		})
	})
}

func (f *demoFleet) startAgents(ctx context.Context) error {
	var mu sync.Mutex
	return f.forEachMember(func(m *member.Member) error {
		start := func(ctx context.Context) (*process.Process, error) { return f.startAgent(ctx, m) }
		p, err := start(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		f.programs = append(f.programs, fleetProgram{"the agent of " + m.Name(), p, start})
		return nil
	})
}

// startAgent starts a member's agent. A busy machine loses a shorter Lease than the chart's, and
// the agent exits. With this heartbeat the hub considers a silent agent unhealthy after 30 s, the
// shortest time that it allows.
func (f *demoFleet) startAgent(ctx context.Context, m *member.Member) (*process.Process, error) {
	heartbeat := "--report-heartbeat=5s"
	if f.background {
		heartbeat = "--report-heartbeat=10s"
	}
	a, err := program.StartAgent(ctx, m.ControlPlane, program.Options{
		LeaseDuration: 15 * time.Second, Log: f.logFile(m.ControlPlane, m.Name()+"-agent.log"), Args: []string{heartbeat},
	})
	if err != nil {
		return nil, err
	}
	_, err = a.ReadMetrics(ctx)
	return a.Process, err
}

// logFile returns the path of a program's log.
func (f *demoFleet) logFile(plane *controlplane.ControlPlane, name string) string {
	return filepath.Join(cmp.Or(f.logs, plane.Dir()), name)
}

// newPolicy returns the fleet's policy. Invariant: each cluster may import at any time of the day.
func newPolicy(normal, edge int) map[string]string {
	return map[string]string{
		"concurrency": fmt.Sprint(normal), "retryLimit": "2", "retryBackoffDuration": "2s",
		"preflightAllow": "127.0.0.0/8", // where the source is
		"overrides": fmt.Sprintf(`- selector: {matchLabels: {edge: "true"}}
  concurrency: "%d"
- cluster: lab
  concurrency: "%d"
  windows:
    - {cron: "0 22 * * *", duration: 8h, timeZone: Europe/Oslo, concurrency: %d}
`, edge, labBudget, labNightBudget),
	}
}

func (f *demoFleet) startHub(ctx context.Context) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	var err error
	if f.client, err = client.New(f.plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client of the hub: %w", err)
	}
	if err := program.InstallHub(ctx, f.plane, map[string]any{
		"policy":     map[string]any{"data": newPolicy(firstBudget, firstEdge)},
		"clusterAPI": map[string]any{"enabled": true},
	}); err != nil {
		return err
	}
	f.replicas = map[string]*program.Hub{}
	for _, name := range []string{firstReplica, secondReplica} {
		start := func(ctx context.Context) (*process.Process, error) {
			h, err := f.startReplica(ctx, name)
			if err != nil {
				return nil, err
			}
			f.replicas[name] = h
			return h.Process, nil
		}
		p, err := start(ctx)
		if err != nil {
			return err
		}
		f.programs = append(f.programs, fleetProgram{"replica " + name + " of the hub", p, start})
	}
	return f.registerMembers(ctx)
}

// registerMembers adds the members, each in another way: by kubeconfig, by Cluster API, and in
// pull mode.
func (f *demoFleet) registerMembers(ctx context.Context) error {
	toEdge, err := f.members[edge].ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return err
	}
	f.uplink.Redirect(toEdge)
	ofEdge, err := controlplane.Kubeconfig(toEdge)
	if err != nil {
		return err
	}
	ofLab, err := controlplane.Kubeconfig(f.members[lab].ControlPlane.Config())
	if err != nil {
		return err
	}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: edge}, Data: map[string][]byte{"kubeconfig": ofEdge}},
		&v1alpha1.MemberCluster{
			ObjectMeta: metav1.ObjectMeta{Name: edge, Labels: map[string]string{"edge": "true", siteLabel: "cellar"}},
			Spec:       v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: edge}}},
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "clusters"}},
	} {
		if err := f.client.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: lab, Labels: map[string]string{clusterAPILabel: "ot", canaryLabel: "true"}},
		Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}},
	}
	if err := program.CreateCluster(ctx, f.client, cluster, ofLab); err != nil {
		return err
	}
	return program.RegisterPullMember(ctx, f.client, f.members[bergen].Client(), program.AgentNamespace, bergen, nil, nil)
}

// stopAll stops all programs, the API servers last.
func (f *demoFleet) stopAll() error {
	if f.cancel != nil {
		f.cancel()
		if !f.kubevirtInstalled {
			<-f.kubevirt
		}
	}
	for _, p := range f.programs {
		p.process.Kill()
	}
	for _, o := range f.observers {
		o.Stop()
	}
	if f.uplink != nil {
		f.uplink.Close()
	}
	stops := []func() error{}
	if f.plane != nil {
		stops = append(stops, f.plane.Stop)
	}
	for _, m := range f.members {
		stops = append(stops, m.Stop)
	}
	errs := make([]error, len(stops))
	var stopping sync.WaitGroup
	for i, stop := range stops {
		stopping.Go(func() { errs[i] = stop() })
	}
	stopping.Wait()
	return errors.Join(errs...)
}
