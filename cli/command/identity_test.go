package command

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/why"
)

// TestMemberContextIsTheCluster: an answer of one member is never shown as that of another.
func TestMemberContextIsTheCluster(t *testing.T) {
	newMember := func(name string, uid types.UID) *v1alpha1.MemberCluster {
		return &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.MemberClusterStatus{ClusterUID: uid}}
	}
	fails := interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return errors.New("it does not answer")
	}}
	for name, test := range map[string]struct {
		system             types.UID
		cluster            string
		hubFails, noAnswer bool
		wantIt             bool
		wantError          string
	}{
		"the cluster":          {system: "1", cluster: "lab", wantIt: true},
		"another member":       {system: "2", cluster: "lab", wantError: "--member-context ctx: it is member edge, not lab: name a context of lab"},
		"no member":            {system: "3", cluster: "lab", wantError: "--member-context ctx: it is another cluster, not lab: name a context of lab"},
		"never reported":       {system: "2", cluster: "new"},
		"no MemberCluster":     {system: "2", cluster: "nope"},
		"the hub is away":      {system: "2", cluster: "lab", hubFails: true},
		"the member is closed": {system: "2", cluster: "lab", noAnswer: true},
	} {
		t.Run(name, func(t *testing.T) {
			onHub := fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(newMember("lab", "1"), newMember("edge", "2"), newMember("new", ""))
			onMember := fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: test.system}})
			if test.hubFails {
				onHub.WithInterceptorFuncs(fails)
			}
			if test.noAnswer {
				onMember.WithInterceptorFuncs(fails)
			}
			isIt, err := checkIdentity(t.Context(), &connect.Cluster{Client: onHub.Build()}, &connect.Cluster{Context: "ctx", Client: onMember.Build()}, test.cluster)
			assert.Equal(t, test.wantIt, isIt)
			if test.wantError == "" {
				require.NoError(t, err)
				return
			}
			assert.EqualError(t, err, test.wantError)
		})
	}
}

// TestInterruptEndsTheComparison: who gives up does not wait for a hub that does not answer.
func TestInterruptEndsTheComparison(t *testing.T) {
	asked := make(chan struct{}, 10)
	serveContexts(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}, "hub", "edge")
	e, _, _ := newTestEnvironment("")
	e.Flags = connect.NewFlags()
	e.Member = "edge"
	ctx, interrupt := context.WithCancel(t.Context())
	go func() { <-asked; interrupt() }()
	connected := make(chan error, 1)
	go func() {
		_, err := e.ConnectMember(ctx, "lab")
		connected <- err
	}()
	select {
	case err := <-connected:
		require.NoError(t, err)
		assert.True(t, e.compared, "each poll of -w would wait for it again")
	case <-time.After(time.Minute):
		t.Fatal("it waits for the hub")
	}
}

// TestWriteComparesAgain: a comparison that did not end lets a command read, and not write to another member.
func TestWriteComparesAgain(t *testing.T) {
	kind := metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MemberCluster"}
	lab := v1alpha1.MemberCluster{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Name: "lab"}, Status: v1alpha1.MemberClusterStatus{ClusterUID: "1"}}
	edge := v1alpha1.MemberCluster{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: v1alpha1.MemberClusterStatus{ClusterUID: "2"}}
	answers := answersOf(lab, edge)
	answers["/apis/"+v1alpha1.GroupVersion.String()+"/memberclusters/lab"] = lab
	answers["/api/v1/namespaces/"+metav1.NamespaceSystem] = corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "2"}}
	hangs := atomic.Bool{}
	hangs.Store(true)
	asked := make(chan struct{}, 10)
	serveContexts(t, func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		assert.Equal(t, http.MethodGet, r.Method, "nothing may be written")
		answerWith(t, answers)(w, r)
	}, "hub", "edge")
	e, _, _ := newTestEnvironment("")
	e.Flags = connect.NewFlags()
	e.cluster, e.live, e.Member = "lab", true, "edge"
	reading, timeOut := context.WithCancel(t.Context())
	go func() { <-asked; timeOut() }()
	_, err := e.ConnectMember(reading, e.cluster)
	require.NoError(t, err)
	hangs.Store(false)
	err = e.createInMember(t.Context(), apitest.FleetDiskImage("ubuntu").Obj(), &lab)
	assert.EqualError(t, err, "--member-context edge: it is member edge, not lab: name a context of lab")
}

// TestFailedImageHasACommand: it acts on the cluster that was asked about, and on what has failed there. So
// has one that no agent has processed.
func TestFailedImageHasACommand(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*environment)
		phase   v1alpha1.Phase
		plan    v1alpha1.PlanItemState
		missing bool
		want    string
	}{
		"by the hub":      {change: func(e *environment) { e.cluster = "lab" }, phase: v1alpha1.PhaseFailed, want: "kubectl ot image retry centos-5 -n farm --cluster lab --live"},
		"the member":      {change: func(e *environment) { e.cluster, e.live, e.Member = "lab", true, "ctx" }, phase: v1alpha1.PhaseFailed, want: "kubectl ot image retry centos-5 -n farm --cluster lab --live --member-context ctx"},
		"this cluster":    {change: func(*environment) {}, phase: v1alpha1.PhaseFailed, want: "kubectl ot image retry centos-5 -n farm --live"},
		"it has not":      {change: func(*environment) {}, phase: v1alpha1.PhaseQueued},
		"it is rejected":  {change: func(*environment) {}, plan: v1alpha1.PlanItemRejected},
		"new, by the hub": {change: func(e *environment) { e.cluster = "lab" }, want: "kubectl ot doctor --cluster lab"},
		"new, the member": {change: func(e *environment) { e.cluster, e.live, e.Member = "lab", true, "ctx" }, want: "kubectl ot doctor --cluster lab --live --member-context ctx"},
		"new, this":       {change: func(*environment) {}, want: "kubectl ot doctor"},
		"it is not there": {change: func(*environment) {}, phase: v1alpha1.PhaseFailed, missing: true},
	} {
		t.Run(name, func(t *testing.T) {
			e, _, _ := newTestEnvironment("")
			e.Flags = connect.NewFlags()
			test.change(e)
			w := e.explainImage(why.ImageSnapshot{Now: e.now(), Cluster: "lab", Namespace: "farm", Name: "centos-5", Phase: test.phase, Plan: test.plan, Missing: test.missing})
			assert.Equal(t, test.want, w.Command)
		})
	}
}

// TestRetryOfAnImageNeedsLive: a namespace is one of an image of a member, and is not dropped.
func TestRetryOfAnImageNeedsLive(t *testing.T) {
	errOut := &bytes.Buffer{}
	code := Run([]string{"image", "retry", "centos-5", "-n", "farm"}, genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3")
	assert.Equal(t, exit.Unanswered, code)
	assert.Equal(t, "error: -n farm: a FleetDiskImage has no namespace; to retry a VMDiskImage of a member, add --live\n", errOut.String())
}
