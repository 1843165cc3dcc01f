package image

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestRefusedWriteOfImageIsShown: what is refused of the image itself was only logged.
func TestRefusedWriteOfImageIsShown(t *testing.T) {
	conflict := newConflict("admission webhook denied the request")
	denied := apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("vmdiskimages").GroupResource(), "a", errors.New("denied by a policy"))
	remove := func(p *pruneFixture) {
		require.NoError(t, p.Delete(t.Context(), p.getImage(), client.Preconditions{UID: &p.img.UID}))
	}
	for name, tt := range map[string]struct {
		prepare func(*pruneFixture)
		request imageRequest
		answer  error
		// wantAfter is how many answers are not shown; 0 for all.
		wantAfter   int
		wantStalled bool
	}{
		"a conflict of the finalizer's removal":   {remove, changeFinalizer, conflict, 6, true},
		"a forbidden removal of the finalizer":    {remove, changeFinalizer, denied, 1, true},
		"a removal that times out":                {remove, changeFinalizer, apierrors.NewTimeoutError("no answer", 1), 0, false},
		"a conflict of the image's own deletion":  {func(*pruneFixture) {}, deleteImage, conflict, 6, true},
		"a forbidden deletion of the image":       {func(*pruneFixture) {}, deleteImage, denied, 1, true},
		"a deletion of the image that times out ": {func(*pruneFixture) {}, deleteImage, apierrors.NewTimeoutError("no answer", 1), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPruneFixture(t)
			tt.prepare(p)
			asked := 0
			answer := func(request imageRequest, o client.Object, send func() error) error {
				if _, isImage := o.(*v1alpha1.VMDiskImage); isImage && request == tt.request && tt.answer != nil {
					asked++
					return tt.answer
				}
				return send()
			}
			p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
					return answer(changeFinalizer, o, func() error { return c.Patch(ctx, o, patch, options...) })
				},
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
					return answer(deleteImage, o, func() error { return c.Delete(ctx, o, options...) })
				},
			})
			for range 15 {
				before := asked
				_, _ = p.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(p.img)})
				stored := p.getImage()
				if before > 0 && tt.wantAfter > 0 && before >= tt.wantAfter {
					assert.Contains(t, stored.Status.Message, "the API server refuses to "+string(tt.request)+" VMDiskImage a: ")
					assert.Contains(t, stored.Status.Message, "denied")
					assert.Equal(t, tt.wantStalled, meta.IsStatusConditionTrue(stored.Status.Conditions, v1alpha1.ConditionStalled))
				} else {
					assert.NotContains(t, stored.Status.Message, "the API server refuses", "%d answers", before)
				}
			}
			assert.GreaterOrEqual(t, asked, 10, "it is tried again")
			tt.answer = nil
			for range 5 {
				_, _ = p.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(p.img)})
			}
			assert.True(t, apierrors.IsNotFound(p.Get(t.Context(), client.ObjectKeyFromObject(p.img), &v1alpha1.VMDiskImage{})))
		})
	}
}

// TestLastingFailureOfImageWriteIsShown: a webhook that is down refuses nothing, and kept an image that
// said only that its storage is being deleted.
func TestLastingFailureOfImageWriteIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPruneFixture(t)
		require.NoError(t, p.Delete(t.Context(), p.getImage(), client.Preconditions{UID: &p.img.UID}))
		p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			},
		})
		reconcileFor := func(d time.Duration) string {
			for end := time.Now().Add(d); !time.Now().After(end); {
				_, _ = p.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(p.img)})
				require.NoError(t, trigger.Sleep(t.Context(), time.Second))
			}
			return p.getImage().Status.Message
		}
		assert.NotContains(t, reconcileFor(refusalHold/2), "failed calling webhook")
		assert.Contains(t, reconcileFor(refusalHold), "the API server refuses to change the finalizer of VMDiskImage a: ")
	})
}

// TestRefusedStatusIsRecorded: a status that is refused cannot say so itself.
func TestRefusedStatusIsRecorded(t *testing.T) {
	for name, tt := range map[string]struct {
		answer    error
		wantAfter int
	}{
		"a conflict that lasts": {newConflict("admission webhook denied the request"), 6},
		"invalid":               {apierrors.NewBadRequest("denied by a webhook"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPruneFixture(t)
				p.cachedHolders = []image.Holder{{Name: "ns/vm"}}
				p.liveHolders = p.cachedHolders
				answer := tt.answer
				p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{
					SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, options ...client.SubResourceUpdateOption) error {
						if answer != nil {
							return answer
						}
						return c.SubResource(sub).Update(ctx, o, options...)
					},
				})
				reconcile := func() string {
					_, _ = p.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(p.img)})
					select {
					case event := <-p.events.Events:
						return event
					default:
						return ""
					}
				}
				for n := 1; n <= 12; n++ {
					if event := reconcile(); n == tt.wantAfter {
						assert.Contains(t, event, "Warning StatusRefused the API server refuses to store the status of VMDiskImage a: ")
						assert.Contains(t, event, "denied")
					} else {
						assert.Empty(t, event, "answer %d", n)
					}
				}
				require.NoError(t, trigger.Sleep(t.Context(), refusalHold))
				assert.Empty(t, reconcile(), "the same words are not recorded again")
				answer = nil
				reconcile()
				assert.Empty(t, p.imageRefusals.status.get(p.img.UID))
			})
		})
	}
}

// TestAllRefusedChildrenAreNamed: a person who helps one of them would find the next only then.
func TestAllRefusedChildrenAreNamed(t *testing.T) {
	p := newPruneFixture(t)
	d := image.Decision{Status: p.getImage().Status}
	for _, name := range []string{"a-1", "a-2", "a-3"} {
		claim := apitest.PersistentVolumeClaim("ns/" + name).Obj()
		claim.ResourceVersion = ""
		require.NoError(t, p.Create(t.Context(), claim))
		d.Delete = append(d.Delete, image.DeleteTarget{Kind: image.KindPersistentVolumeClaim, Name: name, UID: claim.UID})
	}
	p.Client = interceptor.NewClient(p.Client.(client.WithWatch), interceptor.Funcs{Delete: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.DeleteOption) error {
		switch o.GetName() {
		case "a-1":
			return apierrors.NewTimeoutError("no answer", 1)
		case "a-2":
			return apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "a-2", errors.New("denied by a policy"))
		default:
			return newConflict("somebody has changed it")
		}
	}})
	request := requestFor(image.KeyOf(p.img))
	for n := 1; n <= 7; n++ {
		p.childRefusals = refusals{} // refusalHold has passed
		err := p.apply(t.Context(), p.getImage(), d)
		p.recordChildRefusal(p.img, err, p.conflicts.Record(request, err, isConflict(err)) == 0)
		others := ""
		if n >= 6 {
			others = " (and to delete PersistentVolumeClaim a-3)" // no other read has solved its conflict
		}
		assert.Equal(t, "the API server refuses to delete PersistentVolumeClaim a-2"+others+`: persistentvolumeclaims "a-2" is forbidden: denied by a policy`, p.childRefusals.get(p.img.UID))
	}
}

func TestJoinRefusals(t *testing.T) {
	refuse := func(name string, err error) *childError {
		return &childError{"delete", image.KindPersistentVolumeClaim, name, err}
	}
	conflict, denied := newConflict("changed"), apierrors.NewBadRequest("denied")
	var many []*childError
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		many = append(many, refuse(name, conflict))
	}
	for name, tt := range map[string]struct {
		children []*childError
		want     string
	}{
		"one":                {many[:1], "the API server refuses to delete PersistentVolumeClaim a: changed"},
		"two of one kind":    {many[:2], "the API server refuses to delete PersistentVolumeClaim a (and to delete PersistentVolumeClaim b): changed"},
		"the worst is later": {[]*childError{many[0], refuse("z", denied)}, "the API server refuses to delete PersistentVolumeClaim z (and to delete PersistentVolumeClaim a): denied"},
		"too many to name": {many, "the API server refuses to delete PersistentVolumeClaim a (and to delete PersistentVolumeClaim b, to delete PersistentVolumeClaim c, " +
			"to delete PersistentVolumeClaim d, to delete PersistentVolumeClaim e, 2 more): changed"},
	} {
		t.Run(name, func(t *testing.T) {
			var errs []error
			for _, c := range tt.children {
				errs = append(errs, c)
			}
			assert.Equal(t, tt.children, listChildErrors(errors.Join(errors.Join(errs...), nil)))
			assert.EqualError(t, joinRefusals(tt.children), tt.want)
		})
	}
}
