//go:build linux

package prunereport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// patience is how long a test waits for what is bound to come. It is long: a busy
// machine is no failure.
const (
	waitTimeout  = 3 * time.Minute
	pollInterval = 20 * time.Millisecond
)

// testEnv is an API server with the hub's other controllers. Each test has members of
// its own.
type testEnv struct {
	client.Client // without a cache
	mgr           ctrl.Manager
	plane         *controlplane.ControlPlane
	cancel        context.CancelFunc
	ended         chan error
	store         *report.Store
	index         *inventory.Index
	rollouts      *rollout.FleetState
	pages         *report.Reconciler
}

var shared struct {
	once sync.Once
	*testEnv
	err error
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code := m.Run()
	if shared.testEnv != nil {
		shared.stop()
	}
	os.Exit(code)
}

func sharedEnv(t *testing.T) *testEnv {
	t.Helper()
	shared.once.Do(func() { shared.testEnv, shared.err = startEnv(context.Background()) })
	require.NoError(t, shared.err)
	return shared.testEnv
}

func startEnv(ctx context.Context) (s *testEnv, err error) {
	s = &testEnv{ended: make(chan error, 1)}
	s.plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", BeforeControllers: func(ctx context.Context, cfg *rest.Config) error {
		chart := filepath.Join("..", "..", "..", "charts", "ot-hub", "files")
		return controlplane.InstallCRDFiles(ctx, cfg, filepath.Join(chart, "crds"), filepath.Join(chart, "mailbox"))
	}})
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return s, err
	}
	cfg := s.plane.Config()
	if s.Client, err = client.New(cfg, client.Options{Scheme: scheme}); err != nil {
		return s, err
	}
	if s.mgr, err = ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}}); err != nil {
		return s, err
	}
	s.store, s.index = report.NewStore(), inventory.NewIndex()
	s.rollouts = rollout.NewFleetState(s.store.HasSynced)
	s.store.OnSynced(s.rollouts.EnqueueIfReady)
	s.pages = s.newPages(s.Client, s.index, s.store, s.rollouts)
	rollouts := &rollout.Reconciler{
		Client: s.mgr.GetClient(), Live: s.Client, Events: s.mgr.GetEventRecorder("test"), Metrics: metrics.New(prometheus.NewRegistry()), State: s.rollouts,
	}
	if err := errors.Join(s.pages.Setup(s.mgr), rollouts.Setup(s.mgr)); err != nil {
		return s, err
	}
	for _, o := range []client.Object{&v1alpha1.PruneReport{}, &v1alpha1.ImagePrune{}} {
		if _, err := s.mgr.GetCache().GetInformer(ctx, o); err != nil {
			return s, err
		}
	}
	ctx, s.cancel = context.WithCancel(ctx)
	go func() { s.ended <- s.mgr.Start(ctx) }()
	return s, nil
}

// newPages returns a reader of the reports.
func (s *testEnv) newPages(live client.Client, index *inventory.Index, store *report.Store, readers ...report.Reader) *report.Reconciler {
	pages := report.New(s.mgr.GetCache(), live, s.mgr.GetEventRecorder("test"), metrics.NewReports(prometheus.NewRegistry()), index, store, readers...)
	pages.Heartbeats.SetReplicas(nil) // there are none
	return pages
}

func (s *testEnv) stop() {
	if s.cancel != nil {
		s.cancel()
		if err := <-s.ended; err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if err := s.plane.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// process is the memory of a hub. Another one is the restarted hub.
type process struct {
	*testEnv
	t       *testing.T
	tracker *prunetracker.Tracker
	reports *Reconciler
}

// newProcess returns a hub that was elected when the expected objects were stored. Each
// of its writes passes through fault.
func (s *testEnv) newProcess(t *testing.T, fault func(verb string, o client.Object) error, expected ...prunetracker.Object) *process {
	if fault == nil {
		fault = func(string, client.Object) error { return nil }
	}
	through := &faultyClient{s.mgr.GetClient(), fault}
	p := &process{testEnv: s, t: t, tracker: prunetracker.New()}
	p.tracker.ExpectStored(expected)
	events := s.mgr.GetEventRecorder("test")
	p.reports = &Reconciler{Client: through, Live: s.Client, Events: events, Tracker: p.tracker, Roots: s.store, Pages: s.pages, Index: s.index, Rollouts: s.rollouts}
	return p
}

// faultyClient fails a write where fault does.
type faultyClient struct {
	client.Client
	fault func(verb string, o client.Object) error
}

func (f *faultyClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := f.fault("create", o); err != nil {
		return err
	}
	return f.Client.Create(ctx, o, opts...)
}

func (f *faultyClient) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := f.fault("delete", o); err != nil {
		return err
	}
	return f.Client.Delete(ctx, o, opts...)
}

func (f *faultyClient) Status() client.SubResourceWriter {
	return faultyStatus{f.Client.Status(), f.fault}
}

type faultyStatus struct {
	client.SubResourceWriter
	fault func(verb string, o client.Object) error
}

func (f faultyStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := f.fault("status", o); err != nil {
		return err
	}
	return f.SubResourceWriter.Update(ctx, o, opts...)
}

var errRefused = errors.New("the API server does not answer")

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, waitTimeout, pollInterval, what)
}

// addMember creates an online member.
func (s *testEnv) addMember(t *testing.T, name string, cluster types.UID) {
	t.Helper()
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MemberClusterSpec{
		Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}},
	}}
	require.NoError(t, s.Create(t.Context(), m))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MemberNamespacePrefix + name, Labels: map[string]string{v1alpha1.LabelMember: name}}}
	require.NoError(t, s.Create(t.Context(), ns))
	s.setCluster(t, name, cluster)
	eventually(t, "the FleetState knows the member", func() bool {
		_, known := s.rollouts.ForMember(name)
		return known
	})
}

// setCluster changes which cluster a member is.
func (s *testEnv) setCluster(t *testing.T, name string, cluster types.UID) {
	t.Helper()
	m := &v1alpha1.MemberCluster{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: name}, m))
	m.Status.ClusterUID, m.Status.Namespace = cluster, v1alpha1.MemberNamespacePrefix+name
	m.Status.Conditions = nil
	for _, c := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
			Type: c, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.NewTime(apitest.Epoch),
		})
	}
	require.NoError(t, s.Status().Update(t.Context(), m))
	cached := &v1alpha1.MemberCluster{}
	eventually(t, "the cache shows the member", func() bool {
		return s.mgr.GetClient().Get(t.Context(), client.ObjectKey{Name: name}, cached) == nil && cached.ResourceVersion == m.ResourceVersion
	})
}

// writePlan writes the requests to a member into its plan and returns its version.
func (p *process) writePlan(name string, cluster types.UID) v1alpha1.PlanVersion {
	p.t.Helper()
	inquiries, prunes, known := p.tracker.ForMember(name)
	require.True(p.t, known)
	written := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + name, Name: v1alpha1.MailboxName}}
	require.NoError(p.t, client.IgnoreNotFound(p.Get(p.t.Context(), client.ObjectKeyFromObject(written), written)))
	s := &written.Spec
	s.ClusterUID, s.Prunes, s.Epoch = cluster, prunes, 1
	s.Sequence++
	former := s.Inquiries
	s.Inquiries = nil
	for _, uid := range inquiries {
		q := v1alpha1.PlanInquiry{UID: uid, Epoch: s.Epoch, Sequence: s.Sequence}
		for _, known := range former {
			if known.UID == uid {
				q = known
			}
		}
		s.Inquiries = append(s.Inquiries, q)
	}
	s.Hash = plan.Hash(s)
	if written.ResourceVersion == "" {
		require.NoError(p.t, p.Create(p.t.Context(), written))
	} else {
		require.NoError(p.t, p.Update(p.t.Context(), written))
	}
	cached := &v1alpha1.ClusterPlan{}
	eventually(p.t, "the cache shows the plan", func() bool {
		return p.mgr.GetClient().Get(p.t.Context(), client.ObjectKeyFromObject(written), cached) == nil && cached.ResourceVersion == written.ResourceVersion
	})
	return s.PlanVersion
}

// writeReport reports images on one page, answering a plan.
func (s *testEnv) writeReport(t *testing.T, name string, cluster types.UID, plan v1alpha1.PlanVersion, sequence int64, images ...v1alpha1.ReportedImage) {
	t.Helper()
	put := func(o *v1alpha1.ClusterReport) {
		o.Namespace, o.ClusterUID, o.Sequence = v1alpha1.MemberNamespacePrefix+name, cluster, sequence
		stored := &v1alpha1.ClusterReport{}
		require.NoError(t, client.IgnoreNotFound(s.Get(t.Context(), client.ObjectKeyFromObject(o), stored)))
		if o.ResourceVersion = stored.ResourceVersion; o.ResourceVersion == "" {
			require.NoError(t, s.Create(t.Context(), o))
		} else {
			require.NoError(t, s.Update(t.Context(), o))
		}
	}
	put(&v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Name: "page"}, Page: &v1alpha1.ReportPage{Images: images}})
	put(&v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}, Root: &v1alpha1.ReportRoot{
		ObservedAt: metav1.NewTime(apitest.Epoch), HeartbeatSeconds: 30, BootID: "boot", AgentVersion: "test",
		Plan: &plan, AnsweredPlan: &plan, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: sequence, Images: int32(len(images))}},
	}})
	eventually(t, "the report is read", func() bool { return s.store.Root(name).Sequence == sequence && s.index.UnknownReason(name) == "" })
}
