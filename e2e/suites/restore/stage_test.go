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
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// patience is how long a test waits for what is bound to come. It is long: a
	// busy machine is no failure.
	patience = testenv.Patience
	tick     = 50 * time.Millisecond
	// heartbeat of the agents here.
	heartbeat = 2 * time.Second
	// hubLeaseDuration of the hubs here: as short as a busy machine does not lose it.
	hubLeaseDuration = 15 * time.Second

	realName = "bergen"
	// Of the light members, the hub reaches the first through a proxy that holds
	// writes, the second over a link that can be cut.
	proxiedFake = "light-0"
	linkedFake  = "light-1"
	plainFake   = "light-2"
	otherFake   = "light-3"
	fakeCount   = 4
)

// testFleet is a hub's API server and its members.
type testFleet struct {
	// hubMember is the cluster that the hub runs in. It can import, for an agent of its
	// own.
	hubMember *member.Member
	// Client reaches it with all rights.
	client.WithWatch

	realMember  *member.Member
	Agent       *program.Agent
	FakePlane   *controlplane.ControlPlane // of the light members
	Fakes       *fakemember.Members
	Proxy       *faults.Proxy
	Link        *faults.Link
	memberNames []string
	lastBudget  int32
	cleanup     []func() error
}

func startFleet(ctx context.Context) (_ *testFleet, err error) {
	f := &testFleet{memberNames: []string{realName, proxiedFake, linkedFake, plainFake, otherFake}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stopAll())
		}
	}()
	if err := f.startClusters(ctx); err != nil {
		return f, err
	}
	if f.Fakes, err = fakemember.Start(ctx, f.FakePlane, "light", fakeCount); err != nil {
		return f, err
	}
	f.cleanup = append(f.cleanup, func() error { f.Fakes.Stop(); return nil })
	if f.Proxy, err = faults.StartProxy(f.FakePlane.Config()); err != nil {
		return f, err
	}
	f.cleanup = append(f.cleanup, f.Proxy.Close)
	if f.Link, err = faults.StartLink(f.FakePlane.Config()); err != nil {
		return f, err
	}
	f.cleanup = append(f.cleanup, func() error { f.Link.Close(); return nil })
	if f.Agent, err = startAgent(ctx, f.realMember); err != nil {
		return f, err
	}
	return f, f.joinMembers(ctx)
}

func (f *testFleet) startClusters(ctx context.Context) error {
	started, err := member.StartAll(ctx,
		member.Options{Name: "home", InstantImporter: true, Scheme: testenv.NewScheme()},
		member.Options{Name: realName, InstantImporter: true, InstantImportDuration: 200 * time.Millisecond, Scheme: testenv.NewScheme()},
	)
	if err != nil {
		return err
	}
	f.hubMember, f.realMember = started[0], started[1]
	f.cleanup = append(f.cleanup, f.hubMember.Stop, f.realMember.Stop)
	if f.FakePlane, err = controlplane.Start(ctx, controlplane.Options{Name: "light"}); err != nil {
		return err
	}
	f.cleanup = append(f.cleanup, f.FakePlane.Stop)
	if f.WithWatch, err = client.NewWithWatch(f.hubMember.ControlPlane.Config(), client.Options{Scheme: testenv.NewScheme()}); err != nil {
		return err
	}
	if err := program.InstallHub(ctx, f.hubMember.ControlPlane, map[string]any{"policy": map[string]any{"data": toValues(newPolicyData(3))}}); err != nil {
		return err
	}
	for _, plane := range []*controlplane.ControlPlane{f.realMember.ControlPlane, f.FakePlane} {
		if err := program.InstallAgent(ctx, plane, map[string]any{
			"policy": map[string]any{"create": false},
			"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
		}); err != nil {
			return err
		}
	}
	return nil
}

func startAgent(ctx context.Context, m *member.Member) (*program.Agent, error) {
	m.InstantImporter().AllowFinishes(1 << 20)
	return program.StartAgent(ctx, m.ControlPlane, program.Options{
		LeaseDuration: 15 * time.Second, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--report-heartbeat=" + heartbeat.String()},
	})
}

func (f *testFleet) joinMembers(ctx context.Context) error {
	cfg, err := f.realMember.ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return err
	}
	if err := f.joinMember(ctx, realName, program.AgentNamespace, cfg); err != nil {
		return err
	}
	for _, m := range f.Fakes.List {
		cfg, err := m.Config(ctx)
		if err != nil {
			return err
		}
		switch m.Name {
		case proxiedFake:
			token := cfg.BearerToken
			f.Proxy.Redirect(cfg)
			cfg.BearerToken = token
		case linkedFake:
			f.Link.Redirect(cfg)
		}
		if err := f.joinMember(ctx, m.Name, m.Name, cfg); err != nil {
			return err
		}
	}
	return nil
}

// joinMember makes a MemberCluster that is reached by a Secret.
func (f *testFleet) joinMember(ctx context.Context, name, agentNamespace string, cfg *rest.Config) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name},
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

// stopAll ends everything, what came last first.
func (f *testFleet) stopAll() error {
	var errs []error
	if f.Agent != nil {
		f.Agent.Kill()
	}
	for i := len(f.cleanup) - 1; i >= 0; i-- {
		errs = append(errs, f.cleanup[i]())
	}
	return errors.Join(errs...)
}

// startHub starts one that ends with the test, at the latest.
func (f *testFleet) startHub(t *testing.T, through func(*rest.Config), args ...string) *program.Hub {
	t.Helper()
	h, err := program.StartHub(t.Context(), f.hubMember.ControlPlane, program.Options{
		ConfigureClient: through, LeaseDuration: hubLeaseDuration, Log: os.Getenv("OT_FLEET_HUB_LOG"),
		Args: append([]string{"--probe-interval=1s", "--member-timeout=5s"}, args...),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Stop(time.Minute)) })
	return h
}

// newPolicyData is a policy under which nothing is waited for.
func newPolicyData(concurrency int32) map[string]string {
	return map[string]string{
		"concurrency": fmt.Sprint(concurrency), "retryLimit": "1", "retryBackoffDuration": "1s", "preflight": "false",
	}
}

func toValues(data map[string]string) map[string]any {
	values := map[string]any{}
	for key, value := range data {
		values[key] = value
	}
	return values
}

// setPolicy stores the fleet's policy.
func (f *testFleet) setPolicy(t *testing.T, data map[string]string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := f.Get(t.Context(), client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
			return err
		}
		cm.Data = data
		return f.Update(t.Context(), cm)
	}))
}

// setNewBudget stores a policy with a budget that no test had before, and returns it.
func (f *testFleet) setNewBudget(t *testing.T) int32 {
	t.Helper()
	f.lastBudget++
	f.setPolicy(t, newPolicyData(10+f.lastBudget))
	return 10 + f.lastBudget
}

// getMember returns a MemberCluster as it is stored.
func (f *testFleet) getMember(t *testing.T, name string) *v1alpha1.MemberCluster {
	t.Helper()
	return testenv.GetMember(t, f, name)
}

// awaitMember reads a MemberCluster until it is as wanted.
func (f *testFleet) awaitMember(t *testing.T, name, wanted string, holds ...func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
	t.Helper()
	return testenv.AwaitMember(t, f, name, wanted, holds...)
}

// awaitAcknowledged waits until members work under the newest plan with a budget;
// without names, all.
func (f *testFleet) awaitAcknowledged(t *testing.T, budget int32, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = f.memberNames
	}
	for _, name := range names {
		f.awaitMember(t, name, fmt.Sprintf("acknowledged, budget %d", budget), hasBudget(budget))
	}
}

func hasBudget(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged) &&
			m.Status.Budget != nil && *m.Status.Budget == budget
	}
}

// setFakeImages has a light member report that many images.
func (f *testFleet) setFakeImages(t *testing.T, name string, n int) {
	t.Helper()
	images := make([]v1alpha1.ReportedImage, n)
	for i := range images {
		images[i] = v1alpha1.ReportedImage{
			Namespace: "default", Name: fmt.Sprintf("image-%d", i), UID: "1", Source: fmt.Sprintf("http://images.example.com/%d", i),
			Phase: v1alpha1.PhaseSucceeded,
		}
	}
	require.NoError(t, f.getFake(t, name).SetImages(t.Context(), "page", images))
}

// reportFromAllFakes has all light members report, and waits until the hub tells of it.
func (f *testFleet) reportFromAllFakes(t *testing.T, n int) {
	t.Helper()
	for _, m := range f.Fakes.List {
		f.setFakeImages(t, m.Name, n)
	}
	for _, m := range f.Fakes.List {
		f.awaitImageCount(t, m.Name, int32(n))
	}
}

func (f *testFleet) getFake(t *testing.T, name string) *fakemember.Member {
	t.Helper()
	for _, m := range f.Fakes.List {
		if m.Name == name {
			return m
		}
	}
	require.Fail(t, "no light member "+name)
	return nil
}

// awaitImageCount waits until the hub tells how many images a member has.
func (f *testFleet) awaitImageCount(t *testing.T, name string, n int32) {
	t.Helper()
	f.awaitMember(t, name, fmt.Sprintf("%d images", n), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Total == n
	})
}

// mailboxVersions are the resourceVersions of all plans and grants, on the hub and in
// the members.
func (f *testFleet) mailboxVersions(t *testing.T) map[string]string {
	t.Helper()
	lights, err := client.New(f.FakePlane.Config(), client.Options{Scheme: testenv.NewScheme()})
	require.NoError(t, err)
	versions := map[string]string{}
	for where, c := range map[string]client.Client{"home": f, realName: f.realMember.Client(), "light": lights} {
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

// awaitLeader waits until a hub leads.
func (f *testFleet) awaitLeader(t *testing.T, h *program.Hub) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool {
		text, err := h.ReadMetrics(t.Context())
		require.NoError(t, err)
		return strings.Contains(text, `leader_election_master_status{name="ot-hub"} 1`)
	}), "the hub does not lead")
}

// hasEnded tells whether a process has.
func hasEnded(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}
