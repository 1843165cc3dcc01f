package mailbox

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// activityRelay syncs a member whose report has a root without pages.
type activityRelay struct {
	Relay
	t *testing.T
	// refused counts the requests that the hub refused because refuses is set.
	refuses bool
	refused int
	// failure is what the hub answers to a write of this name; nil for none.
	failure func(name string) error
}

func newActivityRelay(t *testing.T) *activityRelay {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	r := &activityRelay{t: t}
	member := fake.NewClientBuilder().WithScheme(scheme).Build()
	// The definitions of an older version admit no ClusterReport of that name.
	refuse := func(o client.Object) error {
		if r.failure != nil {
			return r.failure(o.GetName())
		}
		if !r.refuses || o.GetName() == v1alpha1.MailboxName {
			return nil
		}
		r.refused++
		return apierrors.NewInvalid(schema.GroupKind{Kind: "ClusterReport"}, o.GetName(), nil)
	}
	hub := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := refuse(o); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := refuse(o); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
	}).Build()
	r.Relay = Relay{
		Hub:    Side{Cached: hub, Live: hub, Namespace: "ot-member-a"},
		Member: Side{Cached: member, Live: member, Namespace: "ot-agent"},
		Copies: &EqualCopies{},
	}
	r.write(v1alpha1.MailboxName, func(o *v1alpha1.ClusterReport) { o.Root = &v1alpha1.ReportRoot{} })
	return r
}

// write writes an object of the report in the member.
func (r *activityRelay) write(name string, set func(*v1alpha1.ClusterReport)) {
	r.t.Helper()
	report := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: r.Member.Namespace, Name: name}}
	found := r.Member.Live.Get(r.t.Context(), client.ObjectKeyFromObject(report), report) == nil
	report.ClusterUID = "u"
	report.Sequence++
	set(report)
	if !found {
		require.NoError(r.t, r.Member.Live.Create(r.t.Context(), report))
		return
	}
	require.NoError(r.t, r.Member.Live.Update(r.t.Context(), report))
}

func (r *activityRelay) writeActivity(slots int32) {
	r.t.Helper()
	r.write(v1alpha1.ActivityName, func(o *v1alpha1.ClusterReport) { o.Activity = &v1alpha1.ReportedActivity{Slots: slots} })
}

func (r *activityRelay) sync() UpResult {
	r.t.Helper()
	result, err := r.SyncUp(r.t.Context(), "u")
	require.NoError(r.t, err)
	return result
}

// copied returns the hub's copy of the activity; nil if there is none.
func (r *activityRelay) copied() *v1alpha1.ReportedActivity {
	r.t.Helper()
	report := &v1alpha1.ClusterReport{}
	err := r.Hub.Live.Get(r.t.Context(), client.ObjectKey{Namespace: r.Hub.Namespace, Name: v1alpha1.ActivityName}, report)
	require.NoError(r.t, client.IgnoreNotFound(err))
	return report.Activity
}

func TestActivityIsCopiedAndDeleted(t *testing.T) {
	r := newActivityRelay(t)
	r.sync()
	assert.Nil(t, r.copied())
	r.writeActivity(1)
	assert.Equal(t, 1, r.sync().Written)
	assert.Equal(t, &v1alpha1.ReportedActivity{Slots: 1}, r.copied())
	assert.Zero(t, r.sync().Written, "nothing has changed")
	r.writeActivity(2)
	assert.Equal(t, 1, r.sync().Written)
	assert.EqualValues(t, 2, r.copied().Slots)

	// An agent of an older version deletes it.
	require.NoError(t, r.Member.Live.Delete(t.Context(), &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: r.Member.Namespace, Name: v1alpha1.ActivityName}}))
	assert.Equal(t, 1, r.sync().Written)
	assert.Nil(t, r.copied())
}

func TestActivityOfAnotherClusterIsNotCopied(t *testing.T) {
	r := newActivityRelay(t)
	r.writeActivity(1)
	r.sync()
	r.write(v1alpha1.ActivityName, func(o *v1alpha1.ClusterReport) { o.ClusterUID = "before" })
	r.sync()
	assert.Nil(t, r.copied())
}

// TestActivityOfStaleCacheIsNotDeleted: another relay may have copied an activity that the
// cache of this one does not show yet.
func TestActivityOfStaleCacheIsNotDeleted(t *testing.T) {
	r := newActivityRelay(t)
	r.writeActivity(1)
	r.sync()
	scheme := r.Member.Live.Scheme()
	root := &v1alpha1.ClusterReport{}
	require.NoError(t, r.Member.Live.Get(t.Context(), client.ObjectKey{Namespace: r.Member.Namespace, Name: v1alpha1.MailboxName}, root))
	r.Member.Cached = fake.NewClientBuilder().WithScheme(scheme).WithObjects(root).Build()
	assert.Zero(t, r.sync().Written)
	assert.NotNil(t, r.copied())
}

// TestRefusedActivityHoldsUpNothing: the hub's definitions may be of an older version. The
// rest of the report is synced, without an error, and without a request for every change.
func TestRefusedActivityHoldsUpNothing(t *testing.T) {
	r := newActivityRelay(t)
	r.refuses = true
	r.writeActivity(0)
	require.True(t, apierrors.IsInvalid(r.sync().ActivityRefused))
	root := int64(0)
	for i := range refusedActivityPause {
		r.writeActivity(int32(i))
		r.write(v1alpha1.MailboxName, func(o *v1alpha1.ClusterReport) { root = o.Sequence })
		for range 2 { // other objects change, too
			result := r.sync()
			require.NoError(t, result.ActivityRefused)
			assert.Equal(t, root, result.RootSequence)
		}
	}
	assert.Equal(t, 1, r.refused)
	r.writeActivity(0)
	require.Error(t, r.sync().ActivityRefused)
	assert.Equal(t, 2, r.refused, "it is tried again after a while")

	r.refuses = false
	for range refusedActivityPause + 1 {
		r.writeActivity(7)
		r.sync()
	}
	require.NotNil(t, r.copied(), "the hub was upgraded")
	r.writeActivity(8)
	r.sync()
	assert.EqualValues(t, 8, r.copied().Slots)
}
