package importcause

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// ConditionClaimEvents is ConditionEvents of a claim: it has why CDI could not create the claim that it fills
// in its place.
const ConditionClaimEvents = corev1.PersistentVolumeClaimConditionType(ConditionEvents)

// AnnotationPrimeClaim of a claim names the one that CDI fills in its place, once that exists (CDI 1.65).
const AnnotationPrimeClaim = "cdi.kubevirt.io/storage.populator.pvcPrime"

// refusedPrimeClaim is the reason of the Event. CDI 1.65 puts Events into the DataVolume's conditions only once
// the claim exists (pkg/controller/populators/populator-base.go).
const refusedPrimeClaim = "ErrCreatingPVCPrime"

// AwaitsClaimEvents reports whether a claim of an import waits for CDI to create the one that it fills in its
// place, and in which time its Events are to be read.
func AwaitsClaimEvents(claim *corev1.PersistentVolumeClaim, now time.Time) (in time.Duration, awaits bool) {
	source := claim.Spec.DataSourceRef
	if source == nil || source.Kind != cdiv1.VolumeImportSourceRef || claim.DeletionTimestamp != nil ||
		claim.Status.Phase != corev1.ClaimPending || claim.Annotations[AnnotationPrimeClaim] != "" {
		return 0, false
	}
	return max(0, eventsDelay-now.Sub(claim.CreationTimestamp.Time)), true
}

// LatestRefusal returns condition ConditionEvents for all Events of a claim; nil where CDI has reported no
// refusal. It has no age: CDI tries again up to 17 minutes later, and reports nothing meanwhile.
func LatestRefusal(events []corev1.Event) *corev1.PodCondition {
	var latest *corev1.Event
	for i := range events {
		if e := &events[i]; e.Reason == refusedPrimeClaim && (latest == nil || lastSeen(latest).Before(lastSeen(e))) {
			latest = e
		}
	}
	if latest == nil {
		return nil
	}
	return &corev1.PodCondition{
		Type: ConditionEvents, Reason: latest.Reason, Message: latest.Message[:min(len(latest.Message), maxEventBytes)], LastTransitionTime: metav1.NewTime(lastSeen(latest)),
	}
}
