package ledger

import (
	"context"
	"errors"
	"testing"

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

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// answerCreations has each creation of a DataVolume end with *answer, unless that is nil.
func (m *fleetMember) answerCreations(answer *error) {
	m.Client = interceptor.NewClient(m.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if _, isDataVolume := obj.(*cdiv1.DataVolume); isDataVolume && *answer != nil {
				return *answer
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
		answer = step.answer
		_, err := m.Reconcile(t.Context(), ctrl.Request{})
		require.Equal(t, step.answer == nil, err == nil, "%v", err)
		problem := m.CreationProblem(m.storedStatus().Slots[0])
		assert.Equal(t, step.wantRequeued, requeued, "%v", step.answer)
		if step.wantReason == "" {
			assert.Nil(t, problem)
			continue
		}
		require.NotNil(t, problem)
		assert.Equal(t, step.wantReason, problem.Reason)
		assert.Contains(t, problem.Message, step.wantMessage)
	}
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
