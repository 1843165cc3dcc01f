package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A finished claim that a late importer Pod keeps is deleted in the foreground; no other
// claim is.
func TestClaimHeldByLatePodIsReleased(t *testing.T) {
	for name, test := range map[string]struct {
		change func(prime *corev1.PersistentVolumeClaim, late *corev1.Pod)
		want   []string
	}{
		"a finished claim being deleted": {func(*corev1.PersistentVolumeClaim, *corev1.Pod) {}, []string{"PersistentVolumeClaim prime"}},
		"a claim that stays":             {func(prime *corev1.PersistentVolumeClaim, _ *corev1.Pod) { prime.DeletionTimestamp = nil }, nil},
		"an unfinished claim":            {func(prime *corev1.PersistentVolumeClaim, _ *corev1.Pod) { prime.Annotations = nil }, nil},
		"a Pod being deleted": {func(_ *corev1.PersistentVolumeClaim, late *corev1.Pod) {
			late.DeletionTimestamp = &metav1.Time{Time: apitest.Epoch}
		}, nil},
		"a Pod of another claim": {func(_ *corev1.PersistentVolumeClaim, late *corev1.Pod) { late.OwnerReferences[0].UID = "another" }, nil},
		"a foreground deletion already": {func(prime *corev1.PersistentVolumeClaim, _ *corev1.Pod) {
			prime.Finalizers = []string{metav1.FinalizerDeleteDependents}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
			w.runImport()
			require.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase)
			prime := apitest.PersistentVolumeClaim("ns/prime").ForAttempt(w.newUID(), w.currentRevision().Revision, 1).OwnedBy("PersistentVolumeClaim", w.lastDataVolume().Name).
				ImporterPhase(corev1.PodSucceeded).Deleted(apitest.Epoch).Obj()
			late := apitest.Pod("ns/importer-prime").ForAttempt(w.newUID(), w.currentRevision().Revision, 1).Obj()
			late.OwnerReferences = []metav1.OwnerReference{{Kind: "PersistentVolumeClaim", Name: prime.Name, UID: prime.UID, Controller: ptr.To(true)}}
			test.change(prime, late)
			w.lists.Claims = append(w.lists.Claims, *prime)
			w.lists.Pods = append(w.lists.Pods, *late)

			d := w.reconcile()
			assert.Equal(t, test.want, deletedNames(d))
			for _, target := range d.Delete {
				assert.Equal(t, image.DeleteTarget{Kind: image.KindPersistentVolumeClaim, Name: "prime", UID: prime.UID, Foreground: true}, target)
			}
			assert.Equal(t, v1alpha1.PhaseSucceeded, w.status().Phase, "and serves on")
		})
	}
	t.Run("the claim that the DataVolume populated", func(t *testing.T) {
		w := newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
		w.runImport()
		w.deleteImage()
		w.reconcile()
		w.reconcile()
		claim := w.findClaim(w.lastDataVolume().Name)
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "cdi.kubevirt.io/storage.pod.phase", string(corev1.PodSucceeded))
		claim.DeletionTimestamp = &metav1.Time{Time: w.now.Add(time.Second)}
		late := apitest.Pod("ns/importer").ForAttempt(w.newUID(), w.status().Revision, 1).Obj()
		late.OwnerReferences = []metav1.OwnerReference{{Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID, Controller: ptr.To(true)}}
		w.lists.Pods = append(w.lists.Pods, *late)
		assert.Equal(t, []image.DeleteTarget{{Kind: image.KindPersistentVolumeClaim, Name: claim.Name, UID: claim.UID, Foreground: true}}, w.reconcile().Delete)
	})
}
