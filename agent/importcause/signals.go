package importcause

import (
	"regexp"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// OfImport returns what holds an import up; nil where nothing is known to. A cause that
// lasts only if it stays has Passing set, and is returned where there is no other.
//
// claims are those of the import, CDI's own included; pods are importers.
func OfImport(dv *cdiv1.DataVolume, claims []corev1.PersistentVolumeClaim, pods []corev1.Pod) *Cause {
	if slices.ContainsFunc(pods, isRunning) {
		return nil
	}
	var passing *Cause
	for _, s := range importSignals(dv, claims, pods) {
		switch cause := lookUp(s); {
		case cause == nil:
		case !cause.Passing:
			return cause
		case passing == nil:
			passing = cause
		}
	}
	return passing
}

// OfSnapshot returns what a VolumeSnapshot that is not ready waits for; nil where its driver
// does not say.
func OfSnapshot(snapshot *snapshotv1.VolumeSnapshot) *Cause {
	if snapshot == nil || snapshot.Status == nil || snapshot.Status.Error == nil || snapshot.Status.Error.Message == nil {
		return nil
	}
	cause := lookUp(signal{LayerSnapshot, "", *snapshot.Status.Error.Message})
	if cause.Message == "" {
		return nil
	}
	return cause
}

// OfAnswer returns what the API server's answer to the creation of a DataVolume says about
// the image; nil where another try may be accepted.
func OfAnswer(err error) *Cause {
	if err == nil {
		return nil
	}
	return lookUp(signal{LayerAnswer, answerCode(err), err.Error()})
}

// silence is the code of an answer that does not come.
const silence = "no answer"

// OfSilence returns what it says that the API server did not answer within a time: it waits for
// a webhook.
func OfSilence(timeout time.Duration) *Cause {
	return lookUp(signal{LayerAnswer, silence, "none came within " + timeout.String()})
}

// answerCode is the reason of an answer. Webhooks may send a status code without one.
func answerCode(err error) string {
	for _, known := range []struct {
		is   func(error) bool
		code metav1.StatusReason
	}{
		{apierrors.IsInvalid, metav1.StatusReasonInvalid}, {apierrors.IsBadRequest, metav1.StatusReasonBadRequest},
		{apierrors.IsForbidden, metav1.StatusReasonForbidden}, {apierrors.IsNotFound, metav1.StatusReasonNotFound},
		{apierrors.IsRequestEntityTooLargeError, metav1.StatusReasonRequestEntityTooLarge}, {apierrors.IsInternalError, metav1.StatusReasonInternalError},
		{apierrors.IsServiceUnavailable, metav1.StatusReasonServiceUnavailable},
	} {
		if known.is(err) {
			return string(known.code)
		}
	}
	return string(apierrors.ReasonForError(err))
}

// CDI's containers of an importer Pod.
const (
	ImporterContainer = "importer"
	// DiskContainer has the disk as its image, with pullMethod node: the kubelet pulls it.
	DiskContainer = "server"
)

// IsPulledByNode reports whether the kubelet pulls the disk, by what CDI is asked for. A restart of its importer
// downloads nothing.
func IsPulledByNode(dv *cdiv1.DataVolume) bool {
	return dv.Spec.Source != nil && dv.Spec.Source.Registry != nil && ptr.Deref(dv.Spec.Source.Registry.PullMethod, "") == cdiv1.RegistryPullNode
}

// PullsOnNode is IsPulledByNode by what CDI makes of it.
func PullsOnNode(importer *corev1.Pod) bool {
	return slices.ContainsFunc(importer.Spec.Containers, func(c corev1.Container) bool { return c.Name == DiskContainer })
}

// CDIContainers returns the statuses of CDI's own containers of an importer Pod. Those that a
// webhook has added restart and end without the import.
func CDIContainers(pod *corev1.Pod) (statuses []corev1.ContainerStatus) {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == ImporterContainer || c.Name == DiskContainer {
			statuses = append(statuses, c)
		}
	}
	return statuses
}

func isRunning(pod corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(CDIContainers(&pod), func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

// IsWorking reports whether an importer runs, or the kubelet may be pulling its disk, and nothing keeps
// its containers from starting.
func IsWorking(pod corev1.Pod) bool {
	return (isRunning(pod) || isPullingDisk(pod)) && !slices.ContainsFunc(CDIContainers(&pod), func(c corev1.ContainerStatus) bool {
		return c.State.Waiting != nil && !slices.Contains(startingReasons, c.State.Waiting.Reason)
	})
}

// isPullingDisk reports whether the kubelet may be pulling the disk, with pullMethod node. It starts
// containers one after the other and writes no status meanwhile: also the importer that already runs
// still waits by what it wrote last.
func isPullingDisk(pod corev1.Pod) bool {
	initialized := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodInitialized && c.Status == corev1.ConditionTrue
	})
	return initialized && pod.DeletionTimestamp == nil && slices.ContainsFunc(CDIContainers(&pod), func(c corev1.ContainerStatus) bool {
		return c.Name == DiskContainer && c.State.Waiting != nil
	})
}

// importSignals lists what the layers say, those that know most first.
func importSignals(dv *cdiv1.DataVolume, claims []corev1.PersistentVolumeClaim, pods []corev1.Pod) (signals []signal) {
	exists := false
	for i := range pods {
		if pods[i].DeletionTimestamp == nil {
			exists = true
			signals = append(signals, podSignals(&pods[i])...)
		}
	}
	for _, condition := range conditionsOf(dv) {
		if condition.Status == corev1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case cdiv1.DataVolumeRunning:
			// CDI keeps why the Pod could not be created or scheduled for a while after.
			if !exists || !slices.Contains([]string{"Unschedulable", "ErrStartingPod", "ErrExceededQuota"}, condition.Reason) {
				signals = append(signals, signal{LayerRunning, condition.Reason, condition.Message})
			}
		case cdiv1.DataVolumeBound:
			signals = append(signals, boundSignal(condition))
		default:
			if condition.Message != "" || condition.Type != cdiv1.DataVolumeReady {
				signals = append(signals, signal{LayerDataVolume, condition.Reason, condition.Message})
			}
		}
	}
	for i := range claims {
		signals = append(signals, claimSignals(&claims[i])...)
	}
	return signals
}

// conditionsOf returns a DataVolume's conditions, that of the importer first.
func conditionsOf(dv *cdiv1.DataVolume) []cdiv1.DataVolumeCondition {
	if dv == nil {
		return nil
	}
	conditions := slices.Clone(dv.Status.Conditions)
	slices.SortStableFunc(conditions, func(a, b cdiv1.DataVolumeCondition) int { return conditionRank(a.Type) - conditionRank(b.Type) })
	return conditions
}

func conditionRank(t cdiv1.DataVolumeConditionType) int {
	switch t {
	case cdiv1.DataVolumeRunning:
		return 0
	case cdiv1.DataVolumeBound:
		return 1
	default:
		return 2
	}
}

func podSignals(pod *corev1.Pod) (signals []signal) {
	for _, containers := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range containers {
			if waiting := containers[i].State.Waiting; waiting != nil {
				signals = append(signals, signal{LayerContainer, waiting.Reason, waiting.Message})
			}
		}
	}
	for _, condition := range pod.Status.Conditions {
		// DisruptionTarget is the one that is True when something is wrong.
		if condition.Reason != "" && (condition.Status == corev1.ConditionFalse) != (condition.Type == corev1.DisruptionTarget) {
			signals = append(signals, signal{LayerPod, condition.Reason, condition.Message})
		}
	}
	if pod.Status.Reason != "" || pod.Status.Message != "" {
		signals = append(signals, signal{LayerPod, pod.Status.Reason, pod.Status.Message})
	}
	return signals
}

// eventText is how CDI 1.65 puts the latest event of the claim that it populates into the
// condition.
var eventText = regexp.MustCompile(`(?s)^target PVC \S+ Pending and (?:\[[^\]]*\] : )?(.*)$`)

// OfClaimEvent returns what condition Bound of a DataVolume says of the latest event of its
// claim: a cause, or nil where the event is none. known is false for a condition without an event.
func OfClaimEvent(condition cdiv1.DataVolumeCondition) (cause *Cause, text string, known bool) {
	if s := boundSignal(condition); s.layer == LayerEvent {
		return lookUp(s), s.text, true
	}
	return nil, "", false
}

func boundSignal(condition cdiv1.DataVolumeCondition) signal {
	if condition.Reason != "Pending" {
		return signal{LayerBound, condition.Reason, condition.Message}
	}
	if match := eventText.FindStringSubmatch(condition.Message); match != nil {
		return signal{LayerEvent, "", match[1]}
	}
	return signal{LayerBound, condition.Reason, condition.Message}
}

func claimSignals(claim *corev1.PersistentVolumeClaim) (signals []signal) {
	if claim.Status.Phase == corev1.ClaimLost {
		signals = append(signals, signal{LayerClaim, "Lost", claim.Name})
	}
	for _, condition := range claim.Status.Conditions {
		switch {
		case condition.Type == ConditionClaimEvents:
			signals = append(signals, signal{LayerEvent, "", condition.Message})
		case condition.Status == corev1.ConditionTrue:
			signals = append(signals, signal{LayerClaim, string(condition.Type), condition.Message})
		}
	}
	return signals
}
