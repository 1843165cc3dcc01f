//go:build linux

package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/link"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/observer"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

const (
	// patience is how long a test waits for what is bound to come. It is long: a
	// busy machine is no failure.
	patience = scene.Patience
	tick     = 50 * time.Millisecond
	// importTakes is long enough for two members to be seen importing at a time
	// where they should not.
	importTakes = 500 * time.Millisecond
	// namespace of the images in the members.
	namespace = metav1.NamespaceDefault
)

// The members. Of these island alone is cut off: it joins offline, and no test but
// the one that mends its link may place anything there and wait for it.
const (
	bergen    = "bergen"
	edge      = "edge"
	frankfurt = "frankfurt"
	lab       = "lab"
	island    = "island"
)

// labelSite stands on every MemberCluster, with its name; ringCanary on two.
const (
	labelSite = "site"
	labelRing = "ring"
	canary    = "canary"
)

var (
	online = []string{bergen, edge, frankfurt, lab}
	rings  = map[string]string{bergen: canary, edge: canary, frankfurt: "late", lab: "late", island: "late"}
)

// site is a member cluster with its agent.
type site struct {
	*member.Member
	client.WithWatch
	name     string
	agent    *agent.Agent
	observer *observer.Observer
	// The hub reaches the member through proxy, and that goes over link. Where the member
	// dials in, its agent reaches the hub so, and the member through mouth.
	link  *link.Link
	proxy *proxy.Proxy
	mouth *proxy.Proxy
}

// fleet is a hub and its members.
type fleet struct {
	plane *controlplane.ControlPlane
	// WithWatch reaches the hub's API server with all rights.
	client.WithWatch
	// The hub reaches its own API server through proxy.
	proxy   *proxy.Proxy
	hub     *hub.Hub
	sites   map[string]*site
	journal *journal
	// source answers whether it has an image: all but those below /missing/.
	source *httptest.Server
}

var scheme = scene.NewScheme()

// policy of the fleet, in which no image waits for another.
var policy = map[string]any{"concurrency": "12", "retryLimit": "0", "retryBackoffDuration": "1s", "preflight": "true"}

func startFleet(ctx context.Context) (f *fleet, err error) {
	f = &fleet{sites: map[string]*site{}}
	f.source = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/missing/") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	if err := f.startClusters(ctx); err != nil {
		return f, err
	}
	if f.proxy, err = proxy.Start(f.plane.Config()); err != nil {
		return f, err
	}
	if f.journal, err = keepJournal(f.WithWatch); err != nil {
		return f, err
	}
	if err := f.startHub(ctx); err != nil {
		return f, err
	}
	for name, s := range f.sites {
		if name == island {
			s.link.Cut()
		}
		if err := f.join(ctx, s); err != nil {
			return f, fmt.Errorf("joining %s: %w", name, err)
		}
	}
	// A member that has not reported yet is offline, and a rollout goes on without it.
	return f, f.await(ctx, "all members healthy but "+island, func() bool {
		for _, name := range online {
			m := &v1alpha1.MemberCluster{}
			if f.Get(ctx, client.ObjectKey{Name: name}, m) != nil || !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) {
				return false
			}
		}
		return true
	})
}

// startClusters starts hub and members beside each other, with their charts, and
// the members' agents.
func (f *fleet) startClusters(ctx context.Context) error {
	names := append([]string{island}, online...)
	options := make([]member.Options, len(names))
	for i, name := range names {
		options[i] = member.Options{
			Name: name, Instant: true, InstantTakes: importTakes, Scheme: scene.NewScheme(),
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
		if err != nil {
			return err
		}
		for _, m := range started {
			f.sites[m.Name()] = &site{Member: m, name: m.Name()}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, s := range f.sites {
		group.Go(func() error { return s.prepare(ctx, f.plane) })
	}
	return group.Wait()
}

// prepare installs the agent's chart, without a policy of the member's own,
// starts the agent, and makes the hub's way to the member.
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
	if s.observer, err = observer.Start(context.WithoutCancel(ctx), s.ControlPlane.Config()); err != nil {
		return err
	}
	if err := s.lead(plane); err != nil {
		return err
	}
	o := agent.Options{LeaseDuration: 15 * time.Second, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--report-heartbeat=2s"}}
	if s.pulls() {
		o.Through = s.mouth.Through
	}
	s.agent, err = agent.Start(ctx, s.ControlPlane, o)
	return err
}

func (s *site) pulls() bool { return hub.Pulls(s.name, lab) }

// lead makes the way between hub and member, whoever goes it.
func (s *site) lead(plane *controlplane.ControlPlane) (err error) {
	start, to := proxy.Start, s.ControlPlane.Config()
	if s.pulls() {
		start, to = proxy.StartTLS, plane.Config()
		if s.mouth, err = proxy.Start(s.ControlPlane.Config()); err != nil {
			return err
		}
	}
	if s.link, err = link.Start(to); err != nil {
		return err
	}
	s.link.Through(to)
	s.proxy, err = start(to)
	return err
}

// carried are the proxies through which the mailbox of a member is written, on the hub
// and in the member.
func (f *fleet) carried(cluster string) (up, down *proxy.Proxy) {
	if s := f.sites[cluster]; s.pulls() {
		return s.proxy, s.mouth
	}
	return f.proxy, f.sites[cluster].proxy
}

// startHub starts one at once also where the one before was killed: its Lease is
// removed.
func (f *fleet) startHub(ctx context.Context) (err error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: "ot-hub"}}
	if err := client.IgnoreNotFound(f.Delete(ctx, lease)); err != nil {
		return err
	}
	door, err := hub.Door(f.plane)
	if err != nil {
		return err
	}
	f.hub, err = hub.Start(ctx, f.plane, hub.Options{
		Log: os.Getenv("OT_FLEET_HUB_LOG"), Through: f.proxy.Through, Args: append([]string{"--probe-interval=1s", "--member-timeout=3s"}, door...),
	})
	return err
}

// join makes a MemberCluster and its Secret, as people do; or the member's agent
// dials in, by way of the same link.
func (f *fleet) join(ctx context.Context, s *site) error {
	if s.pulls() {
		return hub.DialIn(ctx, f, s.Client(), agent.Namespace, s.name, map[string]string{labelSite: s.name, labelRing: rings[s.name]},
			func(a *join.Access) { a.Server, a.CA = s.proxy.Reach() })
	}
	cfg, err := s.ControlPlane.ServiceAccountConfig(ctx, agent.Namespace, "ot-hub")
	if err != nil {
		return err
	}
	token := cfg.BearerToken
	s.proxy.Through(cfg)
	cfg.BearerToken = token
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: s.name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	if err := f.Create(ctx, secret); err != nil {
		return err
	}
	return f.Create(ctx, &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{labelSite: s.name, labelRing: rings[s.name]}},
		Spec: v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{
			KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: secret.Name},
		}},
	})
}

// await waits before there is a test; tests use scene.Await.
func (f *fleet) await(ctx context.Context, what string, holds func() bool) error {
	err := wait.PollUntilContextTimeout(ctx, tick, patience, true, func(context.Context) (bool, error) {
		if f.ended() {
			return false, fmt.Errorf("the hub has ended: %w", f.hub.Wait())
		}
		return holds(), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s (the hub's log is %s): %w", what, f.hub.LogFile(), err)
	}
	return nil
}

// stop ends everything, and those that ask API servers before these.
func (f *fleet) stop() error {
	var errs []error
	if f.hub != nil {
		errs = append(errs, f.hub.Stop(time.Minute))
	}
	if f.journal != nil {
		f.journal.close()
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
	f.source.Close()
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
	if s.observer != nil {
		s.observer.Stop()
	}
	return s.Stop()
}
