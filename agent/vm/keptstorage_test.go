package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestStuckCloneThatIsKeptSaysSo: a correction that is not followed needs a person, who reads the message.
func TestStuckCloneThatIsKeptSaysSo(t *testing.T) {
	ofEarlierRelease := func(w *world) { delete(w.DataVolume.Annotations, v1alpha1.AnnotationRequestedStorage) }
	editClass := func(w *world) {
		img := w.Pinned.DeepCopy()
		img.Spec.StorageClass = "next"
		w.Image, w.Pinned = img, img
	}
	for name, tt := range map[string]struct {
		change  []func(*world)
		wantSay bool
	}{
		"of an earlier release, size corrected":  {[]func(*world){ofEarlierRelease, correctSize}, true},
		"of an earlier release, as it was asked": {[]func(*world){ofEarlierRelease}, false},
		"of this release, which is replaced":     {[]func(*world){correctSize}, false},
		"restored from a snapshot": {[]func(*world){ofEarlierRelease, correctSize, func(w *world) {
			w.Claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: ptr.To("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "backup"}
		}}, false},
		"restored, made for a former DataVolume": {[]func(*world){ofEarlierRelease, correctSize, func(w *world) {
			w.Claim.Annotations["cdi.kubevirt.io/createdForDataVolume"] = "uid-of-former"
		}}, false},
		"another class of the image": {[]func(*world){editClass}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStuckClonesWorld(t).withUnfilledClaims()
			w.ClaimProblem = "exceeded quota: q"
			for _, change := range tt.change {
				change(w)
			}
			d := w.reconcile()
			if tt.wantSay {
				w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskFailed, "exceeded quota: q", "it keeps the size and storageClass", "delete DataVolume vm-root")
				return
			}
			assert.NotContains(t, d.Status.Message, "it keeps the size")
		})
	}
}
