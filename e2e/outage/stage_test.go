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
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/light"
	"github.com/pelotech/ot-fleet/e2e/link"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/scene"
	"github.com/pelotech/ot-fleet/e2e/simulator"
	hubfleet "github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/web"
)

const (
	// patience is how long a test waits for what is bound to come. It is long: a
	// busy machine is no failure.
	patience = scene.Patience
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
	lights = 20
	linked = 2
)

// site is a member cluster with room for an agent.
type site struct {
	*member.Member
	agent *agent.Agent
	// instant plays CDI where a test has replaced the member's own.
	instant *simulator.Instant
}

// fleet is a hub and its members.
type fleet struct {
	plane *controlplane.ControlPlane
	// Client reaches the hub's API server with all rights.
	client.WithWatch
	hub   *hub.Hub
	sites map[string]*site

	lightPlane *controlplane.ControlPlane
	light      *light.Members
	// links by member.
	links map[string]*link.Link
}

// everywhere is the policy that the fleet starts with.
var everywhere = map[string]any{
	"concurrency":          "2",
	"retryLimit":           "1",
	"retryBackoffDuration": "1s",
	"preflight":            "false",
}

func startFleet(ctx context.Context) (f *fleet, err error) {
	f = &fleet{sites: map[string]*site{}, links: map[string]*link.Link{}}
	// Namespaces of the hub are deleted with what is in them.
	planes, err := controlplane.StartAll(ctx, controlplane.Options{Name: "hub", ControllerManager: true}, controlplane.Options{Name: "light"})
	if err != nil {
		return f, err
	}
	f.plane, f.lightPlane = planes[0], planes[1]
	if f.WithWatch, err = client.NewWithWatch(f.plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return f, err
	}
	if err := hub.Install(ctx, f.plane, map[string]any{"policy": map[string]any{"data": everywhere}}); err != nil {
		return f, err
	}
	f.hub, err = hub.Start(ctx, f.plane, hub.Options{Log: os.Getenv("OT_FLEET_HUB_LOG"), Args: []string{"--probe-interval=1s", "--member-timeout=5s"}})
	if err != nil {
		return f, err
	}
	started, err := member.StartAll(ctx,
		member.Options{Name: bergen, Instant: true, Scheme: scene.NewScheme()}, member.Options{Name: lab, Instant: true, Scheme: scene.NewScheme()})
	if err != nil {
		return f, err
	}
	for _, m := range started {
		f.sites[m.Name()] = &site{Member: m}
		m.Instant().Allow(1 << 20)
		if err := agent.Install(ctx, m.ControlPlane, chartValues); err != nil {
			return f, err
		}
	}
	if err := agent.Install(ctx, f.lightPlane, chartValues); err != nil { // for the kinds
		return f, err
	}
	if f.light, err = light.Start(ctx, f.lightPlane, "light", lights); err != nil {
		return f, err
	}
	return f, f.join(ctx)
}

// chartValues leave a member without a policy of its own.
var chartValues = map[string]any{
	"policy": map[string]any{"create": false},
	"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
}

// join makes bergen and the light members known to the hub.
func (f *fleet) join(ctx context.Context) error {
	if err := f.sites[bergen].startAgent(ctx); err != nil {
		return err
	}
	if err := f.link(bergen, f.sites[bergen].ControlPlane); err != nil {
		return err
	}
	if err := f.apply(ctx, bergen); err != nil {
		return err
	}
	for i, m := range f.light.List {
		if i >= lights-linked {
			if err := f.link(m.Name, f.lightPlane); err != nil {
				return err
			}
		}
		if err := f.apply(ctx, m.Name); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) link(name string, plane *controlplane.ControlPlane) (err error) {
	f.links[name], err = link.Start(plane.Config())
	return err
}

// distant are the light members that have links.
func (f *fleet) distant() []*light.Member { return f.light.List[lights-linked:] }

// way is how the hub reaches a member: by the rights that the agent's chart gives
// it, over the member's link if it has one.
func (f *fleet) way(ctx context.Context, name string) (kubeconfig []byte, namespace string, err error) {
	var cfg *rest.Config
	if s := f.sites[name]; s != nil {
		namespace = agent.Namespace
		cfg, err = s.ControlPlane.ServiceAccountConfig(ctx, namespace, "ot-hub")
	}
	for _, m := range f.light.List {
		if m.Name == name {
			namespace = name
			cfg, err = m.Config(ctx)
		}
	}
	if err != nil {
		return nil, "", err
	}
	if l := f.links[name]; l != nil {
		l.Through(cfg)
	}
	kubeconfig, err = controlplane.Kubeconfig(cfg)
	return kubeconfig, namespace, err
}

// apply makes a MemberCluster and its Secret, as people do.
func (f *fleet) apply(ctx context.Context, name string) error {
	kubeconfig, namespace, err := f.way(ctx, name)
	if err != nil {
		return err
	}
	if err := f.lead(ctx, name, kubeconfig); err != nil {
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

// lead writes the Secret of a member.
func (f *fleet) lead(ctx context.Context, name string, kubeconfig []byte) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	err := f.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		err = f.Update(ctx, secret)
	}
	return err
}

// startAgent returns when its metrics are served: it need not lead yet.
func (s *site) startAgent(ctx context.Context) (err error) {
	s.agent, err = agent.Start(ctx, s.ControlPlane, agent.Options{LeaseDuration: 15 * time.Second, Args: []string{"--report-heartbeat=" + heartbeat}})
	if err != nil {
		return err
	}
	_, err = s.agent.Metrics(ctx)
	return err
}

// stopAgent has it hand over its lease, so that the next one need not wait.
func (s *site) stopAgent(t *testing.T) {
	t.Helper()
	require.NoError(t, s.agent.Stop(patience))
	s.agent = nil
}

// stop ends everything.
func (f *fleet) stop() error {
	var errs []error
	if f.hub != nil {
		errs = append(errs, f.hub.Stop(time.Minute))
	}
	if f.light != nil {
		f.light.Stop()
	}
	for _, l := range f.links {
		l.Close()
	}
	for _, s := range f.sites {
		if s.agent != nil {
			s.agent.Kill()
		}
		if s.instant != nil {
			errs = append(errs, s.instant.Stop())
		}
		errs = append(errs, s.Stop())
	}
	for _, p := range []*controlplane.ControlPlane{f.lightPlane, f.plane} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}

var scheme = scene.NewScheme()

// member returns a MemberCluster as it is stored.
func (f *fleet) member(t *testing.T, name string) *v1alpha1.MemberCluster {
	t.Helper()
	return scene.Member(t, f, name)
}

// eventually reads a MemberCluster until it is as wanted.
func (f *fleet) eventually(t *testing.T, name, wanted string, holds ...func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
	t.Helper()
	return scene.EventuallyMember(t, f, name, wanted+"; the hub's log is "+f.hub.LogFile(), holds...)
}

// healthy wants a member that works under its newest plan.
func healthy(m *v1alpha1.MemberCluster) bool {
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

// says wants a condition as it is given, with words in its message.
func says(condition string, status metav1.ConditionStatus, reason string, words ...string) func(*v1alpha1.MemberCluster) bool {
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

// readAPI returns what the read API says of one member.
func (f *fleet) readAPI(t *testing.T, name string) web.Member {
	t.Helper()
	all, err := f.hub.Members(t.Context())
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
func (f *fleet) awaitImage(t *testing.T, file string, holds func(hubfleet.ImageDetail) bool) {
	t.Helper()
	var detail hubfleet.ImageDetail
	require.True(t, scene.Await(t, func() bool {
		images, err := f.hub.Images(t.Context())
		require.NoError(t, err)
		detail = hubfleet.ImageDetail{}
		for _, image := range images {
			if strings.Contains(image.Source, file) {
				detail, err = f.hub.Image(t.Context(), image.Source)
				require.NoError(t, err)
			}
		}
		return holds(detail)
	}), "image %s is %+v", file, &detail)
}

// setPolicy changes a key of the fleet's policy, for as long as the test runs.
func (f *fleet) setPolicy(t *testing.T, key, value string) {
	t.Helper()
	require.NoError(t, f.policy(t.Context(), key, value))
	t.Cleanup(func() { require.NoError(t, f.policy(context.Background(), key, fmt.Sprint(everywhere[key]))) })
}

func (f *fleet) policy(ctx context.Context, key, value string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := f.Get(ctx, client.ObjectKey{Namespace: hub.PolicyNamespace, Name: hub.PolicyName}, cm); err != nil {
			return err
		}
		cm.Data[key] = value
		return f.Update(ctx, cm)
	})
}

// image creates one in a member. Its source is one that nobody asks.
func (s *site) image(t *testing.T, name string) *v1alpha1.VMDiskImage {
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

// clusterUID of a member.
func (s *site) clusterUID(t *testing.T) types.UID {
	t.Helper()
	ns := &corev1.Namespace{}
	require.NoError(t, s.Client().Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, ns))
	return ns.UID
}
