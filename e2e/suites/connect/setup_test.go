//go:build linux

// Package connect runs the hub's connections, credentials and discovery in-process against real API
// servers, with exactly the permissions of the hub's chart. Only real API servers show refused
// credentials, hung connections, restarted watches and CRDs that come and go.
package connect

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/controllers/discovery"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

const (
	hubNamespace   = "ot-hub"
	agentNamespace = "ot-agent"

	patience = testenv.Patience
	tick     = 50 * time.Millisecond
	// fleetLabel selects Clusters, as the chart's clusterAPI.selector does.
	fleetLabel = "pelotech.ot/fleet"
	// timeout of requests is more than a busy machine takes to answer one.
	timeout = 5 * time.Second
	// renewAfter is the age at which tokens are renewed.
	renewAfter = 2 * time.Second
)

// plane is an API server with a client that has all permissions.
type plane struct {
	*controlplane.ControlPlane
	client.Client
}

// The hub's API server, a member that works, and a member that fails. The hub's does not serve the
// mailbox at first.
var hubPlane, steadyPlane, faultyPlane plane

var memberProvider *memberclient.Provider

// credentialProblems are the reasons why members have no credential.
var credentialProblems = &connection.CredentialProblems{}

// rotations has condition CredentialRotated of members.
var rotations = &connection.Rotations{}

// seenReports are the ClusterReports whose events a controller of multicluster-runtime got, as
// member/name.
var seenReports sync.Map

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop, err := startPlanes(ctx)
	defer stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func startPlanes(ctx context.Context) (stop func(), err error) {
	planes, err := controlplane.StartAll(ctx,
		controlplane.Options{Name: "hub", BeforeControllers: installCRDs(hubCRDs)},
		controlplane.Options{Name: "steady", BeforeControllers: installCRDs(mailboxCRDs)},
		controlplane.Options{Name: "mortal", BeforeControllers: installCRDs(mailboxCRDs)},
	)
	if err != nil {
		return func() {}, err
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	stop = func() {
		cancel()
		running.Wait()
		for _, p := range planes {
			_ = p.Stop()
		}
	}
	for i, p := range []*plane{&hubPlane, &steadyPlane, &faultyPlane} {
		p.ControlPlane = planes[i]
		if p.Client, err = client.New(planes[i].Config(), client.Options{Scheme: scheme}); err != nil {
			return stop, err
		}
		for _, name := range []string{hubNamespace, agentNamespace, "sync-operator"} {
			if err := p.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
				return stop, err
			}
		}
	}
	mgr, err := newManager(ctx)
	if err != nil {
		return stop, err
	}
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			panic(err)
		}
	})
	return stop, nil
}

const (
	hubCRDs     = "ot-hub/files/crds"
	mailboxCRDs = "ot-agent/files/mailbox"
)

func chartPath(path string) string { return filepath.Join("..", "..", "..", "charts", path) }

func installCRDs(path string) func(context.Context, *rest.Config) error {
	return func(ctx context.Context, cfg *rest.Config) error {
		return controlplane.InstallCRDFiles(ctx, cfg, chartPath(path))
	}
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s), clusterv1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
}()

// clusterRules name the members of one namespace as their Clusters. Another namespace's Clusters
// may not join.
var clusterRules = discovery.Rules{Namespaces: []string{"team-a", "team-b"}, OwnNames: []string{"team-a"}, LabelPrefixes: []string{"region", "tier", "zone"}}

// newManager is like the hub's, with shorter intervals.
func newManager(ctx context.Context) (mcmanager.Manager, error) {
	cfg, err := hubConfig(ctx)
	if err != nil {
		return nil, err
	}
	memberProvider = memberclient.New(memberclient.Options{
		RequestTimeout: timeout, ProbeInterval: 500 * time.Millisecond, ProbeTimeout: timeout, SyncTimeout: 10 * time.Second,
	})
	mgr, err := mcmanager.New(cfg, memberProvider, mcmanager.Options{
		Scheme:  scheme,
		Cache:   cache.Options{ByObject: connection.SecretCacheOptions(hubNamespace)},
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	mail := &trigger.Source[mcreconcile.Request]{}
	memberProvider.OnMailboxEvent(func(member string, e hubclient.Event) {
		mail.Enqueue(mcreconcile.Request{
			ClusterName: multicluster.ClusterName(member), Request: reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)},
		})
	})
	if err := mcbuilder.ControllerManagedBy(mgr).Named("seen").
		WatchesRawSource(mail).
		WithOptions(controller.TypedOptions[mcreconcile.Request]{NeedLeaderElection: ptr.To(false)}).
		Complete(mcreconcile.Func(func(_ context.Context, request mcreconcile.Request) (reconcile.Result, error) {
			seenReports.Store(request.ClusterName.String()+"/"+request.Name, true)
			return reconcile.Result{}, nil
		})); err != nil {
		return nil, err
	}
	chosen, err := labels.Parse(fleetLabel + "=true")
	if err != nil {
		return nil, err
	}
	local := mgr.GetLocalManager()
	replica := shard.NewReplica(hubPlane, shard.Options{
		Name: "connect", Namespace: hubNamespace, LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 2 * time.Second,
	})
	links := &shard.Links{Cached: local.GetCache()}
	return mgr, errors.Join(
		local.Add(memberProvider.Runnable(mgr)),
		local.Add(replica),
		setupAssignment(local, replica.Name()),
		connection.Setup(local, connection.Options{
			Namespace: hubNamespace, Members: memberProvider, Replica: replica, Links: links, Problems: credentialProblems, Rotations: rotations, RenewAfter: renewAfter,
			RetryRefused: time.Second, RetryFailed: 200 * time.Millisecond, RequestTimeout: timeout,
		}),
		discovery.Setup(mgr.GetLocalManager(), discovery.Options{
			Namespace: hubNamespace, Clusters: chosen, Rules: clusterRules, DeletionGrace: 5 * time.Second, ClusterAPIPollInterval: 200 * time.Millisecond,
		}),
	)
}

// setupAssignment stands in for the shard and relay controllers: it assigns all members to one
// replica and writes the provider's state to their MemberLinks.
func setupAssignment(mgr ctrl.Manager, replica string) error {
	changed := &trigger.Source[reconcile.Request]{}
	memberProvider.OnChange(func(name string) {
		changed.Enqueue(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
	})
	return ctrl.NewControllerManagedBy(mgr).Named("assign-all").
		For(&v1alpha1.MemberCluster{}).
		WatchesRawSource(changed).
		Complete(reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			if err := mgr.GetClient().Get(ctx, request.NamespacedName, &v1alpha1.MemberCluster{}); err != nil {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			namespace := v1alpha1.MemberNamespacePrefix + request.Name
			link := &v1alpha1.MemberLink{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName},
				Spec:       v1alpha1.MemberLinkSpec{Mode: v1alpha1.LinkPush, Replica: replica},
			}
			for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, link} {
				if err := hubPlane.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
					return reconcile.Result{}, err
				}
			}
			if err := hubPlane.Get(ctx, client.ObjectKeyFromObject(link), link); err != nil {
				return reconcile.Result{}, err
			}
			state := memberProvider.State(request.Name)
			link.Status = v1alpha1.MemberLinkStatus{Known: state.Known, Reachable: state.Reachable, Reason: state.Reason, Message: state.Message}
			return reconcile.Result{}, hubPlane.Client.Status().Update(ctx, link)
		}))
}

// connectionState returns the state of the connection to a member, or why it has none.
func connectionState(member string) memberclient.State {
	state := memberProvider.State(member)
	if fault, ok := credentialProblems.ForMember(member); ok && !state.Reachable {
		return memberclient.State{Known: true, Reason: fault.Reason, Message: fault.Message}
	}
	return state
}

// hubConfig has exactly the permissions of the hub's chart.
func hubConfig(ctx context.Context) (*rest.Config, error) {
	text, err := os.ReadFile(chartPath("ot-hub/files/rbac/role.yaml"))
	if err != nil {
		return nil, err
	}
	namespaces := strings.NewReplacer("namespace: hub-namespace", "namespace: "+hubNamespace, "namespace: policy-namespace", "namespace: sync-operator")
	objects := []client.Object{&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: "ot-hub"}}}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: hubNamespace, Name: "ot-hub"}}
	for document := range strings.SplitSeq(namespaces.Replace(string(text)), "\n---\n") {
		role := &rbacv1.Role{}
		if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), role); err != nil {
			return nil, err
		}
		meta := metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: role.Name}
		if role.Kind == "ClusterRole" {
			objects = append(objects, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: role.Rules},
				&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects})
		} else {
			objects = append(objects, &rbacv1.Role{ObjectMeta: meta, Rules: role.Rules},
				&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects})
		}
	}
	for _, obj := range objects {
		if err := hubPlane.Create(ctx, obj); err != nil {
			return nil, fmt.Errorf("creating %T %s: %w", obj, obj.GetName(), err)
		}
	}
	return hubPlane.ServiceAccountConfig(ctx, hubNamespace, "ot-hub")
}

// createAccount creates a service account for the hub in a member, as people do, and returns a
// kubeconfig with its token.
func createAccount(t *testing.T, p plane, name string) []byte {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: agentNamespace, Name: name}
	for _, obj := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"pelotech.ot"}, Resources: []string{"clusterplans", "transfergrants", "clusterreports"}, Verbs: []string{"get", "list", "watch"},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: agentNamespace, Name: name}},
		},
	} {
		if err := p.Create(t.Context(), obj); !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
	cfg, err := p.ServiceAccountConfig(t.Context(), agentNamespace, name)
	require.NoError(t, err)
	return newKubeconfig(t, cfg)
}

func newKubeconfig(t *testing.T, cfg *rest.Config) []byte {
	t.Helper()
	text, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	return text
}

// putSecret creates or replaces a kubeconfig Secret in the hub's namespace.
func putSecret(t *testing.T, name string, data []byte) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: name}, Data: map[string][]byte{"kubeconfig": data}}
	err := hubPlane.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = hubPlane.Update(t.Context(), secret)
	}
	require.NoError(t, err)
}

// createMember creates a MemberCluster until the test ends.
func createMember(t *testing.T, name string, c v1alpha1.MemberConnection) *v1alpha1.MemberCluster {
	t.Helper()
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MemberClusterSpec{Connection: c, AgentNamespace: agentNamespace}}
	require.NoError(t, hubPlane.Create(t.Context(), member))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(hubPlane.Delete(context.Background(), member))) })
	return member
}

// createSecretMember registers a member by a kubeconfig Secret.
func createSecretMember(t *testing.T, name string, data []byte) {
	t.Helper()
	putSecret(t, name, data)
	createMember(t, name, v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name, Key: "kubeconfig"}})
}

// awaitState waits until a member's connection has a reason.
func awaitState(t *testing.T, member, reason string) memberclient.State {
	t.Helper()
	var last memberclient.State
	require.Eventually(t, func() bool {
		last = connectionState(member)
		_, err := memberProvider.GetMember(member)
		return last.Known && last.Reason == reason && (err == nil || !last.Reachable)
	}, patience, tick, "state of %s: want %s, have %+v", member, reason, &last)
	return last
}

func awaitConnected(t *testing.T, member string) *memberclient.Member {
	t.Helper()
	require.True(t, awaitState(t, member, v1alpha1.ReasonConnected).Reachable)
	var m *memberclient.Member
	require.Eventually(t, func() (is bool) {
		var err error
		m, err = memberProvider.GetMember(member)
		return err == nil
	}, patience, tick, "member %s", member)
	return m
}

// createReport creates a page in a plane and waits until the hub sees it in members. label
// distinguishes it from the other pages of the plane.
func createReport(t *testing.T, p plane, label string, in ...string) {
	t.Helper()
	name := fmt.Sprintf("page-%032b", crc32.ChecksumIEEE([]byte(label)))
	obj := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: name}, Sequence: 1, ClusterUID: "uid", Page: &v1alpha1.ReportPage{}}
	require.NoError(t, p.Create(t.Context(), obj))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(p.Delete(context.Background(), obj))) })
	for _, member := range in {
		require.Eventually(t, func() bool { _, ok := seenReports.Load(member + "/" + name); return ok }, patience, tick, "ClusterReport %s of member %s", name, member)
	}
}

func listEvents(t *testing.T) []eventsv1.Event {
	t.Helper()
	var all eventsv1.EventList
	require.NoError(t, hubPlane.List(t.Context(), &all))
	return all.Items
}

// deleteRole deletes a Role in a member's agent namespace and returns it.
func deleteRole(t *testing.T, p plane, name string) *rbacv1.Role {
	t.Helper()
	role := &rbacv1.Role{}
	require.NoError(t, p.Get(t.Context(), client.ObjectKey{Namespace: agentNamespace, Name: name}, role))
	require.NoError(t, p.Delete(t.Context(), role))
	return role
}
