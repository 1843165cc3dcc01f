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

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// patience is how long a test waits for what is bound to come. It is long: a
	// busy machine is no failure.
	patience = testenv.Patience
	tick     = 50 * time.Millisecond
	// importDuration is long enough for two members to be seen importing at a time
	// where they should not.
	importDuration = 500 * time.Millisecond
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
	onlineMembers = []string{bergen, edge, frankfurt, lab}
	ringOfMember  = map[string]string{bergen: canary, edge: canary, frankfurt: "late", lab: "late", island: "late"}
)

// testMember is a member cluster with its agent.
type testMember struct {
	*member.Member
	client.WithWatch
	name     string
	Agent    *program.Agent
	Observer *observer.Observer
	// The hub reaches the member through proxy, and that goes over link. Where the member
	// dials in, its agent reaches the hub so, and the member through mouth.
	Link       *faults.Link
	Proxy      *faults.Proxy
	AgentProxy *faults.Proxy
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
	journal *planJournal
	// source answers whether it has an image: all but those below /missing/.
	source *httptest.Server
}

var scheme = testenv.NewScheme()

// policyData of the fleet, in which no image waits for another.
var policyData = map[string]any{"concurrency": "12", "retryLimit": "0", "retryBackoffDuration": "1s", "preflight": "true"}

func startFleet(ctx context.Context) (f *testFleet, err error) {
	f = &testFleet{Members: map[string]*testMember{}}
	f.source = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/missing/") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	if err := f.startClusters(ctx); err != nil {
		return f, err
	}
	if f.Proxy, err = faults.StartProxy(f.Plane.Config()); err != nil {
		return f, err
	}
	if f.journal, err = keepJournal(f.WithWatch); err != nil {
		return f, err
	}
	if err := f.StartHub(ctx); err != nil {
		return f, err
	}
	for name, s := range f.Members {
		if name == island {
			s.Link.Cut()
		}
		if err := f.joinMember(ctx, s); err != nil {
			return f, fmt.Errorf("joining %s: %w", name, err)
		}
	}
	// A member that has not reported yet is offline, and a rollout goes on without it.
	return f, f.awaitSetup(ctx, "all members healthy but "+island, func() bool {
		for _, name := range onlineMembers {
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
func (f *testFleet) startClusters(ctx context.Context) error {
	names := append([]string{island}, onlineMembers...)
	options := make([]member.Options, len(names))
	for i, name := range names {
		options[i] = member.Options{
			Name: name, InstantImporter: true, InstantImportDuration: importDuration, Scheme: testenv.NewScheme(),
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
		if err != nil {
			return err
		}
		for _, m := range started {
			f.Members[m.Name()] = &testMember{Member: m, name: m.Name()}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, s := range f.Members {
		group.Go(func() error { return s.install(ctx, f.Plane) })
	}
	return group.Wait()
}

// install installs the agent's chart, without a policy of the member's own,
// starts the agent, and makes the hub's way to the member.
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
	if s.Observer, err = observer.Start(context.WithoutCancel(ctx), s.ControlPlane.Config()); err != nil {
		return err
	}
	if err := s.startLink(plane); err != nil {
		return err
	}
	o := program.Options{LeaseDuration: 15 * time.Second, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--report-heartbeat=2s"}}
	if s.PullMode() {
		o.ConfigureClient = s.AgentProxy.Redirect
	}
	s.Agent, err = program.StartAgent(ctx, s.ControlPlane, o)
	return err
}

func (s *testMember) PullMode() bool { return program.UsesPullMode(s.name, lab) }

// startLink makes the way between hub and member, whoever goes it.
func (s *testMember) startLink(plane *controlplane.ControlPlane) (err error) {
	start, to := faults.StartProxy, s.ControlPlane.Config()
	if s.PullMode() {
		start, to = faults.StartTLSProxy, plane.Config()
		if s.AgentProxy, err = faults.StartProxy(s.ControlPlane.Config()); err != nil {
			return err
		}
	}
	if s.Link, err = faults.StartLink(to); err != nil {
		return err
	}
	s.Link.Redirect(to)
	s.Proxy, err = start(to)
	return err
}

// mailboxProxies are the proxies through which the mailbox of a member is written, on the hub
// and in the member.
func (f *testFleet) mailboxProxies(cluster string) (up, down *faults.Proxy) {
	if s := f.Members[cluster]; s.PullMode() {
		return s.Proxy, s.AgentProxy
	}
	return f.Proxy, f.Members[cluster].Proxy
}

// StartHub starts one at once also where the one before was killed: its Lease is
// removed.
func (f *testFleet) StartHub(ctx context.Context) (err error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: "ot-hub"}}
	if err := client.IgnoreNotFound(f.Delete(ctx, lease)); err != nil {
		return err
	}
	door, err := program.HubAPIFlags(f.Plane)
	if err != nil {
		return err
	}
	f.Hub, err = program.StartHub(ctx, f.Plane, program.Options{
		Log: os.Getenv("OT_FLEET_HUB_LOG"), ConfigureClient: f.Proxy.Redirect, Args: append([]string{"--probe-interval=1s", "--member-timeout=3s"}, door...),
	})
	return err
}

// joinMember makes a MemberCluster and its Secret, as people do; or the member's agent
// dials in, by way of the same link.
func (f *testFleet) joinMember(ctx context.Context, s *testMember) error {
	if s.PullMode() {
		return program.RegisterPullMember(ctx, f, s.Client(), program.AgentNamespace, s.name, map[string]string{labelSite: s.name, labelRing: ringOfMember[s.name]},
			func(a *registration.HubAccess) { a.Server, a.CA = s.Proxy.Endpoint() })
	}
	cfg, err := s.ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return err
	}
	token := cfg.BearerToken
	s.Proxy.Redirect(cfg)
	cfg.BearerToken = token
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: s.name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	if err := f.Create(ctx, secret); err != nil {
		return err
	}
	return f.Create(ctx, &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{labelSite: s.name, labelRing: ringOfMember[s.name]}},
		Spec: v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{
			KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: secret.Name},
		}},
	})
}

// awaitSetup waits before there is a test; tests use scene.Await.
func (f *testFleet) awaitSetup(ctx context.Context, what string, holds func() bool) error {
	err := wait.PollUntilContextTimeout(ctx, tick, patience, true, func(context.Context) (bool, error) {
		if f.hubHasEnded() {
			return false, fmt.Errorf("the hub has ended: %w", f.Hub.Wait())
		}
		return holds(), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s (the hub's log is %s): %w", what, f.Hub.LogFile(), err)
	}
	return nil
}

// stop ends everything, and those that ask API servers before these.
func (f *testFleet) stop() error {
	var errs []error
	if f.Hub != nil {
		errs = append(errs, f.Hub.Stop(time.Minute))
	}
	if f.journal != nil {
		f.journal.close()
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
	f.source.Close()
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
	if s.Observer != nil {
		s.Observer.Stop()
	}
	return s.Stop()
}
