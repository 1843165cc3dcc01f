//go:build linux

// Package connect runs the hub's connections, credentials and discovery against
// real API servers, with exactly the rights of the hub's chart.
package connect

import (
	"context"
	"errors"
	"fmt"
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
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/scene"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/controllers/discovery"
	"github.com/pelotech/ot-fleet/hub/controllers/poke"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/members"
)

const (
	hubNamespace   = "ot-hub"
	agentNamespace = "ot-agent"

	patience = scene.Patience
	tick     = 50 * time.Millisecond
	// timeout of requests is more than what a busy machine takes to answer one.
	timeout = 5 * time.Second
	// renewAfter is the age of a token at which it is renewed here.
	renewAfter = 2 * time.Second
)

// plane is one API server, with a client of all rights.
type plane struct {
	*controlplane.ControlPlane
	client.Client
}

// The hub's API server, one member that nothing happens to, and one to which
// everything does. In the hub's the mailbox is not served at first.
var hub, steady, mortal plane

var provider *members.Provider

// faults are what keeps members from having a credential.
var faults = &connection.Faults{}

// seen are the ClusterReports whose events a controller on multicluster-runtime
// has got, as member/name.
var seen sync.Map

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop, err := start(ctx)
	defer stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func start(ctx context.Context) (stop func(), err error) {
	planes, err := controlplane.StartAll(ctx,
		controlplane.Options{Name: "hub", Prepare: install(hubCRDs)},
		controlplane.Options{Name: "steady", Prepare: install(mailboxCRDs)},
		controlplane.Options{Name: "mortal", Prepare: install(mailboxCRDs)},
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
	for i, p := range []*plane{&hub, &steady, &mortal} {
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
	mgr, err := manager(ctx)
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

func charts(path string) string { return filepath.Join("..", "..", "charts", path) }

func install(path string) func(context.Context, *rest.Config) error {
	return func(_ context.Context, cfg *rest.Config) error {
		_, err := envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{
			Paths: []string{charts(path)}, ErrorIfPathMissing: true, MaxTime: time.Minute, PollInterval: 50 * time.Millisecond,
		})
		return err
	}
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s), clusterv1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
}()

// manager is as the hub's, but quicker.
func manager(ctx context.Context) (mcmanager.Manager, error) {
	cfg, err := hubConfig(ctx)
	if err != nil {
		return nil, err
	}
	provider = members.New(members.Options{
		RequestTimeout: timeout, ProbeInterval: 500 * time.Millisecond, ProbeTimeout: timeout, SyncTimeout: 10 * time.Second,
	})
	mgr, err := mcmanager.New(cfg, provider, mcmanager.Options{
		Scheme:  scheme,
		Cache:   cache.Options{ByObject: connection.ByObject(hubNamespace)},
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	mail := &poke.Source[mcreconcile.Request]{}
	provider.OnMail(func(member string, o client.Object) {
		mail.Poke(mcreconcile.Request{
			ClusterName: multicluster.ClusterName(member), Request: reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)},
		})
	})
	if err := mcbuilder.ControllerManagedBy(mgr).Named("seen").
		WatchesRawSource(mail).
		WithOptions(controller.TypedOptions[mcreconcile.Request]{NeedLeaderElection: ptr.To(false)}).
		Complete(mcreconcile.Func(func(_ context.Context, request mcreconcile.Request) (reconcile.Result, error) {
			seen.Store(request.ClusterName.String()+"/"+request.Name, true)
			return reconcile.Result{}, nil
		})); err != nil {
		return nil, err
	}
	chosen, err := labels.Parse("fleet=ot")
	if err != nil {
		return nil, err
	}
	local := mgr.GetLocalManager()
	replica := shard.NewReplica(hub, shard.Options{
		Name: "connect", Namespace: hubNamespace, LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 2 * time.Second,
	})
	links := &shard.Links{Cached: local.GetCache()}
	return mgr, errors.Join(
		local.Add(provider.Runnable(mgr)),
		local.Add(replica),
		assignAll(local, replica.Name()),
		connection.Setup(local, connection.Options{
			Namespace: hubNamespace, Members: provider, Replica: replica, Links: links, Faults: faults, RenewAfter: renewAfter,
			RetryRefused: time.Second, RetryFailed: 200 * time.Millisecond, RequestTimeout: timeout,
		}),
		discovery.Setup(mgr.GetLocalManager(), discovery.Options{
			Namespace: hubNamespace, Clusters: chosen, Grace: 5 * time.Second, Poll: 200 * time.Millisecond,
		}),
	)
}

// assignAll stands for those that assign members and carry for them: it assigns all
// of them to one replica, and says of each what the provider does.
func assignAll(mgr ctrl.Manager, replica string) error {
	changed := &poke.Source[reconcile.Request]{}
	provider.OnChange(func(name string) {
		changed.Poke(reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
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
				if err := hub.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
					return reconcile.Result{}, err
				}
			}
			if err := hub.Get(ctx, client.ObjectKeyFromObject(link), link); err != nil {
				return reconcile.Result{}, err
			}
			state := provider.State(request.Name)
			link.Status = v1alpha1.MemberLinkStatus{Known: state.Known, Reachable: state.Reachable, Reason: state.Reason, Message: state.Message}
			return reconcile.Result{}, hub.Client.Status().Update(ctx, link)
		}))
}

// told is what is known of the connection to a member, or of why it has none.
func told(member string) members.State {
	state := provider.State(member)
	if fault, is := faults.Of(member); is && !state.Reachable {
		return members.State{Known: true, Reason: fault.Reason, Message: fault.Message}
	}
	return state
}

// hubConfig has the rights that the hub's chart gives, and no others.
func hubConfig(ctx context.Context) (*rest.Config, error) {
	text, err := os.ReadFile(charts("ot-hub/files/rbac/role.yaml"))
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
		if err := hub.Create(ctx, obj); err != nil {
			return nil, fmt.Errorf("creating %T %s: %w", obj, obj.GetName(), err)
		}
	}
	return hub.ServiceAccountConfig(ctx, hubNamespace, "ot-hub")
}

// account makes a hub's account in a member by hand, of its own name, and
// returns a kubeconfig with its token.
func account(t *testing.T, p plane, name string) []byte {
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
	return kubeconfig(t, cfg)
}

func kubeconfig(t *testing.T, cfg *rest.Config) []byte {
	t.Helper()
	text, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	return text
}

// put creates or replaces a kubeconfig Secret in the hub's namespace.
func put(t *testing.T, name string, data []byte) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: name}, Data: map[string][]byte{"kubeconfig": data}}
	err := hub.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = hub.Update(t.Context(), secret)
	}
	require.NoError(t, err)
}

// join makes a MemberCluster that goes when the test ends.
func join(t *testing.T, name string, c v1alpha1.MemberConnection) *v1alpha1.MemberCluster {
	t.Helper()
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MemberClusterSpec{Connection: c, AgentNamespace: agentNamespace}}
	require.NoError(t, hub.Create(t.Context(), member))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(hub.Delete(context.Background(), member))) })
	return member
}

// joinBySecret makes a member that is reached by a kubeconfig.
func joinBySecret(t *testing.T, name string, data []byte) {
	t.Helper()
	put(t, name, data)
	join(t, name, v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name, Key: "kubeconfig"}})
}

// state waits until a member is in a state for a reason.
func state(t *testing.T, member, reason string) members.State {
	t.Helper()
	var last members.State
	require.Eventually(t, func() bool {
		last = told(member)
		_, err := provider.Member(member)
		return last.Known && last.Reason == reason && (err == nil || !last.Reachable)
	}, patience, tick, "state of %s: want %s, have %+v", member, reason, &last)
	return last
}

func connected(t *testing.T, member string) *members.Member {
	t.Helper()
	require.True(t, state(t, member, v1alpha1.ReasonConnected).Reachable)
	var m *members.Member
	require.Eventually(t, func() (is bool) {
		var err error
		m, err = provider.Member(member)
		return err == nil
	}, patience, tick, "member %s", member)
	return m
}

// report makes a ClusterReport in a plane, and wants the hub to see it in all
// of the members.
func report(t *testing.T, p plane, name string, in ...string) {
	t.Helper()
	obj := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: name}, Sequence: 1, ClusterUID: "uid", Page: &v1alpha1.ReportPage{}}
	require.NoError(t, p.Create(t.Context(), obj))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(p.Delete(context.Background(), obj))) })
	for _, member := range in {
		require.Eventually(t, func() bool { _, ok := seen.Load(member + "/" + name); return ok }, patience, tick, "ClusterReport %s of member %s", name, member)
	}
}

func events(t *testing.T) []eventsv1.Event {
	t.Helper()
	var all eventsv1.EventList
	require.NoError(t, hub.List(t.Context(), &all))
	return all.Items
}

// takeRole deletes a Role in a member's agent namespace and returns what it was.
func takeRole(t *testing.T, p plane, name string) *rbacv1.Role {
	t.Helper()
	role := &rbacv1.Role{}
	require.NoError(t, p.Get(t.Context(), client.ObjectKey{Namespace: agentNamespace, Name: name}, role))
	require.NoError(t, p.Delete(t.Context(), role))
	return role
}
