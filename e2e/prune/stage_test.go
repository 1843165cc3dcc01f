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

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/light"
	"github.com/pelotech/ot-fleet/e2e/link"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

const (
	// namespace of the images in the members.
	namespace = metav1.NamespaceDefault
	// admin is who asks API servers here.
	admin = "admin"
	// timeout after which the hub gives an agent up that it does not hear of.
	timeout = 3 * time.Second
)

// The members. Of these island alone is cut off, or has its agent killed: a test that
// runs beside others and does neither places nothing there.
const (
	bergen = "bergen"
	edge   = "edge"
	island = "island"
)

var sites = []string{bergen, edge, island}

// site is a member cluster with its agent.
type site struct {
	*member.Member
	client.WithWatch
	name  string
	agent *agent.Agent
	// mouth is the proxy through which the agent reaches the member.
	mouth *proxy.Proxy
	// The hub reaches the member through proxy, and that goes over link. Where the member
	// dials in, its agent reaches the hub so.
	link  *link.Link
	proxy *proxy.Proxy
}

// fleet is a hub and its members.
type fleet struct {
	plane *controlplane.ControlPlane
	// WithWatch reaches the hub's API server with all rights.
	client.WithWatch
	// The hub reaches its own API server through proxy.
	proxy *proxy.Proxy
	hub   *hub.Hub
	sites map[string]*site
}

var scheme = scene.NewScheme()

var policy = map[string]any{"concurrency": "12", "retryLimit": "0", "retryBackoffDuration": "1s", "preflight": "false"}

func startFleet(ctx context.Context) (f *fleet, err error) {
	f = &fleet{sites: map[string]*site{}}
	if err := f.startClusters(ctx); err != nil {
		return f, err
	}
	if f.proxy, err = proxy.Start(f.plane.Config()); err != nil {
		return f, err
	}
	if err := f.startHub(ctx); err != nil {
		return f, err
	}
	for name, s := range f.sites {
		if err := f.join(ctx, s); err != nil {
			return f, fmt.Errorf("joining %s: %w", name, err)
		}
	}
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, scene.Patience, true, func(context.Context) (bool, error) {
		for _, name := range sites {
			m := &v1alpha1.MemberCluster{}
			if f.Get(ctx, client.ObjectKey{Name: name}, m) != nil || !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return f, fmt.Errorf("waiting for all members (the hub's log is %s): %w", f.hub.LogFile(), err)
	}
	return f, nil
}

// startClusters starts hub and members beside each other, with their charts, and
// the members' agents.
func (f *fleet) startClusters(ctx context.Context) error {
	options := make([]member.Options, len(sites))
	for i, name := range sites {
		options[i] = member.Options{
			Name: name, Instant: true, InstantTakes: 100 * time.Millisecond, Scheme: scene.NewScheme(),
			// Nobody would take the protection from claims that are to go.
			APIServerArgs: []string{"--disable-admission-plugins=StorageObjectInUseProtection"},
		}
	}
	var group errgroup.Group
	group.Go(func() (err error) {
		if f.plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
			return err
		}
		if f.WithWatch, err = client.NewWithWatch(f.plane.Config(), client.Options{Scheme: scheme}); err != nil {
			return err
		}
		return hub.Install(ctx, f.plane, map[string]any{"policy": map[string]any{"data": policy}})
	})
	group.Go(func() error {
		started, err := member.StartAll(ctx, options...)
		for _, m := range started {
			f.sites[m.Name()] = &site{Member: m, name: m.Name()}
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, s := range f.sites {
		group.Go(func() error { return s.prepare(ctx, f.plane) })
	}
	return group.Wait()
}

// prepare installs the agent's chart, starts the agent, and makes the hub's way to
// the member.
func (s *site) prepare(ctx context.Context, plane *controlplane.ControlPlane) (err error) {
	s.Instant().Allow(1 << 20)
	if s.WithWatch, err = client.NewWithWatch(s.ControlPlane.Config(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	err = agent.Install(ctx, s.ControlPlane, map[string]any{
		"policy": map[string]any{"create": false},
		"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
	})
	if err != nil {
		return err
	}
	if s.mouth, err = proxy.Start(s.ControlPlane.Config()); err != nil {
		return err
	}
	if err := s.lead(plane); err != nil {
		return err
	}
	return s.startAgent(ctx)
}

func (s *site) pulls() bool { return hub.Pulls(s.name, bergen) }

// lead makes the way between hub and member, whoever goes it.
func (s *site) lead(plane *controlplane.ControlPlane) (err error) {
	start, to := proxy.Start, s.ControlPlane.Config()
	if s.pulls() {
		start, to = proxy.StartTLS, plane.Config()
	}
	if s.link, err = link.Start(to); err != nil {
		return err
	}
	s.link.Through(to)
	s.proxy, err = start(to)
	return err
}

// startAgent starts one at once also where the one before was killed: its Lease is
// removed.
func (s *site) startAgent(ctx context.Context) (err error) {
	if err := bury(ctx, s, agent.Namespace, "ot-agent"); err != nil {
		return err
	}
	s.agent, err = agent.Start(ctx, s.ControlPlane, agent.Options{
		Through: s.mouth.Through, LeaseDuration: 15 * time.Second, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--report-heartbeat=1s"},
	})
	return err
}

func (f *fleet) startHub(ctx context.Context) (err error) {
	if err := bury(ctx, f, hub.Namespace, "ot-hub"); err != nil {
		return err
	}
	door, err := hub.Door(f.plane)
	if err != nil {
		return err
	}
	f.hub, err = hub.Start(ctx, f.plane, hub.Options{
		Log: os.Getenv("OT_FLEET_HUB_LOG"), Through: f.proxy.Through, Args: append([]string{"--probe-interval=1s", "--member-timeout=" + timeout.String()}, door...),
	})
	return err
}

func bury(ctx context.Context, c client.Client, namespace, name string) error {
	return client.IgnoreNotFound(c.Delete(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
}

// join makes a MemberCluster and its Secret, as people do; or the member's agent
// dials in.
func (f *fleet) join(ctx context.Context, s *site) error {
	if s.pulls() {
		return hub.DialIn(ctx, f, s.Client(), agent.Namespace, s.name, nil, func(a *join.Access) { a.Server, a.CA = s.proxy.Reach() })
	}
	cfg, err := s.ControlPlane.ServiceAccountConfig(ctx, agent.Namespace, "ot-hub")
	if err != nil {
		return err
	}
	token := cfg.BearerToken
	s.proxy.Through(cfg)
	cfg.BearerToken = token
	return f.joinAs(ctx, s.name, agent.Namespace, cfg)
}

func (f *fleet) joinAs(ctx context.Context, name, agentNamespace string, cfg *rest.Config) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
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

// lights are members on the hub's API server that are played, for as long as the
// test runs, called prefix-0 and so on. how is what they are like before they join.
func (f *fleet) lights(t *testing.T, prefix string, n int, how func(int, *light.Member)) []*light.Member {
	t.Helper()
	all, err := light.Start(t.Context(), f.plane, prefix, n)
	require.NoError(t, err)
	t.Cleanup(all.Stop)
	for i, m := range all.List {
		how(i, m)
		cfg, err := m.Config(t.Context())
		require.NoError(t, err)
		require.NoError(t, f.joinAs(t.Context(), m.Name, m.Name, cfg))
		t.Cleanup(func() {
			require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Name}})))
		})
		f.healthy(t, m.Name)
	}
	return all.List
}

func (f *fleet) healthy(t *testing.T, name string) {
	t.Helper()
	scene.EventuallyMember(t, f, name, "healthy", func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady)
	})
}

// back has a member be reached again.
func (f *fleet) back(t *testing.T, s *site) {
	t.Helper()
	require.NoError(t, s.link.Mend(t.Context()))
	f.healthy(t, s.name)
}

// stop ends everything, and those that ask API servers before these.
func (f *fleet) stop() error {
	var errs []error
	if f.hub != nil {
		errs = append(errs, f.hub.Stop(time.Minute))
	}
	if f.proxy != nil {
		errs = append(errs, f.proxy.Close())
	}
	var group errgroup.Group
	for _, s := range f.sites {
		group.Go(s.stop)
	}
	if f.plane != nil {
		group.Go(f.plane.Stop)
	}
	errs = append(errs, group.Wait())
	return errors.Join(errs...)
}

func (s *site) stop() error {
	if s.agent != nil {
		s.agent.Kill()
	}
	for _, p := range []*proxy.Proxy{s.mouth, s.proxy} {
		if p != nil {
			_ = p.Close()
		}
	}
	if s.link != nil {
		s.link.Close()
	}
	return s.Stop()
}
