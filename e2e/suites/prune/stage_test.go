//go:build linux

package prune_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// namespace of the images in the members.
	namespace = metav1.NamespaceDefault
	// approver is who asks API servers here.
	approver = "admin"
	// memberTimeout after which the hub gives an agent up that it does not hear of.
	memberTimeout = 3 * time.Second
)

// The members. Of these island alone is cut off, or has its agent killed: a test that
// runs beside others and does neither places nothing there.
const (
	bergen = "bergen"
	edge   = "edge"
	island = "island"
)

var memberNames = []string{bergen, edge, island}

// testMember is a member cluster with its agent.
type testMember struct {
	*member.Member
	client.WithWatch
	name  string
	Agent *program.Agent
	// AgentProxy is the proxy through which the agent reaches the member.
	AgentProxy *faults.Proxy
	// The hub reaches the member through proxy, and that goes over link. Where the member
	// dials in, its agent reaches the hub so.
	Link  *faults.Link
	Proxy *faults.Proxy
}

// testFleet is a hub and its members.
type testFleet struct {
	Plane *controlplane.ControlPlane
	// WithWatch reaches the hub's API server with all rights.
	client.WithWatch
	// The hub reaches its own API server through proxy.
	Proxy   *faults.Proxy
	Hub     *program.Hub
	Members map[string]*testMember
}

var scheme = testenv.NewScheme()

var policyData = map[string]any{"concurrency": "12", "retryLimit": "0", "retryBackoffDuration": "1s", "preflight": "false"}

func startFleet(ctx context.Context) (f *testFleet, err error) {
	f = &testFleet{Members: map[string]*testMember{}}
	if err := f.startClusters(ctx); err != nil {
		return f, err
	}
	if f.Proxy, err = faults.StartProxy(f.Plane.Config()); err != nil {
		return f, err
	}
	if err := f.StartHub(ctx); err != nil {
		return f, err
	}
	for name, s := range f.Members {
		if err := f.joinMember(ctx, s); err != nil {
			return f, fmt.Errorf("joining %s: %w", name, err)
		}
	}
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, testenv.Patience, true, func(context.Context) (bool, error) {
		for _, name := range memberNames {
			m := &v1alpha1.MemberCluster{}
			if f.Get(ctx, client.ObjectKey{Name: name}, m) != nil || !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return f, fmt.Errorf("waiting for all members (the hub's log is %s): %w", f.Hub.LogFile(), err)
	}
	return f, nil
}

// startClusters starts hub and members beside each other, with their charts, and
// the members' agents.
func (f *testFleet) startClusters(ctx context.Context) error {
	options := make([]member.Options, len(memberNames))
	for i, name := range memberNames {
		options[i] = member.Options{
			Name: name, InstantImporter: true, InstantImportDuration: 100 * time.Millisecond, Scheme: testenv.NewScheme(),
			// Nobody would take the protection from claims that are to go.
			APIServerArgs: []string{"--disable-admission-plugins=StorageObjectInUseProtection"},
		}
	}
	var group errgroup.Group
	group.Go(func() (err error) {
		if f.Plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
			return err
		}
		if f.WithWatch, err = client.NewWithWatch(f.Plane.Config(), client.Options{Scheme: scheme}); err != nil {
			return err
		}
		return program.InstallHub(ctx, f.Plane, map[string]any{"policy": map[string]any{"data": policyData}})
	})
	group.Go(func() error {
		started, err := member.StartAll(ctx, options...)
		for _, m := range started {
			f.Members[m.Name()] = &testMember{Member: m, name: m.Name()}
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, s := range f.Members {
		group.Go(func() error { return s.install(ctx, f.Plane) })
	}
	return group.Wait()
}

// install installs the agent's chart, starts the agent, and makes the hub's way to
// the member.
func (s *testMember) install(ctx context.Context, plane *controlplane.ControlPlane) (err error) {
	s.InstantImporter().AllowFinishes(1 << 20)
	if s.WithWatch, err = client.NewWithWatch(s.ControlPlane.Config(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	err = program.InstallAgent(ctx, s.ControlPlane, map[string]any{
		"policy": map[string]any{"create": false},
		"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
	})
	if err != nil {
		return err
	}
	if s.AgentProxy, err = faults.StartProxy(s.ControlPlane.Config()); err != nil {
		return err
	}
	if err := s.startLink(plane); err != nil {
		return err
	}
	return s.StartAgent(ctx)
}

func (s *testMember) PullMode() bool { return program.UsesPullMode(s.name, bergen) }

// startLink makes the way between hub and member, whoever goes it.
func (s *testMember) startLink(plane *controlplane.ControlPlane) (err error) {
	start, to := faults.StartProxy, s.ControlPlane.Config()
	if s.PullMode() {
		start, to = faults.StartTLSProxy, plane.Config()
	}
	if s.Link, err = faults.StartLink(to); err != nil {
		return err
	}
	s.Link.Redirect(to)
	s.Proxy, err = start(to)
	return err
}

// StartAgent starts one at once also where the one before was killed: its Lease is
// removed.
func (s *testMember) StartAgent(ctx context.Context) (err error) {
	if err := deleteLease(ctx, s, program.AgentNamespace, "ot-agent"); err != nil {
		return err
	}
	s.Agent, err = program.StartAgent(ctx, s.ControlPlane, program.Options{
		ConfigureClient: s.AgentProxy.Redirect, LeaseDuration: 15 * time.Second, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--report-heartbeat=1s"},
	})
	return err
}

func (f *testFleet) StartHub(ctx context.Context) (err error) {
	if err := deleteLease(ctx, f, program.HubNamespace, "ot-hub"); err != nil {
		return err
	}
	door, err := program.HubAPIFlags(f.Plane)
	if err != nil {
		return err
	}
	f.Hub, err = program.StartHub(ctx, f.Plane, program.Options{
		Log: os.Getenv("OT_FLEET_HUB_LOG"), ConfigureClient: f.Proxy.Redirect, Args: append([]string{"--probe-interval=1s", "--member-timeout=" + memberTimeout.String()}, door...),
	})
	return err
}

func deleteLease(ctx context.Context, c client.Client, namespace, name string) error {
	return client.IgnoreNotFound(c.Delete(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
}

// joinMember makes a MemberCluster and its Secret, as people do; or the member's agent
// dials in.
func (f *testFleet) joinMember(ctx context.Context, s *testMember) error {
	if s.PullMode() {
		return program.RegisterPullMember(ctx, f, s.Client(), program.AgentNamespace, s.name, nil, func(a *registration.HubAccess) { a.Server, a.CA = s.Proxy.Endpoint() })
	}
	cfg, err := s.ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return err
	}
	token := cfg.BearerToken
	s.Proxy.Redirect(cfg)
	cfg.BearerToken = token
	return f.createMember(ctx, s.name, program.AgentNamespace, cfg)
}

func (f *testFleet) createMember(ctx context.Context, name, agentNamespace string, cfg *rest.Config) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	if err := f.Create(ctx, secret); err != nil {
		return err
	}
	return f.Create(ctx, &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.MemberClusterSpec{
			AgentNamespace: agentNamespace,
			Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: secret.Name}},
		},
	})
}

// startFakes are members on the hub's API server that are played, for as long as the
// test runs, called prefix-0 and so on. how is what they are like before they join.
func (f *testFleet) startFakes(t *testing.T, prefix string, n int, how func(int, *fakemember.Member)) []*fakemember.Member {
	t.Helper()
	all, err := fakemember.Start(t.Context(), f.Plane, prefix, n)
	require.NoError(t, err)
	t.Cleanup(all.Stop)
	for i, m := range all.List {
		how(i, m)
		cfg, err := m.Config(t.Context())
		require.NoError(t, err)
		require.NoError(t, f.createMember(t.Context(), m.Name, m.Name, cfg))
		t.Cleanup(func() {
			require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Name}})))
		})
		f.awaitHealthy(t, m.Name)
	}
	return all.List
}

func (f *testFleet) awaitHealthy(t *testing.T, name string) {
	t.Helper()
	testenv.AwaitMember(t, f, name, "healthy", func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady)
	})
}

// reconnect has a member be reached again.
func (f *testFleet) reconnect(t *testing.T, s *testMember) {
	t.Helper()
	require.NoError(t, s.Link.Repair(t.Context()))
	f.awaitHealthy(t, s.name)
}

// stop ends everything, and those that ask API servers before these.
func (f *testFleet) stop() error {
	var errs []error
	if f.Hub != nil {
		errs = append(errs, f.Hub.Stop(time.Minute))
	}
	if f.Proxy != nil {
		errs = append(errs, f.Proxy.Close())
	}
	var group errgroup.Group
	for _, s := range f.Members {
		group.Go(s.stop)
	}
	if f.Plane != nil {
		group.Go(f.Plane.Stop)
	}
	errs = append(errs, group.Wait())
	return errors.Join(errs...)
}

func (s *testMember) stop() error {
	if s.Agent != nil {
		s.Agent.Kill()
	}
	for _, p := range []*faults.Proxy{s.AgentProxy, s.Proxy} {
		if p != nil {
			_ = p.Close()
		}
	}
	if s.Link != nil {
		s.Link.Close()
	}
	return s.Stop()
}
