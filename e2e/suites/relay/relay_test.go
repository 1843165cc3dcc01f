//go:build linux

// Package relay_test syncs mailboxes between two real API servers: only they show which of two
// writers wins, what an API server with older CRDs drops, and what a restored member looks like.
package relay_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// cluster is the UID that the member reports by default.
const cluster types.UID = "11111111-1111-1111-1111-111111111111"

var (
	relayScheme             = runtime.NewScheme()
	hubClient, memberClient client.WithWatch
	hubPlane                *controlplane.ControlPlane
	memberPlane             *controlplane.ControlPlane
	hubConfig               *rest.Config
	memberConfig            *rest.Config
	mailboxCount            atomic.Int32
)

func TestMain(m *testing.M) {
	code, err := runWithServers(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runWithServers(run func() int) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	log.SetLogger(logr.Discard())
	if err := scheme.AddToScheme(relayScheme); err != nil {
		return 0, err
	}
	if err := v1alpha1.AddToScheme(relayScheme); err != nil {
		return 0, err
	}
	options := func(name, chart string) controlplane.Options {
		return controlplane.Options{Name: name, BeforeControllers: func(ctx context.Context, cfg *rest.Config) error {
			return controlplane.InstallCRDFiles(ctx, cfg, filepath.Join("..", "..", "..", "charts", chart, "files", "mailbox"))
		}}
	}
	planes, err := controlplane.StartAll(ctx, options("hub", "ot-hub"), options("member", "ot-agent"))
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, plane := range planes {
			if stopErr := plane.Stop(); err == nil {
				err = stopErr
			}
		}
	}()
	hubPlane, memberPlane = planes[0], planes[1]
	hubConfig, memberConfig = hubPlane.Config(), memberPlane.Config()
	if hubClient, err = client.NewWithWatch(hubConfig, client.Options{Scheme: relayScheme}); err != nil {
		return 0, err
	}
	if memberClient, err = client.NewWithWatch(memberConfig, client.Options{Scheme: relayScheme}); err != nil {
		return 0, err
	}
	return run(), nil
}

// mailboxEnd is the mailbox of one test on both API servers.
type mailboxEnd struct {
	*testing.T
	hubNamespace, agentNamespace string
	// Requests of the relays.
	hubReads, hubWrites, memberReads, memberWrites atomic.Int32
}

func newMailbox(t *testing.T) *mailboxEnd {
	t.Helper()
	n := mailboxCount.Add(1)
	b := &mailboxEnd{T: t, hubNamespace: fmt.Sprintf("ot-member-%d", n), agentNamespace: fmt.Sprintf("ot-system-%d", n)}
	b.createObject(hubClient, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.hubNamespace}})
	b.createObject(memberClient, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.agentNamespace}})
	return b
}

func (b *mailboxEnd) createObject(c client.Client, object client.Object) {
	b.Helper()
	require.NoError(b, c.Create(b.Context(), object))
}

// newRelay returns a relay that reads from the API servers instead of caches.
func (b *mailboxEnd) newRelay() mailbox.Relay {
	return mailbox.Relay{
		Hub:    mailbox.Side{Cached: hubClient, Live: countRequests(hubClient, &b.hubReads, &b.hubWrites), Namespace: b.hubNamespace},
		Member: mailbox.Side{Cached: memberClient, Live: countRequests(memberClient, &b.memberReads, &b.memberWrites), Namespace: b.agentNamespace},
		Copies: &mailbox.EqualCopies{},
	}
}

func (b *mailboxEnd) resetCounts() {
	for _, n := range []*atomic.Int32{&b.hubReads, &b.hubWrites, &b.memberReads, &b.memberWrites} {
		n.Store(0)
	}
}

// requireWrites requires the number of writes of all relays since the last call.
func (b *mailboxEnd) requireWrites(onHub, inMember int) {
	b.Helper()
	require.EqualValues(b, onHub, b.hubWrites.Swap(0), "writes on the hub")
	require.EqualValues(b, inMember, b.memberWrites.Swap(0), "writes in the member")
}

func countRequests(c client.WithWatch, reads, writes *atomic.Int32) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
			reads.Add(1)
			return c.Get(ctx, key, object, o...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			reads.Add(1)
			return c.List(ctx, list, o...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			writes.Add(1)
			return c.Create(ctx, object, o...)
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.UpdateOption) error {
			writes.Add(1)
			return c.Update(ctx, object, o...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.DeleteOption) error {
			writes.Add(1)
			return c.Delete(ctx, object, o...)
		},
	})
}

// pauseBeforeWrite returns a client that stops before its next write until release.
func pauseBeforeWrite(c client.WithWatch) (_ client.Client, reached <-chan struct{}, release func()) {
	at, on := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	stop := func() {
		if once.CompareAndSwap(false, true) {
			close(at)
			<-on
		}
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			stop()
			return c.Create(ctx, object, o...)
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.UpdateOption) error {
			stop()
			return c.Update(ctx, object, o...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.DeleteOption) error {
			stop()
			return c.Delete(ctx, object, o...)
		},
	}), at, func() { close(on) }
}

// frozenReader returns a reader of the current state of one end of the mailbox.
func (b *mailboxEnd) frozenReader(c client.Client, namespace string) client.Reader {
	b.Helper()
	builder := fake.NewClientBuilder().WithScheme(relayScheme)
	for _, list := range []client.ObjectList{&v1alpha1.ClusterPlanList{}, &v1alpha1.TransferGrantList{}, &v1alpha1.ClusterReportList{}} {
		require.NoError(b, c.List(b.Context(), list, client.InNamespace(namespace)))
		builder = builder.WithLists(list)
	}
	return builder.Build()
}

// mustDown syncs down without an error.
func (b *mailboxEnd) mustDown(r mailbox.Relay) mailbox.DownResult {
	b.Helper()
	down, err := r.SyncDown(b.Context())
	require.NoError(b, err)
	return down
}

// mustUp syncs up without an error.
func (b *mailboxEnd) mustUp(r mailbox.Relay) mailbox.UpResult {
	b.Helper()
	up, err := r.SyncUp(b.Context(), cluster)
	require.NoError(b, err)
	return b.withoutRootSequence(up)
}

// withoutRootSequence requires that the result has the sequence of the hub's copy and removes it.
func (b *mailboxEnd) withoutRootSequence(up mailbox.UpResult) mailbox.UpResult {
	b.Helper()
	if !up.ReportMissing && up.OtherCluster == "" {
		root := &v1alpha1.ClusterReport{}
		require.NoError(b, hubClient.Get(b.Context(), client.ObjectKey{Namespace: b.hubNamespace, Name: v1alpha1.MailboxName}, root))
		require.Equal(b, root.Sequence, up.RootSequence)
		up.RootSequence = 0
	}
	return up
}

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// writePlan writes the hub's plan.
func (b *mailboxEnd) writePlan(epoch, sequence int64, hash, concurrency string) *v1alpha1.ClusterPlan {
	b.Helper()
	plan := &v1alpha1.ClusterPlan{ObjectMeta: objectMeta(b.hubNamespace, v1alpha1.MailboxName)}
	err := hubClient.Get(b.Context(), client.ObjectKeyFromObject(plan), plan)
	plan.Spec = v1alpha1.ClusterPlanSpec{
		PlanVersion: v1alpha1.PlanVersion{Epoch: epoch, Sequence: sequence, Hash: hash},
		ClusterUID:  cluster,
		Policy:      map[string]string{"concurrency": concurrency},
	}
	if err != nil {
		require.NoError(b, client.IgnoreNotFound(err))
		b.createObject(hubClient, plan)
	} else {
		require.NoError(b, hubClient.Update(b.Context(), plan))
	}
	return plan
}

func (b *mailboxEnd) getPlanCopy() *v1alpha1.ClusterPlan {
	b.Helper()
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(b, memberClient.Get(b.Context(), client.ObjectKey{Namespace: b.agentNamespace, Name: v1alpha1.MailboxName}, plan))
	return plan
}
