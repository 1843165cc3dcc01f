package image_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newPrimeClaim returns a claim that CDI fills in place of another.
func newPrimeClaim(ownerKind, owner string, labels map[string]string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "prime-of-" + owner, UID: types.UID("prime-of-" + owner), Labels: labels,
		OwnerReferences: []metav1.OwnerReference{{Kind: ownerKind, Name: owner, Controller: ptr.To(true)}},
	}}
}

func TestFindCDIClaims(t *testing.T) {
	key := image.KeyOf(apitest.Image("ns/a").Obj())
	other := v1alpha1.ImageKey{Namespace: "ns", Name: "a", UID: "other"}
	ours := ledger.DataVolumeName(key, 7)
	unlabeled := map[string]string{"app": "containerized-data-importer"}
	for name, tt := range map[string]struct {
		claim corev1.PersistentVolumeClaim
		want  bool
	}{
		"of an attempt":               {newPrimeClaim("PersistentVolumeClaim", ours, unlabeled), true},
		"that has the image's labels": {newPrimeClaim("PersistentVolumeClaim", ours, image.AttemptLabels(key, "r", 7)), false},
		"of another image":            {newPrimeClaim("PersistentVolumeClaim", ledger.DataVolumeName(other, 7), unlabeled), false},
		"of a claim of no image":      {newPrimeClaim("PersistentVolumeClaim", "data-0", unlabeled), false},
		"that populates":              {newPrimeClaim("DataVolume", ours, unlabeled), false},
		"without an owner":            {corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: ours}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := image.FindCDIClaims(key, []corev1.PersistentVolumeClaim{tt.claim})
			if !tt.want {
				assert.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			assert.Equal(t, "7", got[0].Labels[v1alpha1.LabelAttempt])
			objects := image.GroupByAttempt(image.ObjectLists{Claims: got})[7]
			assert.Len(t, objects.CDIClaims, 1)
			assert.Nil(t, objects.Claim)
			assert.True(t, objects.CanDownload())
		})
	}
}

// An importer of an unlabeled claim that goes on after its import has to be found.
func TestLacksCDIClaims(t *testing.T) {
	img := apitest.Image("ns/a").Obj()
	name := ledger.DataVolumeName(image.KeyOf(img), 1)
	prime := newPrimeClaim("PersistentVolumeClaim", name, map[string]string{})
	pod := apitest.Pod("ns/importer-prime").ForAttempt(img.UID, "r", 1).Obj()
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "PersistentVolumeClaim", Name: prime.Name, UID: prime.UID, Controller: ptr.To(true)}}
	target := apitest.PersistentVolumeClaim("ns/"+name).ForAttempt(img.UID, "r", 1).Obj()
	dv := apitest.DataVolume("ns/"+name).ForAttempt(img.UID, "r", 1).Phase(cdiv1.ImportInProgress).Obj()
	all := func() image.AttemptObjects {
		return image.AttemptObjects{DataVolume: dv.DeepCopy(), Claim: target.DeepCopy(), Pods: []corev1.Pod{*pod.DeepCopy()}}
	}
	for name, tt := range map[string]struct {
		change func(*image.AttemptObjects)
		want   bool
	}{
		"imports":  {func(*image.AttemptObjects) {}, false},
		"imported": {func(o *image.AttemptObjects) { o.DataVolume.Status.Phase = cdiv1.Succeeded }, true},
		"imported, the claim is known": {func(o *image.AttemptObjects) {
			o.DataVolume.Status.Phase = cdiv1.Succeeded
			o.CDIClaims = append(o.CDIClaims, prime)
		}, false},
		"its DataVolume is deleted": {func(o *image.AttemptObjects) { o.DataVolume.DeletionTimestamp = ptr.To(metav1.NewTime(apitest.Epoch)) }, true},
		"its DataVolume is gone":    {func(o *image.AttemptObjects) { o.DataVolume, o.Claim = nil, nil }, true},
		"of the claim itself":       {func(o *image.AttemptObjects) { o.DataVolume = nil; o.Pods[0].OwnerReferences[0].UID = o.Claim.UID }, false},
		"without a Pod":             {func(o *image.AttemptObjects) { o.DataVolume, o.Pods = nil, nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := all()
			tt.change(&o)
			assert.Equal(t, tt.want, image.LacksCDIClaims(map[int32]*image.AttemptObjects{1: &o}))
		})
	}
}
