//go:build linux

// Package testenv starts the environment of tests of the agent: one member cluster with the agent's
// chart and an image source. It has the waits and builders that tests share. A test package shares
// one environment; each test has a namespace of its own.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// Patience bounds every wait of a test.
const Patience = controlplane.Patience

// A poll costs the API server 2 ms of CPU time. What takes seconds is polled less often, still
// often enough to see the phases that images pass through.
const (
	minPollInterval = 50 * time.Millisecond
	maxPollInterval = 150 * time.Millisecond
	// waitPerPoll is the part of a wait that one poll may add to it.
	waitPerPoll = 20
)

// computePollInterval returns the time to the next poll of a condition.
func computePollInterval(waited time.Duration) time.Duration {
	return min(max(waited/waitPerPoll, minPollInterval), maxPollInterval)
}

// Env is a member cluster for tests of the agent.
type Env struct {
	*member.Member
	// Source answers HEAD requests for images by the first element of the path: /gone/ 404,
	// /removed/ 410, /denied/ 403, /silent/ never, others 200. Simulated importers use the same
	// path, see package simulator.
	Source *httptest.Server
	// Agent is the running agent; nil for none.
	Agent *program.Agent

	mu           sync.Mutex
	headRequests map[string]int
}

// Start starts an environment with the agent's chart, without an agent.
func Start(ctx context.Context, o member.Options) (_ *Env, err error) {
	ctrl.SetLogger(logr.Discard())
	if o.Scheme == nil {
		o.Scheme = runtime.NewScheme()
	}
	if err := v1alpha1.AddToScheme(o.Scheme); err != nil {
		return nil, err
	}
	s := &Env{headRequests: map[string]int{}}
	if s.Member, err = member.Start(ctx, o); err != nil {
		return nil, err
	}
	if err := program.InstallAgent(ctx, s.ControlPlane, nil); err != nil {
		return nil, errors.Join(err, s.Member.Stop())
	}
	s.Source = httptest.NewServer(http.HandlerFunc(s.serveHead))
	return s, nil
}

// Stop ends the environment.
func (s *Env) Stop() error {
	s.Source.CloseClientConnections()
	s.Source.Close()
	return s.Member.Stop()
}

// RunTests runs the tests of a package in an environment, optionally with an agent. Use it in
// TestMain.
func RunTests(m *testing.M, at **Env, o member.Options, withAgent bool) {
	RunTestsWith(m, func(ctx context.Context) (stop func() error, err error) {
		s, err := Start(ctx, o)
		if err != nil {
			return nil, err
		}
		*at = s
		if !withAgent {
			return s.Stop, nil
		}
		if err := s.StartAgent(); err != nil {
			return s.Stop, err
		}
		return func() error {
			s.Agent.Kill()
			return s.Stop()
		}, nil
	})
}

// RunTestsWith runs the tests of a package with a shared setup. stop ends it, also what start has
// begun when it fails.
func RunTestsWith(m *testing.M, start func(context.Context) (stop func() error, err error)) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(func() int {
		stop, err := start(context.Background())
		if stop != nil {
			defer func() {
				if err := stop(); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
			}()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// StartAgent starts the agent.
func (s *Env) StartAgent() (err error) {
	s.Agent, err = program.StartAgent(context.Background(), s.ControlPlane, program.Options{LeaseDuration: program.StableLease, Log: os.Getenv("OT_FLEET_AGENT_LOG")})
	return err
}

// WithoutAgent calls do while no agent runs.
func (s *Env) WithoutAgent(t *testing.T, do func()) {
	t.Helper()
	require.NoError(t, s.Agent.Stop(Patience))
	t.Cleanup(func() { // also when do ends the test
		select {
		case <-s.Agent.Done():
			require.NoError(t, s.StartAgent())
		default:
		}
	})
	do()
	require.NoError(t, s.StartAgent())
}

func (s *Env) serveHead(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead { // and not the GET that confirms a refusal
		s.mu.Lock()
		s.headRequests[r.URL.Path]++
		s.mu.Unlock()
	}
	switch strings.Split(r.URL.Path, "/")[1] {
	case "gone":
		w.WriteHeader(http.StatusNotFound)
	case "removed":
		w.WriteHeader(http.StatusGone)
	case "denied":
		w.WriteHeader(http.StatusForbidden)
	case "tenant":
		if r.Header.Get("X-Tenant") != "blue" || r.Header.Get("Authorization") != "Bearer s3cr3t" {
			w.WriteHeader(http.StatusForbidden)
		}
	case "silent":
		<-r.Context().Done()
	}
}

// HeadRequests returns the number of HEAD requests for a path of the source.
func (s *Env) HeadRequests(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.headRequests[path]
}

// CreateNamespace creates a namespace for a test.
func (s *Env) CreateNamespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	require.NoError(t, s.Client().Create(t.Context(), ns))
	return ns.Name
}

// AllowSecrets lets the agent read the Secrets of a namespace, as its owner does.
func (s *Env) AllowSecrets(t *testing.T, namespace string) {
	t.Helper()
	require.NoError(t, s.Client().Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ot-agent-secrets"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "ot-agent-secrets"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "ot-agent", Namespace: program.AgentNamespace}},
	}))
}

// NewImage is an image of a path of the source that was not created yet.
func (s *Env) NewImage(namespace, name, path string) *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: s.Source.URL + path,
			DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
		},
	}
}

// NewSnapshottedImage is NewImage with a snapshot class.
func (s *Env) NewSnapshottedImage(namespace, name, path string) *v1alpha1.VMDiskImage {
	img := s.NewImage(namespace, name, path)
	img.Spec.SnapshotClass = "sim-snapclass"
	return img
}

// Create creates objects in order.
func (s *Env) Create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		require.NoError(t, s.Client().Create(t.Context(), o))
	}
}

// conflictBackoff retries updates of objects that controllers write often.
var conflictBackoff = wait.Backoff{Steps: 30, Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Cap: time.Second}

// Update changes a stored object and retries on conflict, also in a test's Cleanup.
func (s *Env) Update(t *testing.T, o client.Object, change func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, retry.RetryOnConflict(conflictBackoff, func() error {
		if err := s.Client().Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change()
		return s.Client().Update(ctx, o)
	}))
}

// AwaitImage reads an image until it meets a condition.
func (s *Env) AwaitImage(t *testing.T, img *v1alpha1.VMDiskImage, wanted func(*v1alpha1.VMDiskImage) bool) *v1alpha1.VMDiskImage {
	t.Helper()
	got, held := AwaitObject(t, s.Client(), client.ObjectKeyFromObject(img), wanted)
	if !held {
		require.Failf(t, "image is not as wanted", "%s/%s was last seen %s, %s: %s\n%+v\n%s", img.Namespace, img.Name, got.Status.Phase, got.Status.Reason, got.Status.Message, got.Status.Revisions,
			s.DescribeImports(context.WithoutCancel(t.Context()), img.Namespace))
	}
	return got
}

// AwaitGone waits until an object is deleted.
func (s *Env) AwaitGone(t *testing.T, o client.Object) {
	t.Helper()
	key := client.ObjectKeyFromObject(o)
	require.True(t, AwaitCondition(t, func() bool { return apierrors.IsNotFound(s.Client().Get(t.Context(), key, o)) }), "%T %s is still there: finalizers %v", o, key, o.GetFinalizers())
}

// AwaitCondition polls until a condition holds and reports whether it did within Patience, also in a test's
// Cleanup.
func AwaitCondition(t *testing.T, condition func() bool) bool {
	t.Helper()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for start := time.Now(); time.Since(start) < Patience; {
		next := time.Now().Add(computePollInterval(time.Since(start)))
		if condition() {
			return true
		}
		timer.Reset(time.Until(next))
		<-timer.C
	}
	return false
}

// InPhase matches an image's phase.
func InPhase(phase v1alpha1.Phase) func(*v1alpha1.VMDiskImage) bool {
	return func(img *v1alpha1.VMDiskImage) bool { return img.Status.Phase == phase }
}

// HasReason matches an image's reason.
func HasReason(reason v1alpha1.Reason) func(*v1alpha1.VMDiskImage) bool {
	return func(img *v1alpha1.VMDiskImage) bool { return img.Status.Reason == reason }
}

// PolicyConfigMap returns the policy ConfigMap.
func (s *Env) PolicyConfigMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: program.PolicyNamespace, Name: program.PolicyName}}
}

// Ledger returns the stored SyncLedger; an empty one for none.
func (s *Env) Ledger(t *testing.T) *v1alpha1.SyncLedger {
	t.Helper()
	l := &v1alpha1.SyncLedger{}
	require.NoError(t, client.IgnoreNotFound(s.Client().Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, l)))
	if l.Status == nil {
		l.Status = &v1alpha1.SyncLedgerStatus{}
	}
	return l
}

// SetPolicy stores a policy and waits until the agent has acknowledged it, valid or not.
func (s *Env) SetPolicy(t *testing.T, data map[string]string) {
	t.Helper()
	cm := s.StorePolicy(t, data)
	require.True(t, AwaitCondition(t, func() bool {
		l := s.Ledger(t)
		return l.Status.PolicyUID == cm.UID && l.Status.PolicyVersion == cm.ResourceVersion
	}), "the agent has not acknowledged policy %v", data)
}

// SourceNetwork is where the sources of tests are. The preflight asks them only where the
// policy's preflightAllow lists it.
const SourceNetwork = "127.0.0.0/8"

// StorePolicy creates or replaces the policy ConfigMap. Without preflightAllow of its own,
// it lists SourceNetwork.
func (s *Env) StorePolicy(t *testing.T, data map[string]string) *corev1.ConfigMap {
	t.Helper()
	if _, set := data[policy.KeyPreflightAllow]; !set {
		data = maps.Clone(data)
		data[policy.KeyPreflightAllow] = SourceNetwork
	}
	cm := s.PolicyConfigMap()
	err := s.Client().Get(t.Context(), client.ObjectKeyFromObject(cm), cm)
	cm.Data = data
	if apierrors.IsNotFound(err) {
		s.Create(t, cm)
		return cm
	}
	require.NoError(t, err)
	s.Update(t, cm, func() { cm.Data = data })
	return cm
}

// StartObserver observes the cluster until the test ends.
func (s *Env) StartObserver(t *testing.T) *observer.Observer {
	t.Helper()
	o, err := observer.Start(context.Background(), s.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(o.Stop)
	return o
}

// History returns all events that an observer has recorded.
func History(t *testing.T, o *observer.Observer) observer.History {
	t.Helper()
	h, err := o.History(t.Context())
	require.NoError(t, err)
	return h
}
