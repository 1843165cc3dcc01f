//go:build linux

package outage_test

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/web"
)

const (
	// patience is how long a test waits for what is bound to come. It is long: a
	// busy machine is no failure.
	patience = testenv.Patience
	tick     = 50 * time.Millisecond
	// heartbeat of the agents here.
	heartbeat = "2s"
)

// The members that have an agent. The hub reaches bergen over a link; lab has the
// agent's chart only, until a test starts its agent.
const (
	bergen = "bergen"
	lab    = "lab"
)

// lights is how many light members there are; the last ones are reached over
// links of their own.
const (
	fakeCount   = 20
	linkedFakes = 2
)

// testMember is a member cluster with room for an agent.
type testMember struct {
	*member.Member
	Agent *program.Agent
	// instant plays CDI where a test has replaced the member's own.
	instant *simulator.InstantImporter
}

// testFleet is a hub and its members.
type testFleet struct {
	Plane *controlplane.ControlPlane
	// Client reaches the hub's API server with all rights.
	client.WithWatch
	Hub     *program.Hub
	Members map[string]*testMember

	FakePlane *controlplane.ControlPlane
	Fakes     *fakemember.Members
	// linkByMember by member.
	linkByMember map[string]*faults.Link
}

// policyData is the policy that the fleet starts with.
var policyData = map[string]any{
	"concurrency":          "2",
	"retryLimit":           "1",
	"retryBackoffDuration": "1s",
	"preflight":            "false",
}

func startFleet(ctx context.Context) (f *testFleet, err error) {
	f = &testFleet{Members: map[string]*testMember{}, linkByMember: map[string]*faults.Link{}}
	// Namespaces of the hub are deleted with what is in them.
	planes, err := controlplane.StartAll(ctx, controlplane.Options{Name: "hub", ControllerManager: true}, controlplane.Options{Name: "light"})
	if err != nil {
		return f, err
	}
	f.Plane, f.FakePlane = planes[0], planes[1]
	if f.WithWatch, err = client.NewWithWatch(f.Plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return f, err
	}
	if err := program.InstallHub(ctx, f.Plane, map[string]any{"policy": map[string]any{"data": policyData}}); err != nil {
		return f, err
	}
	f.Hub, err = program.StartHub(ctx, f.Plane, program.Options{Log: os.Getenv("OT_FLEET_HUB_LOG"), Args: []string{"--probe-interval=1s", "--member-timeout=5s"}})
	if err != nil {
		return f, err
	}
	started, err := member.StartAll(ctx,
		member.Options{Name: bergen, InstantImporter: true, Scheme: testenv.NewScheme()}, member.Options{Name: lab, InstantImporter: true, Scheme: testenv.NewScheme()})
	if err != nil {
		return f, err
	}
	for _, m := range started {
		f.Members[m.Name()] = &testMember{Member: m}
		m.InstantImporter().AllowFinishes(1 << 20)
		if err := program.InstallAgent(ctx, m.ControlPlane, chartValues); err != nil {
			return f, err
		}
	}
	if err := program.InstallAgent(ctx, f.FakePlane, chartValues); err != nil { // for the kinds
		return f, err
	}
	if f.Fakes, err = fakemember.Start(ctx, f.FakePlane, "light", fakeCount); err != nil {
		return f, err
	}
	return f, f.joinMembers(ctx)
}

// chartValues leave a member without a policy of its own.
var chartValues = map[string]any{
	"policy": map[string]any{"create": false},
	"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
}

// joinMembers makes bergen and the light members known to the hub.
func (f *testFleet) joinMembers(ctx context.Context) error {
	if err := f.Members[bergen].startAgent(ctx); err != nil {
		return err
	}
	if err := f.startLink(bergen, f.Members[bergen].ControlPlane); err != nil {
		return err
	}
	if err := f.createMember(ctx, bergen); err != nil {
		return err
	}
	for i, m := range f.Fakes.List {
		if i >= fakeCount-linkedFakes {
			if err := f.startLink(m.Name, f.FakePlane); err != nil {
				return err
			}
		}
		if err := f.createMember(ctx, m.Name); err != nil {
			return err
		}
	}
	return nil
}

func (f *testFleet) startLink(name string, plane *controlplane.ControlPlane) (err error) {
	f.linkByMember[name], err = faults.StartLink(plane.Config())
	return err
}

// linkedFakeMembers are the light members that have links.
func (f *testFleet) linkedFakeMembers() []*fakemember.Member {
	return f.Fakes.List[fakeCount-linkedFakes:]
}

// memberKubeconfig is how the hub reaches a member: by the rights that the agent's chart gives
// it, over the member's link if it has one.
func (f *testFleet) memberKubeconfig(ctx context.Context, name string) (kubeconfig []byte, namespace string, err error) {
	var cfg *rest.Config
	if s := f.Members[name]; s != nil {
		namespace = program.AgentNamespace
		cfg, err = s.ControlPlane.ServiceAccountConfig(ctx, namespace, "ot-hub")
	}
	for _, m := range f.Fakes.List {
		if m.Name == name {
			namespace = name
			cfg, err = m.Config(ctx)
		}
	}
	if err != nil {
		return nil, "", err
	}
	if l := f.linkByMember[name]; l != nil {
		l.Redirect(cfg)
	}
	kubeconfig, err = controlplane.Kubeconfig(cfg)
	return kubeconfig, namespace, err
}

// createMember makes a MemberCluster and its Secret, as people do.
func (f *testFleet) createMember(ctx context.Context, name string) error {
	kubeconfig, namespace, err := f.memberKubeconfig(ctx, name)
	if err != nil {
		return err
	}
	if err := f.writeKubeconfigSecret(ctx, name, kubeconfig); err != nil {
		return err
	}
	return f.Create(ctx, &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.MemberClusterSpec{
			Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}},
			AgentNamespace: namespace,
		},
	})
}

// writeKubeconfigSecret writes the Secret of a member.
func (f *testFleet) writeKubeconfigSecret(ctx context.Context, name string, kubeconfig []byte) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	err := f.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		err = f.Update(ctx, secret)
	}
	return err
}

// startAgent returns when its metrics are served: it need not lead yet.
func (s *testMember) startAgent(ctx context.Context) (err error) {
	s.Agent, err = program.StartAgent(ctx, s.ControlPlane, program.Options{LeaseDuration: 15 * time.Second, Args: []string{"--report-heartbeat=" + heartbeat}})
	if err != nil {
		return err
	}
	_, err = s.Agent.ReadMetrics(ctx)
	return err
}

// stopAgent has it hand over its lease, so that the next one need not wait.
func (s *testMember) stopAgent(t *testing.T) {
	t.Helper()
	require.NoError(t, s.Agent.Stop(patience))
	s.Agent = nil
}

// stop ends everything.
func (f *testFleet) stop() error {
	var errs []error
	if f.Hub != nil {
		errs = append(errs, f.Hub.Stop(time.Minute))
	}
	if f.Fakes != nil {
		f.Fakes.Stop()
	}
	for _, l := range f.linkByMember {
		l.Close()
	}
	for _, s := range f.Members {
		if s.Agent != nil {
			s.Agent.Kill()
		}
		if s.instant != nil {
			errs = append(errs, s.instant.Stop())
		}
		errs = append(errs, s.Stop())
	}
	for _, p := range []*controlplane.ControlPlane{f.FakePlane, f.Plane} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}

var scheme = testenv.NewScheme()

// getMember returns a MemberCluster as it is stored.
func (f *testFleet) getMember(t *testing.T, name string) *v1alpha1.MemberCluster {
	t.Helper()
	return testenv.GetMember(t, f, name)
}

// awaitMember reads a MemberCluster until it is as wanted.
func (f *testFleet) awaitMember(t *testing.T, name, wanted string, holds ...func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
	t.Helper()
	return testenv.AwaitMember(t, f, name, wanted+"; the hub's log is "+f.Hub.LogFile(), holds...)
}

// isHealthy wants a member that works under its newest plan.
func isHealthy(m *v1alpha1.MemberCluster) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) && m.Status.Plan != nil && m.Status.AcknowledgedPlan != nil &&
		m.Status.Plan.Compare(*m.Status.AcknowledgedPlan) == 0
}

// hasBudget wants a member whose budget is so.
func hasBudget(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool { return m.Status.Budget != nil && *m.Status.Budget == budget }
}

// hasImages wants so many images, all of them ready. Those of earlier tests go on
// leaving: nobody takes the protection from their claims here.
func hasImages(n int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Total-m.Status.Images.Leaving == n && m.Status.Images.Ready == n
	}
}

// hasCondition wants a condition as it is given, with words in its message.
func hasCondition(condition string, status metav1.ConditionStatus, reason string, words ...string) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, condition)
		if c == nil || c.Status != status || c.Reason != reason {
			return false
		}
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				return false
			}
		}
		return true
	}
}

// getMemberFromReadAPI returns what the read API says of one member.
func (f *testFleet) getMemberFromReadAPI(t *testing.T, name string) web.Member {
	t.Helper()
	all, err := f.Hub.ListMembers(t.Context())
	require.NoError(t, err)
	for i := range all {
		if all[i].Member == name {
			return all[i]
		}
	}
	require.Failf(t, "the read API does not list a member", name)
	return web.Member{}
}

// awaitImage reads one distinct image from the read API until it is as wanted.
func (f *testFleet) awaitImage(t *testing.T, file string, holds func(inventory.ImageDetail) bool) {
	t.Helper()
	var detail inventory.ImageDetail
	require.True(t, testenv.Await(t, func() bool {
		images, err := f.Hub.ListImages(t.Context())
		require.NoError(t, err)
		detail = inventory.ImageDetail{}
		for _, image := range images {
			if strings.Contains(image.Source, file) {
				detail, err = f.Hub.GetImage(t.Context(), image.Source)
				require.NoError(t, err)
			}
		}
		return holds(detail)
	}), "image %s is %+v", file, &detail)
}

// setPolicy changes a key of the fleet's policy, for as long as the test runs.
func (f *testFleet) setPolicy(t *testing.T, key, value string) {
	t.Helper()
	require.NoError(t, f.updatePolicy(t.Context(), key, value))
	t.Cleanup(func() { require.NoError(t, f.updatePolicy(context.Background(), key, fmt.Sprint(policyData[key]))) })
}

func (f *testFleet) updatePolicy(ctx context.Context, key, value string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := f.Get(ctx, client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
			return err
		}
		cm.Data[key] = value
		return f.Update(ctx, cm)
	})
}

// createImage creates an image in a member. No test downloads from its source.
func (s *testMember) createImage(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: "http://images.example.com/" + name + ".qcow2",
			DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
		},
	}
	require.NoError(t, s.Client().Create(t.Context(), img))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(s.Client().Delete(context.Background(), img))) })
	return img
}

// getClusterUID of a member.
func (s *testMember) getClusterUID(t *testing.T) types.UID {
	t.Helper()
	ns := &corev1.Namespace{}
	require.NoError(t, s.Client().Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, ns))
	return ns.UID
}
