//go:build linux

package main

import (
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
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// Names of the members.
const (
	pushMember   = "bergen"
	linkedMember = "edge"
	pullMember   = "lab"
)

var memberNames = []string{pushMember, linkedMember, pullMember}

// clusterAPILabel chooses the Clusters that are members.
const clusterAPILabel = "fleet"

// demoFleet is everything that runs.
type demoFleet struct {
	plane  *controlplane.ControlPlane
	client client.Client // of the hub
	// hub answers what is read; first is the replica that is elected first.
	hub, first *program.Hub
	programs   []*process.Process // agents and hub
	members    map[string]*member.Member
	observers  map[string]*observer.Observer
	uplink     *faults.Link   // from the hub to edge
	kubevirt   errgroup.Group // installs it in bergen
	cancel     context.CancelFunc
}

func (f *demoFleet) startClusters(ctx context.Context) error {
	options := make([]member.Options, len(memberNames))
	for i, name := range memberNames {
		scheme := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			return err
		}
		options[i] = member.Options{Name: name, Scheme: scheme, WithoutSnapshots: name != pushMember}
		if name == pushMember {
			options[i].APIServerMemory = member.APIServerMemoryWithKubeVirt
		}
	}
	members, err := member.StartAll(ctx, options...)
	if err != nil {
		return err
	}
	f.members = map[string]*member.Member{}
	for _, m := range members {
		f.members[m.Name()] = m
	}
	if f.uplink, err = faults.StartLink(f.members[linkedMember].ControlPlane.Config()); err != nil {
		return err
	}
	// Machines are in bergen only, and KubeVirt is what takes longest to start:
	// everything else starts beside it.
	installing, cancel := context.WithCancel(ctx)
	f.cancel = cancel
	f.kubevirt.Go(func() error { return f.members[pushMember].InstallKubeVirt(installing) })
	f.plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true, BeforeControllers: program.InstallClusterCRD})
	return err
}

func (f *demoFleet) awaitKubeVirt(context.Context) error { return f.kubevirt.Wait() }

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

// forEachMember has something done in all members beside each other.
func (f *demoFleet) forEachMember(do func(*member.Member) error) error {
	var group errgroup.Group
	for _, m := range f.members {
		group.Go(func() error { return do(m) })
	}
	return group.Wait()
}

// installAgents leaves their clusters without a policy of their own: the hub's is
// the only one, and until it comes nothing is downloaded.
func (f *demoFleet) installAgents(ctx context.Context) error {
	return f.forEachMember(func(m *member.Member) error {
		return program.InstallAgent(ctx, m.ControlPlane, map[string]any{
			"policy": map[string]any{"create": false},
			"hub":    map[string]any{"serviceAccount": map[string]any{"create": m.Name() == linkedMember}},
		})
	})
}

func (f *demoFleet) startAgents(ctx context.Context) error {
	var mu sync.Mutex
	return f.forEachMember(func(m *member.Member) error {
		// The lease is the chart's: a shorter one is lost on a busy machine, and an
		// agent that has lost it ends.
		// With this heartbeat the hub gives up an agent that it does not hear of as
		// soon as it ever does, after 30 s.
		a, err := program.StartAgent(ctx, m.ControlPlane, program.Options{
			LeaseDuration: 15 * time.Second, Log: filepath.Join(m.ControlPlane.Dir(), "agent.log"), Args: []string{"--report-heartbeat=5s"},
		})
		if err != nil {
			return err
		}
		mu.Lock()
		f.programs = append(f.programs, a.Process)
		mu.Unlock()
		_, err = a.ReadMetrics(ctx)
		return err
	})
}

// checkProgramsAlive tells of an agent or a hub that has ended: nothing starts it again here.
func (f *demoFleet) checkProgramsAlive() error {
	for _, p := range f.programs {
		select {
		case <-p.Done():
			return fmt.Errorf("a program of the fleet has ended (%w), its log is %s", p.Wait(), p.LogFile())
		default:
		}
	}
	return nil
}

// newPolicy is the fleet's.
func newPolicy(normal, edge int) map[string]string {
	return map[string]string{
		"concurrency": fmt.Sprint(normal), "retryLimit": "2", "retryBackoffDuration": "2s",
		"overrides": fmt.Sprintf(`- selector: {matchLabels: {edge: "true"}}
  concurrency: "%d"
- cluster: lab
  concurrency: "3"
`, edge),
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
	for _, name := range []string{firstReplica, secondReplica} {
		h, err := f.startReplica(ctx, name)
		if err != nil {
			return err
		}
		f.programs = append(f.programs, h.Process)
		if f.first == nil {
			f.first = h
		}
		f.hub = h
	}
	return f.registerMembers(ctx)
}

// registerMembers makes the members known, each in another way.
func (f *demoFleet) registerMembers(ctx context.Context) error {
	toEdge, err := f.members[linkedMember].ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return err
	}
	f.uplink.Redirect(toEdge)
	ofEdge, err := controlplane.Kubeconfig(toEdge)
	if err != nil {
		return err
	}
	ofLab, err := controlplane.Kubeconfig(f.members[pullMember].ControlPlane.Config())
	if err != nil {
		return err
	}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: linkedMember}, Data: map[string][]byte{"kubeconfig": ofEdge}},
		&v1alpha1.MemberCluster{
			ObjectMeta: metav1.ObjectMeta{Name: linkedMember, Labels: map[string]string{"edge": "true"}},
			Spec:       v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: linkedMember}}},
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "clusters"}},
	} {
		if err := f.client.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: pullMember, Labels: map[string]string{clusterAPILabel: "ot", canaryLabel: "true"}},
		Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}},
	}
	if err := program.CreateCluster(ctx, f.client, cluster, ofLab); err != nil {
		return err
	}
	return program.RegisterPullMember(ctx, f.client, f.members[pushMember].Client(), program.AgentNamespace, pushMember, nil, nil)
}

// stopAll ends everything, and those that ask API servers before these.
func (f *demoFleet) stopAll() error {
	if f.cancel != nil {
		f.cancel()
		_ = f.kubevirt.Wait() // told before, where it was waited for
	}
	for _, p := range f.programs {
		p.Kill()
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
