package ledger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// answerCreations has each creation of a DataVolume end with *answer, unless that is nil.
func (m *fleetMember) answerCreations(answer *error) {
	m.interceptCreations(func(*cdiv1.DataVolume) error { return *answer })
}

// interceptCreations has each creation of a DataVolume end with what answer returns of it, unless that is nil.
func (m *fleetMember) interceptCreations(answer func(*cdiv1.DataVolume) error) {
	m.Client = interceptor.NewClient(m.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if dv, isDataVolume := obj.(*cdiv1.DataVolume); isDataVolume {
				if err := answer(dv); err != nil {
					return err
				}
			}
			return c.Create(ctx, obj, opts...)
		},
	})
}

// A slot whose DataVolume cannot be created says why until it is created, and requeues its
// image when that changes.
func TestCreationProblemIsKnownUntilCreation(t *testing.T) {
	m := newFleetMember(t, 1, queuedImages(1)...)
	requeued := 0
	m.EnqueueImages = func(images ...v1alpha1.ImageKey) { requeued += len(images) }
	var answer error
	m.answerCreations(&answer)
	for _, step := range []struct {
		answer       error
		wantReason   v1alpha1.Reason // empty for no problem
		wantMessage  string
		wantRequeued int
	}{
		{errors.New("connection refused"), v1alpha1.ReasonImporting, "its DataVolume cannot be created: connection refused", 1},
		{errors.New("connection refused"), v1alpha1.ReasonImporting, "connection refused", 1},
		{apierrors.NewInternalError(errors.New(`failed calling webhook "datavolume-mutate.cdi.kubevirt.io": refused`)), v1alpha1.ReasonCDIUnavailable, "refused", 2},
		{nil, "", "", 3},
	} {
		answer, m.creations = step.answer, trigger.NamespaceBackoff{}
		_, err := m.Reconcile(t.Context(), ctrl.Request{})
		require.Equal(t, step.answer == nil, err == nil, "%v", err)
		problem := m.CreationProblem(m.storedStatus().Slots[0])
		assert.Equal(t, step.wantRequeued, requeued, "%v", step.answer)
		apitest.RequireFinding(t, problem, step.wantReason, step.wantMessage)
	}
}

// refuseCreationsIn has each creation of a DataVolume in a namespace fail.
func (m *fleetMember) refuseCreationsIn(namespace string) {
	m.Client = interceptor.NewClient(m.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if _, isDataVolume := obj.(*cdiv1.DataVolume); isDataVolume && obj.GetNamespace() == namespace {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			return c.Create(ctx, obj, opts...)
		},
	})
}

// A webhook that fails for one namespace holds up no other.
func TestOtherNamespacesGetTheirDataVolumes(t *testing.T) {
	images := queuedImages(3)
	images[2].Namespace = "other"
	m := newFleetMember(t, 3, images...)
	m.refuseCreationsIn("ns")
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorContains(t, err, "failed calling webhook")
	assert.Len(t, m.storedStatus().Slots, 3)
	var made cdiv1.DataVolumeList
	require.NoError(t, m.Client.List(t.Context(), &made))
	require.Len(t, made.Items, 1)
	assert.Equal(t, "other", made.Items[0].Namespace)
}

// Nor does it hold up the next steps of the ledger: a slot that ends goes to the next image at once.
func TestOtherNamespacesGetFreedSlots(t *testing.T) {
	images := queuedImages(3)
	images[1].Namespace, images[2].Namespace = "other", "other"
	m := newFleetMember(t, 2, images...)
	m.refuseCreationsIn("ns")
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorContains(t, err, "failed calling webhook")
	require.Equal(t, []string{"img-0", "img-1"}, m.namesWithSlots())

	ended := &v1alpha1.VMDiskImage{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "other", Name: "img-1"}, ended))
	ended.Finalizers = nil
	require.NoError(t, m.Client.Update(t.Context(), ended))
	require.NoError(t, m.Client.Delete(t.Context(), ended))
	require.NoError(t, m.Client.DeleteAllOf(t.Context(), &cdiv1.DataVolume{}, client.InNamespace("other")))
	m.creations = trigger.NamespaceBackoff{}
	_, err = m.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorContains(t, err, "failed calling webhook")
	assert.Equal(t, []string{"img-0", "img-2"}, m.namesWithSlots())
}

// An API server that refuses a while, or does not answer, as after a restart, changes no order (S3).
func TestFailedCreationsKeepTheirOrder(t *testing.T) {
	m := newFleetMember(t, 2, queuedImages(2)...)
	answer := errors.New("EOF")
	m.answerCreations(&answer)
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorContains(t, err, "EOF")
	answer = nil
	var made []string
	m.Client = interceptor.NewClient(m.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if dv, isDataVolume := obj.(*cdiv1.DataVolume); isDataVolume {
				made = append(made, dv.Annotations[v1alpha1.AnnotationImageName])
			}
			return c.Create(ctx, obj, opts...)
		},
	})
	require.Eventually(t, func() bool {
		_, err := m.Reconcile(t.Context(), ctrl.Request{})
		require.NoError(t, err)
		return len(made) == 2
	}, 10*time.Second, time.Millisecond)
	assert.Equal(t, []string{"img-0", "img-1"}, made)
}

// The API server may see the ledger late, and is asked again at once. If it goes on refusing a
// slot's DataVolume, its policy looks at another ledger, and the image says so.
func TestSlotThatThePolicyDoesNotKnowIsShown(t *testing.T) {
	m := newFleetMember(t, 1, queuedImages(1)...)
	answer := error(apierrors.NewForbidden(cdiv1.Resource("datavolumes"), "img-0", errors.New("ValidatingAdmissionPolicy 'ot-agent-datavolumes' with binding 'ot-agent-datavolumes' denied request: no slot")))
	require.True(t, admissionpolicy.IsUnlistedRefusal(answer))
	m.answerCreations(&answer)
	assert.Equal(t, admissionRetryDelay, m.mustReconcile().RequeueAfter)
	slot := m.storedStatus().Slots[0]
	assert.Nil(t, m.CreationProblem(slot))

	m.unlistedSince[ledger.DataVolumeKey(slot)] = time.Now().Add(-unlistedGrace / 2)
	assert.Equal(t, maxAdmissionRetryDelay, m.mustReconcile().RequeueAfter, "an API server that has restarted is asked less often")

	m.unlistedSince[ledger.DataVolumeKey(slot)] = time.Now().Add(-unlistedGrace - time.Second)
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorContains(t, err, "which has a slot")
	require.NotNil(t, m.CreationProblem(slot))
	assert.Contains(t, m.CreationProblem(slot).Message, "ot-agent-datavolumes")
	assert.False(t, m.storedStatus().Slots[0].Ended, "it costs no attempt")

	answer, m.creations = nil, trigger.NamespaceBackoff{}
	m.mustReconcile()
	assert.Nil(t, m.CreationProblem(slot))
	assert.Empty(t, m.unlistedSince)
}

// The problem of a slot that is freed is forgotten with it.
func TestCreationProblemOfFreedSlotIsForgotten(t *testing.T) {
	m := newFleetMember(t, 1, queuedImages(1)...)
	answer := errors.New("connection refused")
	m.answerCreations(&answer)
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorIs(t, err, answer)
	slot := m.storedStatus().Slots[0]
	require.NotNil(t, m.CreationProblem(slot))
	img := &v1alpha1.VMDiskImage{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "img-0"}, img))
	img.Finalizers = nil
	require.NoError(t, m.Client.Update(t.Context(), img))
	require.NoError(t, m.Client.Delete(t.Context(), img))
	m.mustReconcile()
	assert.Empty(t, m.storedStatus().Slots)
	assert.Nil(t, m.CreationProblem(slot))
}

// An attempt fails whose DataVolume is refused because of the image: another try would be
// refused as well.
func TestRefusedDataVolumeFailsAttempt(t *testing.T) {
	for name, tt := range map[string]struct {
		answer, wantMessage string
	}{
		"by the CRD of an older CDI": {`strict decoding error: unknown field "spec.source.http.checksum"`, "does not know spec.source.http.checksum"},
		"by CDI's webhook":           {`admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: Invalid source URL`, "Invalid source URL"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFleetMember(t, 1, queuedImages(1)...)
			answer := error(apierrors.NewBadRequest(tt.answer))
			m.answerCreations(&answer)
			m.mustReconcile()
			img := &v1alpha1.VMDiskImage{}
			require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "img-0"}, img))
			require.NotNil(t, img.Status.Revisions[0].Failure)
			assert.Equal(t, v1alpha1.ReasonDataVolumeRefused, img.Status.Revisions[0].Failure.Reason)
			assert.Contains(t, img.Status.Revisions[0].Failure.Message, tt.wantMessage)
		})
	}
}

// No DataVolume of headers for a metadata service is created: they may have been added since
// the image got its slot.
func TestMetadataServicesGetNoHeaders(t *testing.T) {
	img := queuedImage("img-0", "http://0xa9fea9fe/a")
	img.Spec.ExtraHeaders = []string{"X-Tenant: blue"}
	m := newFleetMember(t, 1, img)
	m.mustReconcile()
	img = &v1alpha1.VMDiskImage{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "img-0"}, img))
	require.NotNil(t, img.Status.Revisions[0].Failure)
	assert.Equal(t, v1alpha1.ReasonDataVolumeRefused, img.Status.Revisions[0].Failure.Reason)
	assert.Contains(t, img.Status.Revisions[0].Failure.Message, "the host of spec.url is a metadata service")
	created := &cdiv1.DataVolumeList{}
	require.NoError(t, m.Client.List(t.Context(), created))
	assert.Empty(t, created.Items)
}

// A claim that CDI fills holds the slot of its attempt, with and without the image's labels.
func TestCDIClaimHoldsSlot(t *testing.T) {
	m := newFleetMember(t, 1, queuedImages(1)...)
	m.mustReconcile()
	slot := m.storedStatus().Slots[0]
	m.deleteDataVolumeOfSlot()
	lists, err := m.listAttemptLive(t.Context(), slot)
	require.NoError(t, err)
	require.Empty(t, lists.Claims)
	require.NoError(t, m.Client.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: slot.Image.Namespace, Name: "prime-1", Labels: image.CDIClaimLabels,
		OwnerReferences: []metav1.OwnerReference{{Kind: "PersistentVolumeClaim", Name: slot.DataVolume, Controller: ptr.To(true)}},
	}}))
	lists, err = m.listAttemptLive(t.Context(), slot)
	require.NoError(t, err)
	require.Len(t, lists.Claims, 1)
	assert.True(t, image.GroupByAttempt(lists)[slot.Attempt].CanDownload())
}
