package image

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func newConflict(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Reason: metav1.StatusReasonConflict, Message: text}}
}

// TestRefusedDeletionIsShown: the storage of a failed attempt cannot be deleted, which nothing else says.
func TestRefusedDeletionIsShown(t *testing.T) {
	for name, tt := range map[string]struct {
		answer error
		// wantAfter is how many answers are not shown; 0 for all.
		wantAfter int
	}{
		"a conflict that lasts": {newConflict("admission webhook denied the request"), 6},
		"forbidden":             {apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "a-1", errors.New("denied by a policy")), 1},
		"a timeout":             {apierrors.NewTimeoutError("no answer", 1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPruneFixture(t)
			p.cached = image.PlannedState{Keep: true, Unknown: true}
			p.live = p.cached
			p.mustReconcile()
			claim := apitest.PersistentVolumeClaim("ns/a-1").ForAttempt(p.img.UID, p.img.Spec.Revision(), 1).Obj()
			claim.ResourceVersion = ""
			require.NoError(t, p.Create(t.Context(), claim))
			answer, asked := tt.answer, 0
			p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
				if asked++; answer != nil {
					return answer
				}
				return c.Delete(ctx, o, options...)
			}})
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(p.img)}
			reconcile := func() *v1alpha1.VMDiskImage {
				_, _ = p.Reconcile(t.Context(), request)
				stored := &v1alpha1.VMDiskImage{}
				require.NoError(t, p.Get(t.Context(), request.NamespacedName, stored))
				return stored
			}
			for n := range 10 {
				stored := reconcile()
				if want := tt.wantAfter > 0 && n >= tt.wantAfter; want {
					assert.Contains(t, stored.Status.Message, "the API server refuses to delete PersistentVolumeClaim a-1: ")
					assert.Contains(t, stored.Status.Message, "denied")
					assert.True(t, meta.IsStatusConditionTrue(stored.Status.Conditions, v1alpha1.ConditionStalled))
				} else {
					assert.NotContains(t, stored.Status.Message, "the API server refuses", "answer %d", n)
				}
			}
			assert.Equal(t, 10, asked)
			answer = nil
			reconcile()
			assert.NotContains(t, reconcile().Status.Message, "the API server refuses")
			assert.True(t, apierrors.IsNotFound(p.Get(t.Context(), client.ObjectKeyFromObject(claim), claim)))
		})
	}
}

// TestRefusedChildKeepsNoOthers: one child that is refused for good would keep the storage of all others.
func TestRefusedChildKeepsNoOthers(t *testing.T) {
	for name, refused := range map[string]string{"a deletion": "a-1", "a snapshot": "snapshot-1"} {
		t.Run(name, func(t *testing.T) {
			p := newPruneFixture(t)
			p.childRefusals.set(p.img.UID, errors.New("refused before"))
			asked := map[string]int{}
			answer := func(o client.Object) error {
				if asked[o.GetName()]++; o.GetName() == refused {
					return newConflict("denied")
				}
				return nil
			}
			d := image.Decision{
				Status: p.img.Status, CreateSnapshot: &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "snapshot-1"}},
				DataSources: []image.DataSourceChange{{Operation: image.CreateDataSource, DataSource: &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ubuntu"}}}},
				DeleteImage: true,
			}
			for _, name := range []string{"a-1", "a-2"} {
				claim := apitest.PersistentVolumeClaim("ns/" + name).Obj()
				claim.ResourceVersion = ""
				require.NoError(t, p.Create(t.Context(), claim))
				d.Delete = append(d.Delete, image.DeleteTarget{Kind: image.KindPersistentVolumeClaim, Name: name, UID: claim.UID})
			}
			p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					return answer(o)
				},
				Delete: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.DeleteOption) error {
					return answer(o)
				},
			})
			require.ErrorContains(t, p.apply(t.Context(), p.img, d), refused)
			assert.Equal(t, map[string]int{"snapshot-1": 1, "ubuntu": 1, "a-1": 1, "a-2": 1}, asked, "the image stays until all of them are gone")
		})
	}
}

// TestChildRefusalIsForgottenBesideOthers: a DataSource that stays refused says nothing about the storage.
func TestChildRefusalIsForgottenBesideOthers(t *testing.T) {
	p := newPruneFixture(t)
	denied := apierrors.NewForbidden(cdiv1.Resource("datasources"), "ubuntu", errors.New("denied by a policy"))
	p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return denied },
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return nil },
	})
	d := image.Decision{
		Status: p.img.Status, Delete: []image.DeleteTarget{{Kind: image.KindPersistentVolumeClaim, Name: "a-1", UID: "uid"}},
		DataSources: []image.DataSourceChange{{Operation: image.CreateDataSource, DataSource: &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ubuntu"}}}},
	}
	p.childRefusals.set(p.img.UID, errors.New("refused before"))
	require.ErrorIs(t, p.apply(t.Context(), p.img, d), denied)
	assert.Empty(t, p.childRefusals.get(p.img.UID))
}

// TestReplacedChildIsNoConflict: the object to delete is gone, and another one has its name.
func TestReplacedChildIsNoConflict(t *testing.T) {
	p := newPruneFixture(t)
	claim := apitest.PersistentVolumeClaim("ns/a-1").Obj()
	claim.ResourceVersion = ""
	require.NoError(t, p.Create(t.Context(), claim))
	p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
		return newConflict("Precondition failed: UID in precondition")
	}})
	target := image.DeleteTarget{Kind: image.KindPersistentVolumeClaim, Name: "a-1", UID: "uid-of-former"}
	require.NoError(t, p.deleteChild(t.Context(), p.img, target))
	target.UID = claim.UID
	require.Error(t, p.deleteChild(t.Context(), p.img, target))
	target.Name = "a-2"
	require.NoError(t, p.deleteChild(t.Context(), p.img, target))
}

// TestRefusalKeepsItsWords: each change is a write, whose event repeats the request at once.
func TestRefusalKeepsItsWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		r.set("uid", errors.New("request 1"))
		r.set("uid", errors.New("request 2"))
		assert.Equal(t, "request 1", r.get("uid"))
		require.NoError(t, trigger.Sleep(t.Context(), refusalHold))
		r.set("uid", errors.New("request 3"))
		assert.Equal(t, "request 3", r.get("uid"))
		r.set("uid", nil)
		assert.Empty(t, r.get("uid"))
	})
}

// TestLastingConflictOfDataSourceIsShown: it was repeated every 50 ms, and its condition said that the
// DataSource is about to follow.
func TestLastingConflictOfDataSourceIsShown(t *testing.T) {
	for name, answer := range map[string]error{
		"a conflict":                  newConflict("somebody has changed it"),
		"one that exists in no cache": apierrors.NewAlreadyExists(cdiv1.Resource("datasources"), "ubuntu"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPruneFixture(t)
			p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return answer }})
			d := image.Decision{DataSources: []image.DataSourceChange{{Operation: image.CreateDataSource, DataSource: &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ubuntu"}}}}}
			request := requestFor(image.KeyOf(p.img))
			for n := range 5 {
				err := p.applyDataSources(t.Context(), p.img, d)
				require.ErrorIs(t, err, errImageChanged, "the next read may solve it")
				assert.Equal(t, trigger.ConflictRetryDelay<<n, p.conflicts.Record(request, err, isConflict(err)))
				assert.Empty(t, p.publishRefusals.get(p.img.UID))
			}
			for range 10 {
				err := p.applyDataSources(t.Context(), p.img, d)
				require.Error(t, err)
				require.NotErrorIs(t, err, errImageChanged, "what else is decided goes on")
				assert.NotEmpty(t, p.publishRefusals.get(p.img.UID))
				assert.Zero(t, p.conflicts.Record(request, err, isConflict(err)), "it backs off")
			}
		})
	}
}
