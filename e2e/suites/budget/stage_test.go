//go:build linux

package budget_test

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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	patience = testenv.Patience
	tick     = 50 * time.Millisecond
	// importDuration is long enough for imports of several members to be seen beside each
	// other where they should not.
	importDuration = 2 * time.Second
	namespace      = metav1.NamespaceDefault

	// grantDuration, and attempts may last, as long as a test can wait for.
	grantDuration  = 15 * time.Second
	attemptTimeout = 10 * time.Second
	concurrency    = 4
	fleetBudget    = 3
	cdnHost        = "cdn.example.com"
	otherHost      = "images.example.com"
)

var memberNames = []string{"alpha", "bravo", "charlie"}

// testMember is a member cluster with its agent.
type testMember struct {
	*member.Member
	client.WithWatch
	name     string
	Agent    *program.Agent
	Observer *observer.Observer
	Link     *faults.Link
}

// testFleet is a hub and its members.
type testFleet struct {
	Plane *controlplane.ControlPlane
	client.WithWatch
	Hub     *program.Hub
	Members map[string]*testMember
	Fakes   *fakemember.Members
}

var scheme = testenv.NewScheme()

// policyData of the fleet before a test: no budget.
var policyData = map[string]any{
	"concurrency": fmt.Sprint(concurrency), "retryLimit": "5", "retryBackoffDuration": "100ms", "preflight": "false",
	"attemptTimeout": attemptTimeout.String(),
}

func startFleet(ctx context.Context) (f *testFleet, err error) {
	f = &testFleet{Members: map[string]*testMember{}}
	options := make([]member.Options, len(memberNames))
	for i, name := range memberNames {
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
		if err := program.InstallHub(ctx, f.Plane, map[string]any{"policy": map[string]any{"data": policyData}}); err != nil {
			return err
		}
		return f.StartHub(ctx)
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
		return f, err
	}
	for _, s := range f.Members {
		group.Go(func() error {
			if err := s.install(ctx); err != nil {
				return err
			}
			cfg, err := s.ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
			if err != nil {
				return err
			}
			s.Link.Redirect(cfg)
			return f.join(ctx, s.name, "", cfg)
		})
	}
	group.Go(func() (err error) {
		f.Fakes, err = fakemember.Start(ctx, f.Plane, "light", fakeCount)
		return err
	})
	if err := group.Wait(); err != nil {
		return f, err
	}
	return f, f.awaitMembersReady(ctx, memberNames...)
}

// install installs the agent's chart, without a policy of the member's own, and starts
// the agent.
func (s *testMember) install(ctx context.Context) (err error) {
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
	if s.Link, err = faults.StartLink(s.ControlPlane.Config()); err != nil {
		return err
	}
	return s.StartAgent(ctx)
}

// StartAgent starts one at once also where the one before was killed: its Lease is
// removed.
func (s *testMember) StartAgent(ctx context.Context) (err error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: "ot-agent"}}
	if err := client.IgnoreNotFound(s.Delete(ctx, lease)); err != nil {
		return err
	}
	s.Agent, err = program.StartAgent(ctx, s.ControlPlane, program.Options{
		LeaseDuration: 15 * time.Second, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--report-heartbeat=2s"},
	})
	return err
}

func (f *testFleet) StartHub(ctx context.Context) (err error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: "ot-hub"}}
	if err := client.IgnoreNotFound(f.Delete(ctx, lease)); err != nil {
		return err
	}
	f.Hub, err = program.StartHub(ctx, f.Plane, program.Options{Log: os.Getenv("OT_FLEET_HUB_LOG"), Args: []string{"--probe-interval=1s", "--member-timeout=3s"}})
	return err
}

// awaitMembersReady waits before there is a test; tests use scene.Await.
func (f *testFleet) awaitMembersReady(ctx context.Context, members ...string) error {
	return wait.PollUntilContextTimeout(ctx, tick, patience, true, func(ctx context.Context) (bool, error) {
		for _, name := range members {
			m := &v1alpha1.MemberCluster{}
			if f.Get(ctx, client.ObjectKey{Name: name}, m) != nil || !meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) {
				return false, nil
			}
		}
		return true, nil
	})
}

// join makes a MemberCluster and its Secret, as people do.
func (f *testFleet) join(ctx context.Context, name, agentNamespace string, cfg *rest.Config) error {
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
			Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: secret.Name}},
			AgentNamespace: agentNamespace,
		},
	})
}

// stop ends everything, and those that ask API servers before these.
func (f *testFleet) stop() error {
	var errs []error
	if f.Hub != nil {
		errs = append(errs, f.Hub.Stop(time.Minute))
	}
	if f.Fakes != nil {
		f.Fakes.Stop()
	}
	var group errgroup.Group
	for _, s := range f.Members {
		group.Go(s.stop)
	}
	if f.Plane != nil {
		group.Go(f.Plane.Stop)
	}
	return errors.Join(append(errs, group.Wait())...)
}

func (s *testMember) stop() error {
	if s.Agent != nil {
		s.Agent.Kill()
	}
	if s.Link != nil {
		s.Link.Close()
	}
	if s.Observer != nil {
		s.Observer.Stop()
	}
	return s.Stop()
}

// setPolicy changes the fleet's policy, also at the end of a test. A key that is empty
// goes.
func (f *testFleet) setPolicy(t *testing.T, change map[string]string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := f.Get(context.Background(), client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
			return err
		}
		for key, value := range change {
			if cm.Data[key] = value; value == "" {
				delete(cm.Data, key)
			}
		}
		return f.Update(context.Background(), cm)
	}))
}

// setBudget has the fleet have a budget; 0 for none.
func (f *testFleet) setBudget(t *testing.T, n int, sources string) {
	t.Helper()
	change := map[string]string{"fleetConcurrency": "", "fleetGrantDuration": "", "fleetSources": sources}
	if n > 0 {
		change["fleetConcurrency"], change["fleetGrantDuration"] = fmt.Sprint(n), grantDuration.String()
	}
	f.setPolicy(t, change)
	for _, name := range memberNames {
		require.NoError(t, wait.PollUntilContextTimeout(context.Background(), tick, patience, true, func(context.Context) (bool, error) {
			st := f.Members[name].ledger(t)
			_, limited := st.Policy["safeConcurrency"]
			return limited == (n > 0) && (st.Policy["fleetSources"] != "") == (sources != ""), nil
		}), "%s does not go by the budget", name)
	}
}

func (s *testMember) ledger(t *testing.T) v1alpha1.SyncLedgerStatus {
	t.Helper()
	l := &v1alpha1.SyncLedger{}
	err := s.Get(context.Background(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, l)
	if client.IgnoreNotFound(err) != nil {
		require.NoError(t, err)
	}
	if l.Status == nil {
		return v1alpha1.SyncLedgerStatus{}
	}
	return *l.Status
}

// createImages has images made in a member, from a host.
func (s *testMember) createImages(t *testing.T, prefix, host string, n int) []*v1alpha1.VMDiskImage {
	t.Helper()
	images := make([]*v1alpha1.VMDiskImage, n)
	for i := range images {
		name := fmt.Sprintf("%s-%d", prefix, i)
		images[i] = &v1alpha1.VMDiskImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1alpha1.VMDiskImageSpec{
				Name: name, SourceType: v1alpha1.SourceHTTP, URL: "https://" + host + "/" + name, DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
			},
		}
		require.NoError(t, s.Create(t.Context(), images[i]))
	}
	return images
}

// holdImports keeps all imports from ending, until release or the end of the test.
func (s *testMember) holdImports(t *testing.T) (release func()) {
	t.Helper()
	release = s.InstantImporter().HoldImports(func(*cdiv1.DataVolume) bool { return true })
	t.Cleanup(release)
	return release
}

// awaitImages waits until images are as wanted.
func (s *testMember) awaitImages(t *testing.T, images []*v1alpha1.VMDiskImage, wanted string, is func(*v1alpha1.VMDiskImage) bool) {
	t.Helper()
	for _, img := range images {
		now := &v1alpha1.VMDiskImage{}
		require.True(t, testenv.Await(t, func() bool {
			require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(img), now))
			return is(now)
		}), "%s of %s is not %s: %s %s %s", img.Name, s.name, wanted, now.Status.Phase, now.Status.Reason, now.Status.Message)
	}
}

func hasSucceeded(img *v1alpha1.VMDiskImage) bool { return img.Status.Phase == v1alpha1.PhaseSucceeded }
