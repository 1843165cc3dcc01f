package importcause

import (
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionEvents is no condition of Kubernetes. The agent adds it to Pods that do not start and
// do not say why: it has the latest warning among their Events, which alone name volumes that
// cannot be attached or mounted, and networks that cannot be set up.
const ConditionEvents corev1.PodConditionType = "Events"

const (
	// eventsDelay is how long a Pod may take to start before its Events are read.
	eventsDelay = 30 * time.Second
	// EventsInterval is how often they are read.
	EventsInterval = time.Minute
)

// AwaitsEvents reports whether a Pod does not start and does not say why, and in which time its
// Events are to be read.
func AwaitsEvents(pod *corev1.Pod, now time.Time) (in time.Duration, awaits bool) {
	if pod.DeletionTimestamp != nil || (pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "") {
		return 0, false
	}
	scheduled := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue
	})
	if scheduled < 0 {
		return 0, false
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, w.Reason) {
			return 0, false
		}
		if c.State.Running != nil {
			return 0, false
		}
	}
	return max(0, eventsDelay-now.Sub(pod.Status.Conditions[scheduled].LastTransitionTime.Time)), true
}

// maxEventBytes bounds what is kept of an event.
const maxEventBytes = 1024

// randomID is of sandboxes and the like, which differ at each try.
var randomID = regexp.MustCompile(`\b[0-9a-f]{32,}\b`)

// LatestWarning returns condition ConditionEvents for the Events of a Pod; nil for no warning.
// The scheduler's count no more once the Pod is scheduled.
func LatestWarning(events []corev1.Event) *corev1.PodCondition {
	var latest *corev1.Event
	for i := range events {
		e := &events[i]
		if e.Type == corev1.EventTypeWarning && e.Reason != "FailedScheduling" && (latest == nil || lastSeen(latest).Before(lastSeen(e))) {
			latest = e
		}
	}
	if latest == nil {
		return nil
	}
	text := latest.Message[:min(len(latest.Message), maxEventBytes)]
	return &corev1.PodCondition{
		Type: ConditionEvents, Status: corev1.ConditionFalse, Reason: latest.Reason[:min(len(latest.Reason), maxEventBytes)],
		Message: randomID.ReplaceAllString(text, "…"),
	}
}

// lastSeen returns when an event was last reported, by whichever of its APIs.
func lastSeen(e *corev1.Event) time.Time {
	seen := e.CreationTimestamp.Time
	if e.Series != nil && e.Series.LastObservedTime.After(seen) {
		seen = e.Series.LastObservedTime.Time
	}
	for _, at := range []metav1.Time{e.LastTimestamp, {Time: e.EventTime.Time}} {
		if at.After(seen) {
			seen = at.Time
		}
	}
	return seen
}
