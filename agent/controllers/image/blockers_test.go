package image

import (
	"context"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newKinds returns a tracker of kinds that are all served.
func newKinds(t *testing.T) *apidiscovery.KindTracker {
	t.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(image.DataVolumeGVK, meta.RESTScopeNamespace)
	mapper.Add(image.VolumeSnapshotGVK, meta.RESTScopeNamespace)
	kinds := apidiscovery.NewKindTracker(mapper)
	kinds.WhenServed(image.DataVolumeGVK, func(context.Context) error { return nil })
	kinds.WhenServed(image.VolumeSnapshotGVK, func(context.Context) error { return nil })
	require.NoError(t, kinds.Start(t.Context()))
	return kinds
}

// An image that is not queued yet is blocked by a snapshot class of another driver, then by
// CDI's webhook.
func TestNewImageIsBlocked(t *testing.T) {
	storage := newStorageClass("storage", 1)
	storage.Provisioner = "a.csi"
	snapshots := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "snapshots"}, Driver: "b.csi"}
	c := newFakeClient(t, storage, snapshots)
	img := apitest.Image("ns/a").Obj()
	img.Spec.StorageClass, img.Spec.SnapshotClass = storage.Name, snapshots.Name
	w := &webhook{Client: c, t: t, answers: map[string]error{}}
	r := &Reconciler{Client: w, Live: c, Kinds: newKinds(t)}
	findReason := func() v1alpha1.Reason {
		b, err := r.findBlocker(t.Context(), img, nil)
		require.NoError(t, err)
		if b == nil {
			return ""
		}
		return b.Reason
	}
	assert.Equal(t, v1alpha1.ReasonSnapshotClassMismatch, findReason())
	snapshots.Driver = storage.Provisioner
	require.NoError(t, c.Update(t.Context(), snapshots))
	w.answers[img.Spec.URL] = apierrors.NewBadRequest(`admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: no`)
	assert.Equal(t, v1alpha1.ReasonDataVolumeRefused, findReason())
	r.trials = trialAnswers{}
	delete(w.answers, img.Spec.URL)
	assert.Empty(t, findReason())
}

func TestSecretsOfHeadersAreChecked(t *testing.T) {
	secret := func(name string, data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: data}
	}
	c := newFakeClient(t,
		secret("good", map[string][]byte{"a": []byte("Authorization: Bearer s3cr3t"), "b": []byte("X-Key: s3cr3t")}), secret("empty", nil),
		secret("broken", map[string][]byte{"a": []byte("X-Key: s3cr3t"), "b": []byte("Authorization: Bearer s3cr3t\n")}), secret("password", map[string][]byte{"a": []byte("s3cr3t")}),
		secret("large", map[string][]byte{"a": []byte("A: " + strings.Repeat("s3cr3t", 2000))}), secret("metadata", map[string][]byte{"a": []byte("metadata-flavor: s3cr3t")}))
	r := &Reconciler{Client: c, Live: c}
	for name, want := range map[string]struct {
		reason v1alpha1.Reason
		text   string
	}{
		"good":     {},
		"gone":     {v1alpha1.ReasonSecretMissing, "Secret ns/gone does not exist"},
		"empty":    {v1alpha1.ReasonSecretInvalid, "Secret ns/empty of spec.secretExtraHeaders is empty"},
		"broken":   {v1alpha1.ReasonSecretInvalid, "key b of Secret ns/broken of spec.secretExtraHeaders is no HTTP header"},
		"password": {v1alpha1.ReasonSecretInvalid, "key a of Secret ns/password"},
		"large":    {v1alpha1.ReasonSecretInvalid, "key a of Secret ns/large of spec.secretExtraHeaders has more than 8192 bytes"},
		"metadata": {v1alpha1.ReasonSecretInvalid, "or is one for metadata services of clouds"},
	} {
		b, err := r.findReferenceBlocker(t.Context(), apitest.Image("ns/a").WithSecretExtraHeaders("good", name).Obj())
		require.NoError(t, err)
		if apitest.RequireFinding(t, b, want.reason, want.text, name) {
			assert.NotContains(t, b.Message, "s3cr3t")
		}
	}
}

// What an image's CRD does not see: an address in a form of curl's, and what an older CRD stored.
func TestMetadataServicesGetNoHeaders(t *testing.T) {
	c := newFakeClient(t, newStorageClass("storage", 1))
	r := &Reconciler{Client: &webhook{Client: c, t: t, answers: map[string]error{}}, Live: c, Kinds: newKinds(t)}
	for name, tt := range map[string]struct {
		img  *apitest.ImageBuilder
		want string // empty for no blocker
	}{
		"no headers":        {apitest.Image("ns/a").WithURL("http://0xa9fea9fe/a"), ""},
		"another host":      {apitest.Image("ns/a").WithURL("http://h/a").WithExtraHeaders("X-Tenant: blue"), ""},
		"a number":          {apitest.Image("ns/a").WithURL("http://0xa9fea9fe/a").WithExtraHeaders("X-Tenant: blue"), "the host of spec.url is a metadata service"},
		"by a Secret":       {apitest.Image("ns/a").WithURL("http://[64:ff9b::a9fe:a9fe]:80/a").WithSecretExtraHeaders("gone"), "the host of spec.url is a metadata service"},
		"a metadata header": {apitest.Image("ns/a").WithURL("http://h/a").WithExtraHeaders("X-Tenant: blue", "Metadata: true"), "spec.extraHeaders[1] is no HTTP header"},
	} {
		img := tt.img.Obj()
		img.Spec.StorageClass = "storage"
		b, err := r.findBlocker(t.Context(), img, nil)
		require.NoError(t, err)
		apitest.RequireFinding(t, b, v1alpha1.ReasonDataVolumeRefused, tt.want, name)
	}
}

// An importer that outlives its import comes with the claim that CDI fills, which has no label
// of the image.
func TestClaimOfLateImporterIsListed(t *testing.T) {
	img := apitest.Image("ns/a").Obj()
	prime := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "prime-1", UID: "prime-1", Labels: image.CDIClaimLabels,
		OwnerReferences: []metav1.OwnerReference{{Kind: "PersistentVolumeClaim", Name: ledger.DataVolumeName(image.KeyOf(img), 1), Controller: ptr.To(true)}},
	}}
	importer := apitest.Pod("ns/importer").ForAttempt(img.UID, "r", 1).Obj()
	importer.OwnerReferences = []metav1.OwnerReference{{Kind: "PersistentVolumeClaim", Name: prime.Name, UID: prime.UID, Controller: ptr.To(true)}}
	c := newFakeClient(t, prime, importer)
	r := &Reconciler{Client: c, Live: c, Kinds: newKinds(t)}
	attempts, err := r.listChildren(t.Context(), c, img, nil, client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)})
	require.NoError(t, err)
	require.Contains(t, attempts, int32(1))
	assert.Len(t, attempts[1].CDIClaims, 1)
}

// TestClaimThatKeepsASlotIsListed: whoever may write the claims of a namespace can take their labels, and
// the ledger waits for those that CDI fills.
func TestClaimThatKeepsASlotIsListed(t *testing.T) {
	img := apitest.Image("ns/a").Obj()
	slot := v1alpha1.Slot{Image: image.KeyOf(img), Attempt: 1, DataVolume: ledger.DataVolumeName(image.KeyOf(img), 1)}
	prime := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "prime-1", UID: "prime-1", Labels: image.CDIClaimLabels,
		OwnerReferences: []metav1.OwnerReference{{Kind: "PersistentVolumeClaim", Name: slot.DataVolume, Controller: ptr.To(true)}},
	}}
	c := newFakeClient(t, prime)
	r := &Reconciler{Client: c, Live: c, Kinds: newKinds(t)}
	for _, ended := range []bool{false, true} {
		slot.Ended = ended
		attempts, err := r.listChildren(t.Context(), c, img, []v1alpha1.Slot{slot}, client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)})
		require.NoError(t, err)
		assert.Equal(t, ended, attempts[1] != nil && len(attempts[1].CDIClaims) == 1)
	}
}

// The default class was changed after the import: a driver takes snapshots of the volume that there is.
func TestSnapshotClassFitsTheVolume(t *testing.T) {
	former, current := newStorageClass("former", 1), newStorageClass("current", 2, capacity.AnnotationDefaultClass)
	former.Provisioner, current.Provisioner = "a.csi", "b.csi"
	ofA := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "of-a"}, Driver: "a.csi"}
	ofB := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "of-b"}, Driver: "b.csi"}
	c := newFakeClient(t, former, current, ofA, ofB)
	r := &Reconciler{Client: c, Live: c, Kinds: newKinds(t)}
	for name, tt := range map[string]struct {
		attempt, ended int32
		outcome        v1alpha1.Outcome
		class          string
		wantMismatch   string // empty for none
	}{
		"imported, of the volume's driver":    {1, 1, v1alpha1.OutcomeSucceeded, "of-a", ""},
		"imported, of the default's driver":   {1, 1, v1alpha1.OutcomeSucceeded, "of-b", "StorageClass former"},
		"importing, of the volume's driver":   {1, 0, "", "of-a", ""},
		"failed, the next is in the default":  {1, 1, v1alpha1.OutcomeFailed, "of-b", ""},
		"failed, of the former volume":        {1, 1, v1alpha1.OutcomeFailed, "of-a", "StorageClass current"},
		"not started":                         {0, 0, "", "of-b", ""},
		"not started, of a class not in use":  {0, 0, "", "of-a", "StorageClass current"},
		"the claim of another attempt":        {2, 2, v1alpha1.OutcomeSucceeded, "of-a", "StorageClass current"},
		"the claim of another, of the driver": {2, 2, v1alpha1.OutcomeSucceeded, "of-b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.Image("ns/a").WithSnapshotClass(tt.class).Obj()
			img.Status.Revisions = []v1alpha1.RevisionStatus{{Revision: img.Spec.Revision(), Attempt: tt.attempt, AttemptEnded: tt.ended, Outcome: tt.outcome}}
			claim := apitest.PersistentVolumeClaim("ns/a-1").Bound("1Gi").Obj()
			claim.Spec.StorageClassName = &former.Name
			attempts := map[int32]*image.AttemptObjects{1: {Claim: claim}}
			b, err := r.findSnapshotClassBlocker(t.Context(), img, attempts)
			require.NoError(t, err)
			apitest.RequireFinding(t, b, v1alpha1.ReasonSnapshotClassMismatch, tt.wantMismatch)
		})
	}
}
