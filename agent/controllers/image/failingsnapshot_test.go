package image

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/clock"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// importedFixture is a controller with an image whose import is complete, has a slot, and lacks its
// VolumeSnapshot.
type importedFixture struct {
	*Reconciler
	t   *testing.T
	img *v1alpha1.VMDiskImage
	// createAnswer and statusAnswer are what the API server answers; nil for success.
	createAnswer, statusAnswer error
}

func newImportedFixture(t *testing.T) *importedFixture {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme, snapshotv1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	b := apitest.Image("ns/a").WithUID("imported").WithFinalizer().WithStorageClass("storage").WithSnapshotClass("snapshots")
	revision := b.Obj().Spec.Revision()
	img := b.WithStatus(v1alpha1.VMDiskImageStatus{ObservedGeneration: 1, LastAttempt: 1}).
		WithRevisions(v1alpha1.RevisionStatus{Revision: revision, Attempt: 1}).Obj()
	slot := apitest.Slot(img, revision, 1).WithDataVolume(ledger.DataVolumeName(image.KeyOf(img), 1)).Obj()
	dv := apitest.DataVolume("ns/"+slot.DataVolume).ForAttempt(img.UID, revision, 1).Phase(cdiv1.Succeeded).Obj()
	claim := apitest.PersistentVolumeClaim("ns/"+slot.DataVolume).ForAttempt(img.UID, revision, 1).OwnedBy("DataVolume", slot.DataVolume).
		Bound("1Gi").ImporterPhase(corev1.PodSucceeded).Obj()
	syncLedger := &v1alpha1.SyncLedger{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.LedgerName},
		Status:     &v1alpha1.SyncLedgerStatus{Slots: []v1alpha1.Slot{slot}},
	}
	storage, snapshots := newStorageClass("storage", 1), &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "snapshots"}, Driver: "a.csi"}
	storage.Provisioner = snapshots.Driver
	f := &importedFixture{Reconciler: newPruneFixture(t).Reconciler, t: t, img: img}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(img, dv, claim, syncLedger, storage, snapshots).WithStatusSubresource(img)
	for _, obj := range []client.Object{&cdiv1.DataVolume{}, &corev1.PersistentVolumeClaim{}, &corev1.Pod{}, &snapshotv1.VolumeSnapshot{}} {
		builder.WithIndex(obj, image.ImageUIDIndex, indexImageUID)
	}
	c := builder.WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if f.createAnswer != nil {
				return f.createAnswer
			}
			return c.Create(ctx, o, options...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, options ...client.SubResourceUpdateOption) error {
			if f.statusAnswer != nil {
				return f.statusAnswer
			}
			return c.SubResource(sub).Update(ctx, o, options...)
		},
	}).Build()
	f.Client, f.Live, f.Kinds, f.Ages = c, c, newKinds(t), clock.NewAgeTracker(func() time.Duration { return 0 })
	return f
}

func (f *importedFixture) reconcile() error {
	_, err := f.Reconcile(f.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(f.img)})
	return err
}

func (f *importedFixture) storedStatus() v1alpha1.VMDiskImageStatus {
	img := &v1alpha1.VMDiskImage{}
	require.NoError(f.t, f.Get(f.t.Context(), client.ObjectKeyFromObject(f.img), img))
	return img.Status
}

func (f *importedFixture) snapshotNames() (names []string) {
	var list snapshotv1.VolumeSnapshotList
	require.NoError(f.t, f.List(f.t.Context(), &list))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// failedWebhook is the answer of the API server where a webhook does not answer.
func failedWebhook() error {
	return apierrors.NewInternalError(errors.New(`failed calling webhook "snapshots.example.com": connection refused`))
}

// TestFailingSnapshotKeepsNoOutcome: an outcome that is not stored holds the slot of its import, and with
// it the queue of the cluster.
func TestFailingSnapshotKeepsNoOutcome(t *testing.T) {
	for name, answer := range map[string]error{
		"a webhook does not answer": failedWebhook(),
		"a timeout":                 apierrors.NewTimeoutError("no answer", 1),
		"too many requests":         apierrors.NewTooManyRequests("later", 1),
		"the CRD was removed":       apierrors.NewGenericServerResponse(404, "create", snapshotv1.Resource("volumesnapshots"), "", "the server could not find the requested resource", 0, true),
		"forbidden":                 apierrors.NewForbidden(snapshotv1.Resource("volumesnapshots"), "a-1", errors.New("denied by a policy")),
		"a conflict":                newConflict("denied"),
	} {
		t.Run(name, func(t *testing.T) {
			f := newImportedFixture(t)
			f.createAnswer = answer
			_ = f.reconcile() // an error, or, of a conflict, a short wait
			st := f.storedStatus()
			assert.Equal(t, v1alpha1.OutcomeSucceeded, st.Revisions[0].Outcome)
			named := st.Revisions[0].VolumeSnapshot
			require.NotEmpty(t, named)
			_ = f.reconcile()
			f.createAnswer = nil
			require.NoError(t, f.reconcile())
			assert.Equal(t, []string{named}, f.snapshotNames(), "each try is for the same name")
		})
	}
}

// TestUnstoredNameIsNotCreated: each failed write of the status left one more real snapshot.
func TestUnstoredNameIsNotCreated(t *testing.T) {
	f := newImportedFixture(t)
	for n, answer := range []error{newConflict("the object has been modified"), apierrors.NewTimeoutError("no answer", 1), failedWebhook()} {
		f.statusAnswer = answer
		_ = f.reconcile()
		assert.Empty(t, f.snapshotNames(), fmt.Sprint("write ", n))
	}
	f.statusAnswer = nil
	require.NoError(t, f.reconcile())
	assert.Equal(t, []string{f.storedStatus().Revisions[0].VolumeSnapshot}, f.snapshotNames())
}

// TestLastingFailureOfSnapshotIsShown: otherwise the image would say that the CSI driver is slow.
func TestLastingFailureOfSnapshotIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, img := &Reconciler{}, apitest.Image("ns/a").Obj()
		failure := fmt.Errorf("VMDiskImage ns/a: %w", &childError{"create", image.KindVolumeSnapshot, "a-1", failedWebhook()})
		for range 2 {
			r.recordChildRefusal(img, failure, false)
			assert.Empty(t, r.childRefusals.get(img.UID), "it may pass by itself")
			require.NoError(t, trigger.Sleep(t.Context(), refusalHold))
			r.recordChildRefusal(img, errors.New("of the image itself"), false)
			assert.Empty(t, r.childRefusals.get(img.UID))
			r.recordChildRefusal(img, failure, false)
			assert.Contains(t, r.childRefusals.get(img.UID), "the API server refuses to create VolumeSnapshot a-1: ")
			assert.Contains(t, r.childRefusals.get(img.UID), "failed calling webhook")
			r.recordChildRefusal(img, nil, false)
			assert.Empty(t, r.childRefusals.get(img.UID))
		}
	})
}
