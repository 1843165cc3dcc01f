// Package mailboxtest has the mailbox of a test, with an agent that writes reports into it: over fake
// clients, or over an API server where only that shows what a test wants to see.
package mailboxtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Cluster is the UID that the member reports by default.
const Cluster types.UID = "11111111-1111-1111-1111-111111111111"

var mailboxCount atomic.Int32

// Mailbox is the mailbox of one test, on both sides.
type Mailbox struct {
	*testing.T
	Hub, Member                  client.WithWatch
	HubNamespace, AgentNamespace string
	// Requests of the relays.
	HubReads, HubWrites, MemberReads, MemberWrites atomic.Int32
}

// NewScheme returns a scheme with the mailbox and namespaces.
func NewScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := scheme.AddToScheme(s); err != nil {
		return nil, err
	}
	return s, v1alpha1.AddToScheme(s)
}

// New returns a mailbox with namespaces of its own. Both sides may be one API server.
func New(t *testing.T, hub, member client.WithWatch) *Mailbox {
	t.Helper()
	n := mailboxCount.Add(1)
	b := &Mailbox{T: t, Hub: hub, Member: member, HubNamespace: fmt.Sprintf("ot-member-%d", n), AgentNamespace: fmt.Sprintf("ot-system-%d", n)}
	b.CreateObject(hub, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.HubNamespace}})
	b.CreateObject(member, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.AgentNamespace}})
	return b
}

// NewClient returns a fake client. It gives objects UIDs, as API servers do: each new object starts with
// the same resourceVersion.
func NewClient(t *testing.T) client.WithWatch {
	t.Helper()
	s, err := NewScheme()
	require.NoError(t, err)
	return fake.NewClientBuilder().WithScheme(s).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			object.SetUID(uuid.NewUUID())
			return c.Create(ctx, object, o...)
		},
	}).Build()
}

// CreateObject creates an object on one side.
func (b *Mailbox) CreateObject(c client.Client, object client.Object) {
	b.Helper()
	require.NoError(b, c.Create(b.Context(), object))
}

// NewRelay returns a relay that reads from both sides instead of caches.
func (b *Mailbox) NewRelay() mailbox.Relay {
	return mailbox.Relay{
		Hub:    mailbox.Side{Cached: b.Hub, Live: countRequests(b.Hub, &b.HubReads, &b.HubWrites), Namespace: b.HubNamespace},
		Member: mailbox.Side{Cached: b.Member, Live: countRequests(b.Member, &b.MemberReads, &b.MemberWrites), Namespace: b.AgentNamespace},
		Copies: &mailbox.EqualCopies{},
	}
}

// ResetCounts forgets the requests of the relays.
func (b *Mailbox) ResetCounts() {
	for _, n := range []*atomic.Int32{&b.HubReads, &b.HubWrites, &b.MemberReads, &b.MemberWrites} {
		n.Store(0)
	}
}

// RequireWrites requires the number of writes of all relays since the last call.
func (b *Mailbox) RequireWrites(onHub, inMember int) {
	b.Helper()
	require.EqualValues(b, onHub, b.HubWrites.Swap(0), "writes on the hub")
	require.EqualValues(b, inMember, b.MemberWrites.Swap(0), "writes in the member")
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

// MustDown syncs down without an error.
func (b *Mailbox) MustDown(r mailbox.Relay) mailbox.DownResult {
	b.Helper()
	down, err := r.SyncDown(b.Context())
	require.NoError(b, err)
	return down
}

// MustUp syncs up without an error.
func (b *Mailbox) MustUp(r mailbox.Relay) mailbox.UpResult {
	b.Helper()
	up, err := r.SyncUp(b.Context(), Cluster)
	require.NoError(b, err)
	return b.WithoutRootSequence(up)
}

// WithoutRootSequence requires that the result has the sequence of the hub's copy and removes it.
func (b *Mailbox) WithoutRootSequence(up mailbox.UpResult) mailbox.UpResult {
	b.Helper()
	if !up.ReportMissing && up.OtherCluster == "" {
		root := &v1alpha1.ClusterReport{}
		require.NoError(b, b.Hub.Get(b.Context(), client.ObjectKey{Namespace: b.HubNamespace, Name: v1alpha1.MailboxName}, root))
		require.Equal(b, root.Sequence, up.RootSequence)
		up.RootSequence = 0
	}
	return up
}

// ObjectMeta names an object.
func ObjectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// WritePlan writes the hub's plan.
func (b *Mailbox) WritePlan(epoch, sequence int64, hash, concurrency string) *v1alpha1.ClusterPlan {
	b.Helper()
	plan := &v1alpha1.ClusterPlan{ObjectMeta: ObjectMeta(b.HubNamespace, v1alpha1.MailboxName)}
	err := b.Hub.Get(b.Context(), client.ObjectKeyFromObject(plan), plan)
	plan.Spec = v1alpha1.ClusterPlanSpec{
		PlanVersion: v1alpha1.PlanVersion{Epoch: epoch, Sequence: sequence, Hash: hash},
		ClusterUID:  Cluster,
		Policy:      map[string]string{"concurrency": concurrency},
	}
	if err != nil {
		require.NoError(b, client.IgnoreNotFound(err))
		b.CreateObject(b.Hub, plan)
	} else {
		require.NoError(b, b.Hub.Update(b.Context(), plan))
	}
	return plan
}

// GetPlanCopy returns the member's plan.
func (b *Mailbox) GetPlanCopy() *v1alpha1.ClusterPlan {
	b.Helper()
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(b, b.Member.Get(b.Context(), client.ObjectKey{Namespace: b.AgentNamespace, Name: v1alpha1.MailboxName}, plan))
	return plan
}
