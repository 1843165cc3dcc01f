package image

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// CDIClaimLabels are the labels of claims that CDI makes for itself (CDI 1.63 to 1.66).
var CDIClaimLabels = map[string]string{"app": "containerized-data-importer", "velero.io/exclude-from-backup": "true"}

// FindCDIClaims returns the claims that CDI fills in place of an image's, with the labels of
// their attempts. Up to 1.65.0, CDI itself copies the labels to them; later it does not, so
// they are found by their owner, the claim that the DataVolume populates.
func FindCDIClaims(img v1alpha1.ImageKey, claims []corev1.PersistentVolumeClaim) (found []corev1.PersistentVolumeClaim) {
	for i := range claims {
		owner := metav1.GetControllerOf(&claims[i])
		if claims[i].Labels[v1alpha1.LabelImageUID] != "" || owner == nil || owner.Kind != "PersistentVolumeClaim" {
			continue
		}
		attempt, isOurs := ledger.AttemptOf(img, owner.Name)
		if !isOurs {
			continue
		}
		claim := claims[i].DeepCopy()
		maps.Copy(claim.Labels, AttemptLabels(img, "", attempt))
		found = append(found, *claim)
	}
	return found
}

// LacksCDIClaims reports whether an importer Pod outlives its import while its claim is not
// among the objects: FindCDIClaims may find it. During an import that claim decides nothing.
func LacksCDIClaims(attempts map[int32]*AttemptObjects) bool {
	for _, o := range attempts {
		for i := range o.Pods {
			if owner := metav1.GetControllerOf(&o.Pods[i]); owner != nil && owner.Kind == "PersistentVolumeClaim" && !o.isImporting() && !o.hasClaim(owner) {
				return true
			}
		}
	}
	return false
}

// LacksHolders reports whether a slot of an attempt that has ended is kept although none of the attempt's
// objects are known: those that keep it may have lost their labels, and FindCDIClaims may find them.
func LacksHolders(slots []v1alpha1.Slot, attempts map[int32]*AttemptObjects) bool {
	return slices.ContainsFunc(slots, func(slot v1alpha1.Slot) bool { return slot.Ended && !attempts[slot.Attempt].CanDownload() })
}

func (o *AttemptObjects) isImporting() bool {
	return o.DataVolume != nil && o.DataVolume.DeletionTimestamp == nil && o.DataVolume.Status.Phase != cdiv1.Succeeded &&
		o.Claim != nil && o.Claim.DeletionTimestamp == nil && !isPopulated(o.Claim)
}

func (o *AttemptObjects) hasClaim(owner *metav1.OwnerReference) bool {
	if o.Claim != nil && o.Claim.UID == owner.UID {
		return true
	}
	for i := range o.CDIClaims {
		if o.CDIClaims[i].UID == owner.UID {
			return true
		}
	}
	return false
}
