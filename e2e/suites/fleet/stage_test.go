//go:build linux

package fleet_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	// patience is how long a test waits for what is bound to come. It is long: a
	// busy machine is no failure.
	patience = testenv.Patience
	tick     = 50 * time.Millisecond
	// heartbeat of the agents here.
	heartbeat = "2s"
)

// testMember is a member cluster with its agent.
type testMember struct {
	*member.Member
	name  string
	Agent *program.Agent
}

// testFleet is a hub and its members.
type testFleet struct {
	Plane *controlplane.ControlPlane
	// Client reaches the hub's API server with all rights.
	client.Client
	Hub     *program.Hub
	Members map[string]*testMember
}

// policyData is the policy that the fleet starts with: of two members, frankfurt
// is named by an override and edge is selected by one.
var policyData = map[string]string{
	"concurrency":          "3",
	"retryLimit":           "1",
	"retryBackoffDuration": "1s",
	"preflight":            "false",
	"overrides": `
- cluster: frankfurt
  concurrency: "5"
- selector: {matchLabels: {edge: "true"}}
  concurrency: "1"
`,
}

// startFleet starts a hub that has its chart and its policy, and members that
// run their agents and do not know of the hub yet: join introduces them. Imports
// in the members end at once.
func startFleet(ctx context.Context, args []string, names ...string) (_ *testFleet, err error) {
	f := &testFleet{Members: map[string]*testMember{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	// Its namespaces are deleted with what is in them.
	if f.Plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
		return f, err
	}
	if f.Client, err = client.New(f.Plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return f, err
	}
	data := map[string]any{}
	for key, value := range policyData {
		data[key] = value
	}
	if err := program.InstallHub(ctx, f.Plane, map[string]any{"policy": map[string]any{"data": data}}); err != nil {
		return f, err
	}
	options := make([]member.Options, len(names))
	for i, name := range names {
		options[i] = member.Options{Name: name, InstantImporter: true, Scheme: testenv.NewScheme()}
	}
	started, err := member.StartAll(ctx, options...)
	if err != nil {
		return f, err
	}
	for _, m := range started {
		s := &testMember{Member: m, name: m.Name()}
		f.Members[s.name] = s
		if err := s.install(ctx); err != nil {
			return f, err
		}
	}
	return f, f.startHub(ctx, args...)
}

// install installs the agent's chart, without a policy of the member's own, and
// starts the agent.
func (s *testMember) install(ctx context.Context) error {
	s.InstantImporter().AllowFinishes(1 << 20)
	err := program.InstallAgent(ctx, s.ControlPlane, map[string]any{
		"policy": map[string]any{"create": false},
		"hub":    map[string]any{"serviceAccount": map[string]any{"create": true}},
	})
	if err != nil {
		return err
	}
	return s.startAgent(ctx, "")
}

func (s *testMember) startAgent(ctx context.Context, version string) (err error) {
	s.Agent, err = program.StartAgent(ctx, s.ControlPlane, program.Options{Version: version, LeaseDuration: 15 * time.Second, Args: []string{"--report-heartbeat=" + heartbeat}})
	return err
}

func (f *testFleet) startHub(ctx context.Context, args ...string) error {
	return f.startHubVersion(ctx, "", args...)
}

func (f *testFleet) startHubVersion(ctx context.Context, version string, args ...string) (err error) {
	f.Hub, err = program.StartHub(ctx, f.Plane, program.Options{Version: version, Log: os.Getenv("OT_FLEET_HUB_LOG"), Args: append([]string{"--probe-interval=1s", "--member-timeout=3s"}, args...)})
	return err
}

// joinMember creates the Secret by which the hub connects to a member, with the rights
// that the agent's chart gives a hub; or it registers a member in pull mode.
func (f *testFleet) joinMember(ctx context.Context, name string) error {
	s := f.Members[name]
	if program.UsesPullMode(name, "frankfurt") {
		return program.RegisterPullMember(ctx, f.Client, s.Client(), program.AgentNamespace, name, nil, nil)
	}
	cfg, err := s.ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return err
	}
	return program.CreateMemberSecret(ctx, f.Client, name, cfg)
}

// newKubeconfigSecret returns a Secret that reaches a member with those rights, not created
// yet.
func (f *testFleet) newKubeconfigSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	cfg, err := f.Members[name].ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return nil, err
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name + "-by-hand"},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}, nil
}

// stop ends everything.
func (f *testFleet) stop() error {
	var errs []error
	if f.Hub != nil {
		errs = append(errs, f.Hub.Stop(time.Minute))
	}
	for _, s := range f.Members {
		if s.Agent != nil {
			s.Agent.Kill()
		}
		errs = append(errs, s.Stop())
	}
	if f.Plane != nil {
		errs = append(errs, f.Plane.Stop())
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

// isConditionTrue tells whether a condition is True.
func isConditionTrue(m *v1alpha1.MemberCluster, condition string) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, condition)
}

// hasReason tells whether a condition has a reason.
func hasReason(m *v1alpha1.MemberCluster, condition, reason string) bool {
	c := meta.FindStatusCondition(m.Status.Conditions, condition)
	return c != nil && c.Reason == reason
}

// hasBudget wants a member that acknowledged a budget.
func hasBudget(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		return isConditionTrue(m, v1alpha1.ConditionReady) && m.Status.Budget != nil && *m.Status.Budget == budget
	}
}

// setPolicy changes the fleet's policy, for as long as the test runs. A key that
// is empty goes.
func (f *testFleet) setPolicy(t *testing.T, change map[string]string) {
	t.Helper()
	set := func(ctx context.Context, how func(map[string]string)) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			cm := &corev1.ConfigMap{}
			if err := f.Get(ctx, client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
				return err
			}
			how(cm.Data)
			return f.Update(ctx, cm)
		})
	}
	require.NoError(t, set(t.Context(), func(data map[string]string) {
		for key, value := range change {
			if data[key] = value; value == "" {
				delete(data, key)
			}
		}
	}))
	t.Cleanup(func() {
		require.NoError(t, set(context.Background(), func(data map[string]string) {
			clear(data)
			for key, value := range policyData {
				data[key] = value
			}
		}))
	})
}

// createImage creates an image in a member. No test downloads from its source.
func (s *testMember) createImage(t *testing.T, name, file string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: "http://images.example.com/" + file,
			DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
		},
	}
	require.NoError(t, s.Client().Create(t.Context(), img))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(s.Client().Delete(context.Background(), img))) })
	return img
}

// readMetric reads one of the hub's, by name and labels as they are written.
func (f *testFleet) readMetric(t *testing.T, name string) (value float64, found bool) {
	t.Helper()
	text, err := f.Hub.ReadMetrics(t.Context())
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			require.NoError(t, err, line)
			return value, true
		}
	}
	return 0, false
}

// awaitMetric waits until a metric has a value.
func (f *testFleet) awaitMetric(t *testing.T, name string, want float64) {
	t.Helper()
	var value float64
	var found bool
	require.True(t, testenv.Await(t, func() bool {
		value, found = f.readMetric(t, name)
		return found && value == want
	}), "metric %s is %v (there: %t), want %v", name, value, found, want)
}
