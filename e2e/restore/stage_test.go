//go:build linux

package restore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/light"
	"github.com/pelotech/ot-fleet/e2e/link"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/process"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

const (
	// patience is how long a test waits for what is bound to come. It is long: a
	// busy machine is no failure.
	patience = scene.Patience
	tick     = 50 * time.Millisecond
	// heartbeat of the agents here.
	heartbeat = 2 * time.Second
	// lease of the hubs here: as short as a busy machine does not lose it.
	lease = 15 * time.Second

	real1 = "bergen"
	// Of the light members, the hub reaches the first through a proxy that holds
	// writes, the second over a link that can be cut.
	proxied = "light-0"
	linked  = "light-1"
	plain   = "light-2"
	another = "light-3"
	lights  = 4
)

// fleet is a hub's API server and its members.
type fleet struct {
	// home is the cluster that the hub runs in. It can import, for an agent of its
	// own.
	home *member.Member
	// Client reaches it with all rights.
	client.WithWatch

	bergen  *member.Member
	agent   *agent.Agent
	plane   *controlplane.ControlPlane // of the light members
	lights  *light.Members
	proxy   *proxy.Proxy
	link    *link.Link
	names   []string
	budget  int32
	cleanup []func() error
}

func startFleet(ctx context.Context) (_ *fleet, err error) {
	f := &fleet{names: []string{real1, proxied, linked, plain, another}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	if err := f.startClusters(ctx); err != nil {
		return f, err
	}
	if f.lights, err = light.Start(ctx, f.plane, "light", lights); err != nil {
		return f, err
	}
	f.cleanup = append(f.cleanup, func() error { f.lights.Stop(); return nil })
	if f.proxy, err = proxy.Start(f.plane.Config()); err != nil {
		return f, err
	}
	f.cleanup = append(f.cleanup, f.proxy.Close)
	if f.link, err = link.Start(f.plane.Config()); err != nil {
		return f, err
	}
	f.cleanup = append(f.cleanup, func() error { f.link.Close(); return nil })
	if f.agent, err = startAgent(ctx, f.bergen); err != nil {
		return f, err
	}
	return f, f.joinAll(ctx)
}

func (f *fleet) startClusters(ctx context.Context) error {
	started, err := member.StartAll(ctx,
		member.Options{Name: "home", Instant: true, Scheme: scene.NewScheme()},
		member.Options{Name: real1, Instant: true, InstantTakes: 200 * time.Millisecond, Scheme: scene.NewScheme()},
	)
	if err != nil {
		return err
	}
	f.home, f.bergen = started[0], started[1]
	f.cleanup = append(f.cleanup, f.home.Stop, f.bergen.Stop)
	if f.plane, err = controlplane.Start(ctx, controlplane.Options{Name: "light"}); err != nil {
		return err
	}
	f.cleanup = append(f.cleanup, f.plane.Stop)
	if f.WithWatch, err = client.NewWithWatch(f.home.ControlPlane.Config(), client.Options{Scheme: scene.NewScheme()}); err != nil {
		return err
	}
	if err := hub.Install(ctx, f.home.ControlPlane, map[string]any{"policy": map[string]any{"data": anyData(policyData(3))}}); err != nil {
		return err
	}
	for _, plane := range []*controlplane.ControlPlane{f.bergen.ControlPlane, f.plane} {
		if err := agent.Install(ctx, plane, map[string]any{
			"policy": map[string]any{"create": false},
			"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
		}); err != nil {
			return err
		}
	}
	return nil
}

func startAgent(ctx context.Context, m *member.Member) (*agent.Agent, error) {
	m.Instant().Allow(1 << 20)
	return agent.Start(ctx, m.ControlPlane, agent.Options{
		LeaseDuration: 15 * time.Second, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--report-heartbeat=" + heartbeat.String()},
	})
}

func (f *fleet) joinAll(ctx context.Context) error {
	cfg, err := f.bergen.ControlPlane.ServiceAccountConfig(ctx, agent.Namespace, "ot-hub")
	if err != nil {
		return err
	}
	if err := f.join(ctx, real1, agent.Namespace, cfg); err != nil {
		return err
	}
	for _, m := range f.lights.List {
		cfg, err := m.Config(ctx)
		if err != nil {
			return err
		}
		switch m.Name {
		case proxied:
			token := cfg.BearerToken
			f.proxy.Through(cfg)
			cfg.BearerToken = token
		case linked:
			f.link.Through(cfg)
		}
		if err := f.join(ctx, m.Name, m.Name, cfg); err != nil {
			return err
		}
	}
	return nil
}

// join makes a MemberCluster that is reached by a Secret.
func (f *fleet) join(ctx context.Context, name, agentNamespace string, cfg *rest.Config) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: name},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}
	if err := f.Create(ctx, secret); err != nil {
		return err
	}
	return f.Create(ctx, &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.MemberClusterSpec{
			Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}},
			AgentNamespace: agentNamespace,
		},
	})
}

// stop ends everything, what came last first.
func (f *fleet) stop() error {
	var errs []error
	if f.agent != nil {
		f.agent.Kill()
	}
	for i := len(f.cleanup) - 1; i >= 0; i-- {
		errs = append(errs, f.cleanup[i]())
	}
	return errors.Join(errs...)
}

// startHub starts one that ends with the test, at the latest.
func (f *fleet) startHub(t *testing.T, through func(*rest.Config), args ...string) *hub.Hub {
	t.Helper()
	h, err := hub.Start(t.Context(), f.home.ControlPlane, hub.Options{
		Through: through, LeaseDuration: lease, Log: os.Getenv("OT_FLEET_HUB_LOG"),
		Args: append([]string{"--probe-interval=1s", "--member-timeout=5s"}, args...),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Stop(time.Minute)) })
	return h
}

// policyData is a policy under which nothing is waited for.
func policyData(concurrency int32) map[string]string {
	return map[string]string{
		"concurrency": fmt.Sprint(concurrency), "retryLimit": "1", "retryBackoffDuration": "1s", "preflight": "false",
	}
}

func anyData(data map[string]string) map[string]any {
	values := map[string]any{}
	for key, value := range data {
		values[key] = value
	}
	return values
}

// setPolicy stores the fleet's policy.
func (f *fleet) setPolicy(t *testing.T, data map[string]string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := f.Get(t.Context(), client.ObjectKey{Namespace: hub.PolicyNamespace, Name: hub.PolicyName}, cm); err != nil {
			return err
		}
		cm.Data = data
		return f.Update(t.Context(), cm)
	}))
}

// change stores a policy with a budget that no test had before, and returns it.
func (f *fleet) change(t *testing.T) int32 {
	t.Helper()
	f.budget++
	f.setPolicy(t, policyData(10+f.budget))
	return 10 + f.budget
}

// member returns a MemberCluster as it is stored.
func (f *fleet) member(t *testing.T, name string) *v1alpha1.MemberCluster {
	t.Helper()
	return scene.Member(t, f, name)
}

// eventually reads a MemberCluster until it is as wanted.
func (f *fleet) eventually(t *testing.T, name, wanted string, holds ...func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
	t.Helper()
	return scene.EventuallyMember(t, f, name, wanted, holds...)
}

// acknowledged waits until members work under the newest plan with a budget;
// without names, all.
func (f *fleet) acknowledged(t *testing.T, budget int32, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = f.names
	}
	for _, name := range names {
		f.eventually(t, name, fmt.Sprintf("acknowledged, budget %d", budget), hasBudget(budget))
	}
}

func hasBudget(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged) &&
			m.Status.Budget != nil && *m.Status.Budget == budget
	}
}

// report has a light member report that many images.
func (f *fleet) report(t *testing.T, name string, n int) {
	t.Helper()
	images := make([]v1alpha1.ReportedImage, n)
	for i := range images {
		images[i] = v1alpha1.ReportedImage{
			Namespace: "default", Name: fmt.Sprintf("image-%d", i), UID: "1", Source: fmt.Sprintf("http://images.example.com/%d", i),
			Phase: v1alpha1.PhaseSucceeded,
		}
	}
	require.NoError(t, f.light(t, name).SetImages(t.Context(), "page", images))
}

// allReport has all light members report, and waits until the hub tells of it.
func (f *fleet) allReport(t *testing.T, n int) {
	t.Helper()
	for _, m := range f.lights.List {
		f.report(t, m.Name, n)
	}
	for _, m := range f.lights.List {
		f.reported(t, m.Name, int32(n))
	}
}

func (f *fleet) light(t *testing.T, name string) *light.Member {
	t.Helper()
	for _, m := range f.lights.List {
		if m.Name == name {
			return m
		}
	}
	require.Fail(t, "no light member "+name)
	return nil
}

// reported waits until the hub tells how many images a member has.
func (f *fleet) reported(t *testing.T, name string, n int32) {
	t.Helper()
	f.eventually(t, name, fmt.Sprintf("%d images", n), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Total == n
	})
}

// mailboxes are the resourceVersions of all plans and grants, on the hub and in
// the members.
func (f *fleet) mailboxes(t *testing.T) map[string]string {
	t.Helper()
	lights, err := client.New(f.plane.Config(), client.Options{Scheme: scene.NewScheme()})
	require.NoError(t, err)
	versions := map[string]string{}
	for where, c := range map[string]client.Client{"home": f, real1: f.bergen.Client(), "light": lights} {
		for _, list := range []client.ObjectList{&v1alpha1.ClusterPlanList{}, &v1alpha1.TransferGrantList{}} {
			require.NoError(t, c.List(t.Context(), list))
			require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
				object := o.(client.Object)
				versions[fmt.Sprintf("%s: %T %s/%s", where, o, object.GetNamespace(), object.GetName())] = object.GetResourceVersion()
				return nil
			}))
		}
	}
	return versions
}

// leads waits until a hub leads.
func (f *fleet) leads(t *testing.T, h *hub.Hub) {
	t.Helper()
	require.True(t, scene.Await(t, func() bool {
		text, err := h.Metrics(t.Context())
		require.NoError(t, err)
		return strings.Contains(text, `leader_election_master_status{name="ot-hub"} 1`)
	}), "the hub does not lead")
}

// ended tells whether a process has.
func ended(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}
