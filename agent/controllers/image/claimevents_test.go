package image

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/agent/podevents"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestRefusedPrimeClaimIsFound: CDI says in an Event of the image's claim alone that it could not create the
// claim that it fills in its place.
func TestRefusedPrimeClaimIsFound(t *testing.T) {
	img := apitest.Image("ns/a").Obj()
	claim := apitest.PersistentVolumeClaim("ns/a-1").ForAttempt(img.UID, "r", 1).OwnedBy("DataVolume", "a-1").Obj()
	claim.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: cdiv1.VolumeImportSourceRef, Name: "volume-import-source-1"}
	refused := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "e"}, InvolvedObject: corev1.ObjectReference{UID: claim.UID}, Type: corev1.EventTypeWarning,
		Reason: "ErrCreatingPVCPrime", Message: `persistentvolumeclaims "prime-1" is forbidden: exceeded quota: q`, LastTimestamp: metav1.Now(),
	}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(claim, refused).
		WithIndex(refused, "involvedObject.uid", func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).Build()
	r := &Reconciler{Client: c, Live: c, Kinds: apidiscovery.NewKindTracker(c.RESTMapper()), PodEvents: podevents.NewReader(c)}
	findCause := func() *importcause.Cause {
		attempts, err := r.listChildren(t.Context(), c, img, nil, client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)})
		require.NoError(t, err)
		return importcause.OfImport(nil, []corev1.PersistentVolumeClaim{*attempts[1].Claim}, nil)
	}
	cause := findCause()
	require.NotNil(t, cause)
	assert.Equal(t, v1alpha1.ReasonQuotaExceeded, cause.Reason)
	assert.Contains(t, cause.Message, "exceeded quota: q")

	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, importcause.AnnotationPrimeClaim, "prime-1")
	require.NoError(t, c.Update(t.Context(), claim))
	assert.Nil(t, findCause(), "CDI fills it now")
}
