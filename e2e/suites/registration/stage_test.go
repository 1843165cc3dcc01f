//go:build linux

// Package registration_test runs a real agent in pull mode against a hub. Only it shows
// that the agent registers with what kubectl alone can do and survives kills meanwhile,
// that it recovers from a lost hub or credential, and that a member changes modes.
package registration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// testFleet is a hub, and a cluster whose agent it does not know yet.
type testFleet struct {
	Plane *controlplane.ControlPlane
	// Client reaches the hub's API server with all rights.
	client.Client
	Hub    *program.Hub
	member *member.Member
	// Link is how the agent reaches the hub.
	Link *faults.Link
	// memberName that the member has in a test: the namespace of the one before is still being
	// removed. tests are those that have begun.
	memberName string
	testCount  int
	// join token that was used last.
	lastToken string
}

// leaseDuration of the agents that lead. A shorter one is lost on a busy machine.
const leaseDuration = 15 * time.Second

var shared *testFleet

func TestMain(m *testing.M) {
	ctx := context.Background()
	s, err := startFleet(ctx)
	code := 1
	if err == nil {
		shared = s
		code = m.Run()
	}
	if err := errors.Join(err, s.stop()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func startFleet(ctx context.Context) (s *testFleet, err error) {
	s = &testFleet{}
	if s.Plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
		return s, err
	}
	if s.Client, err = client.New(s.Plane.Config(), client.Options{Scheme: testenv.NewScheme()}); err != nil {
		return s, err
	}
	if err := program.InstallHub(ctx, s.Plane, map[string]any{"policy": map[string]any{"data": map[string]any{
		"concurrency": "3", "retryLimit": "0", "retryBackoffDuration": "1s", "preflight": "false",
	}}}); err != nil {
		return s, err
	}
	if s.Link, err = faults.StartLink(s.Plane.Config()); err != nil {
		return s, err
	}
	if s.member, err = member.Start(ctx, member.Options{
		Name: "behind-nat", InstantImporter: true, Controllers: []string{"serviceaccount-token-controller"}, Scheme: testenv.NewScheme(),
	}); err != nil {
		return s, err
	}
	s.member.InstantImporter().AllowFinishes(1 << 20)
	if err := program.InstallAgent(ctx, s.member.ControlPlane, map[string]any{
		"policy": map[string]any{"create": false}, "hub": map[string]any{"serviceAccount": map[string]any{"create": true}},
	}); err != nil {
		return s, err
	}
	s.Hub, err = program.StartHub(ctx, s.Plane, program.Options{Log: os.Getenv("OT_FLEET_HUB_LOG"), Args: []string{"--probe-interval=1s", "--member-timeout=3s"}})
	return s, err
}

func (s *testFleet) stop() error {
	var errs []error
	if s.Hub != nil {
		errs = append(errs, s.Hub.Stop(time.Minute))
	}
	if s.Link != nil {
		s.Link.Close()
	}
	if s.member != nil {
		errs = append(errs, s.member.Stop())
	}
	if s.Plane != nil {
		errs = append(errs, s.Plane.Stop())
	}
	return errors.Join(errs...)
}

// startAgent runs one until the test ends, at the latest; through is its own API server's
// proxy, nil for none.
func (s *testFleet) startAgent(t *testing.T, through *faults.Proxy, args ...string) *program.Agent {
	t.Helper()
	// The former leader has ended or is paused: the new agent need not wait for its Lease.
	require.NoError(t, program.DeleteAgentLease(t.Context(), s.member.Client()))
	o := program.Options{LeaseDuration: leaseDuration, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: append([]string{"--report-heartbeat=2s"}, args...)}
	if through != nil {
		o.ConfigureClient = through.Redirect
	}
	a, err := program.StartAgent(t.Context(), s.member.ControlPlane, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		select {
		case <-a.Done():
		default: // a hub waits a while for the farewell of one that is gone
			s.removeMember(t)
		}
		a.Kill()
		<-a.Done()
	})
	return a
}

// createMember makes a MemberCluster for as long as the test runs.
func (s *testFleet) createMember(t *testing.T, pull *v1alpha1.MemberPull) {
	t.Helper()
	s.createMemberWith(t, v1alpha1.MemberConnection{Pull: pull})
}

func (s *testFleet) createMemberWith(t *testing.T, connection v1alpha1.MemberConnection) {
	t.Helper()
	s.nameMember(t)
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: s.memberName}, Spec: v1alpha1.MemberClusterSpec{Connection: connection}}
	require.NoError(t, s.Create(t.Context(), m))
}

// nameMember names the member of a test, which goes with it.
func (s *testFleet) nameMember(t *testing.T) {
	t.Helper()
	s.testCount++
	s.memberName, s.lastToken = fmt.Sprintf("behind-nat-%d", s.testCount), ""
	t.Cleanup(func() { s.cleanUp(t) })
}

// namespace of the member on the hub.
func (s *testFleet) namespace() string { return v1alpha1.MemberNamespacePrefix + s.memberName }

// cleanUp takes away whatever a test has left, on both ends. The agent is gone.
func (s *testFleet) cleanUp(t *testing.T) {
	s.removeMember(t)
	s.deleteMemberState(t)
}

// removeMember has the hub let go of the member: two of them would be one cluster.
func (s *testFleet) removeMember(t *testing.T) {
	ctx := context.Background()
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: s.memberName}}
	require.NoError(t, client.IgnoreNotFound(s.Delete(ctx, m)))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(s.Get(ctx, client.ObjectKeyFromObject(m), m))
	}, testenv.Patience, 50*time.Millisecond, "the member does not go")
}

// deleteMemberState takes from the member what an agent has stored, and a hub.
func (s *testFleet) deleteMemberState(t *testing.T) {
	ctx := context.Background()
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: registration.JoinSecret}}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: registration.CredentialSecret}},
		&v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}}, &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}},
	} {
		o.SetNamespace(program.AgentNamespace)
		require.NoError(t, client.IgnoreNotFound(s.member.Client().Delete(ctx, o)))
	}
}

// putJoinToken puts the next join token into the member, by way of the link, or of a proxy
// in front of the hub.
func (s *testFleet) putJoinToken(t *testing.T, through *faults.Proxy) {
	t.Helper()
	access, err := program.AwaitJoinToken(t.Context(), s, s.memberName, s.lastToken)
	require.NoError(t, err, testenv.DescribeMember(testenv.GetMember(t, s, s.memberName)))
	s.lastToken = access.Token
	if through != nil {
		access.Server, access.CA = through.Endpoint()
	} else {
		cfg := s.Plane.Config()
		s.Link.Redirect(cfg)
		access.Server = cfg.Host
	}
	require.NoError(t, program.PutJoinToken(t.Context(), s.member.Client(), program.AgentNamespace, access))
}

// updateMember changes the MemberCluster.
func (s *testFleet) updateMember(t *testing.T, how func(*v1alpha1.MemberCluster)) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		m := testenv.GetMember(t, s, s.memberName)
		how(m)
		return s.Update(t.Context(), m)
	}))
}

// requestJoinToken asks for another join token.
func (s *testFleet) requestJoinToken(t *testing.T) {
	t.Helper()
	s.updateMember(t, func(m *v1alpha1.MemberCluster) {
		n, _ := strconv.Atoi(m.Annotations[v1alpha1.AnnotationJoinToken])
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationJoinToken, strconv.Itoa(n+1))
	})
}

// awaitHubConnected waits until the ledger says how the agent is connected, and returns the words.
func (s *testFleet) awaitHubConnected(t *testing.T, status metav1.ConditionStatus, reason string) string {
	t.Helper()
	var c *metav1.Condition
	require.True(t, testenv.Await(t, func() bool {
		c = s.hubConnectedCondition(t)
		return c != nil && c.Status == status && c.Reason == reason
	}), "HubConnected is %+v, want %s %s", c, status, reason)
	return c.Message
}

// hubConnectedCondition is HubConnected, nil for none.
func (s *testFleet) hubConnectedCondition(t *testing.T) *metav1.Condition {
	t.Helper()
	ledger := &v1alpha1.SyncLedger{}
	if s.member.Client().Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, ledger) != nil || ledger.Status == nil {
		return nil
	}
	return meta.FindStatusCondition(ledger.Status.Conditions, v1alpha1.ConditionHubConnected)
}

// awaitMemberReady waits until the hub has the member's report, and its plan is acknowledged.
func (s *testFleet) awaitMemberReady(t *testing.T) *v1alpha1.MemberCluster {
	t.Helper()
	return testenv.AwaitMember(t, s, s.memberName, "ready; the hub's log is "+s.Hub.LogFile(), func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) && m.Status.Budget != nil && *m.Status.Budget == 3
	})
}

// awaitJoined waits until an agent has dialled in with the credential that is stored, and
// the hub says so.
func (s *testFleet) awaitJoined(t *testing.T) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool {
		token, err := registration.ParseTokenClaims(s.storedCredential(t))
		lease := &coordinationv1.Lease{}
		return err == nil && s.Get(t.Context(), client.ObjectKey{Namespace: s.namespace(), Name: registration.LeaseName}, lease) == nil &&
			lease.Spec.HolderIdentity != nil && registration.AccountOfHolder(*lease.Spec.HolderIdentity) == token.AccountUID
	}), "no agent renews its Lease with the stored token")
	testenv.AwaitMember(t, s, s.memberName, "joined", func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionJoined)
		return c != nil && c.Reason == v1alpha1.ReasonJoined && c.Status == metav1.ConditionTrue
	})
}

// createImage creates one in the member for as long as the test runs.
func (s *testFleet) createImage(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: "http://images.example.com/" + name,
			DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
		},
	}
	require.NoError(t, s.member.Client().Create(t.Context(), img))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(s.member.Client().Delete(context.Background(), img))) })
	return img
}

// getPlan returns the one in a namespace, nil for none.
func getPlan(t *testing.T, c client.Reader, namespace string) *v1alpha1.ClusterPlan {
	t.Helper()
	p := &v1alpha1.ClusterPlan{}
	err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.MailboxName}, p)
	require.NoError(t, client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return p
}
