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

// startingReasons are those of containers that the kubelet is about to start; its Events say why
// one does not.
var startingReasons = []string{"", "ContainerCreating", "PodInitializing"}

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
		if w := c.State.Waiting; w != nil && !slices.Contains(startingReasons, w.Reason) {
			return 0, false
		}
		if c.State.Running != nil {
			return 0, false
		}
	}
	return max(0, eventsDelay-now.Sub(pod.Status.Conditions[scheduled].LastTransitionTime.Time)), true
}

// Reasons of ConditionEvents that are no reasons of events: what a volume of the Pod's spec
// names is missing, and has been for missingDelay.
const (
	ReasonSecretNotFound    = "SecretNotFound"
	ReasonConfigMapNotFound = "ConfigMapNotFound"
)

const (
	// maxEventBytes bounds what is kept of an event.
	maxEventBytes = 1024
	// maxEventAge is how long ago a warning may have been repeated. The kubelet retries volumes
	// each 2 minutes, and its client sends one update in 5 minutes after the first 25.
	maxEventAge = 6 * time.Minute
	// missingDelay is for how long an object is reported missing before a person is needed: who
	// creates it may just follow.
	missingDelay = time.Minute
)

var (
	// randomID is of sandboxes and the like, which differ at each try.
	randomID = regexp.MustCompile(`\b[0-9a-f]{32,}\b`)
	// missingObject is how the kubelet says so. Its other objects that are not found, such as CSI
	// drivers after a reboot, come by themselves.
	missingObject = regexp.MustCompile(`\b(secret|configmap) "([^"]+)" not found`)
	// startEvents are reported when volumes and networks of the Pod are there.
	startEvents = []string{"Pulling", "Pulled", "Created", "Started"}
)

// LatestWarning returns condition ConditionEvents for all Events of a Pod; nil for no warning, or
// one that is over. The scheduler's count no more once the Pod is scheduled.
// LastTransitionTime is when the warning was last reported.
func LatestWarning(pod *corev1.Pod, events []corev1.Event, now time.Time) *corev1.PodCondition {
	var latest *corev1.Event
	var started time.Time
	for i := range events {
		e := &events[i]
		switch {
		case e.Type == corev1.EventTypeWarning && e.Reason != "FailedScheduling" && (latest == nil || lastSeen(latest).Before(lastSeen(e))):
			latest = e
		case e.Type == corev1.EventTypeNormal && slices.Contains(startEvents, e.Reason) && started.Before(lastSeen(e)):
			started = lastSeen(e)
		}
	}
	if latest == nil || now.Sub(lastSeen(latest)) > maxEventAge || !lastSeen(latest).After(started) {
		return nil
	}
	text := latest.Message[:min(len(latest.Message), maxEventBytes)]
	warning := &corev1.PodCondition{
		Type: ConditionEvents, Status: corev1.ConditionFalse, Reason: latest.Reason[:min(len(latest.Reason), maxEventBytes)],
		Message: randomID.ReplaceAllString(text, "…"), LastTransitionTime: metav1.NewTime(lastSeen(latest)),
	}
	if reason := findMissing(pod, text); latest.Reason == "FailedMount" && reason != "" && lastSeen(latest).Sub(firstSeen(latest)) >= missingDelay {
		warning.Reason = reason
	}
	if IsOver(pod, warning) {
		return nil
	}
	return warning
}

// IsOver reports whether the Pod has changed since a warning was last reported. Only the kubelet's
// own times are compared, which are by the clock of the warning.
func IsOver(pod *corev1.Pod, warning *corev1.PodCondition) bool {
	after := func(at metav1.Time) bool { return at.After(warning.LastTransitionTime.Time) }
	for _, c := range pod.Status.Conditions {
		if slices.Contains([]corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady}, c.Type) && after(c.LastTransitionTime) {
			return true
		}
	}
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		return (c.State.Running != nil && after(c.State.Running.StartedAt)) || (c.State.Terminated != nil && after(c.State.Terminated.FinishedAt))
	})
}

// findMissing returns the reason for what a message says is missing, where a volume of the Pod's
// spec names it; empty for anything else. What Kubernetes gives each Pod, it creates.
func findMissing(pod *corev1.Pod, message string) string {
	var secrets, configMaps []string
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil {
			secrets = append(secrets, v.Secret.SecretName)
		}
		if v.ConfigMap != nil && v.ConfigMap.Name != rootCertificates {
			configMaps = append(configMaps, v.ConfigMap.Name)
		}
		if v.Projected == nil || slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool { return p.ServiceAccountToken != nil }) {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.Secret != nil {
				secrets = append(secrets, source.Secret.Name)
			}
			if source.ConfigMap != nil && source.ConfigMap.Name != rootCertificates {
				configMaps = append(configMaps, source.ConfigMap.Name)
			}
		}
	}
	for _, match := range missingObject.FindAllStringSubmatch(message, -1) {
		switch kind, name := match[1], match[2]; {
		case kind == "secret" && slices.Contains(secrets, name):
			return ReasonSecretNotFound
		case kind == "configmap" && slices.Contains(configMaps, name):
			return ReasonConfigMapNotFound
		}
	}
	return ""
}

// rootCertificates is the ConfigMap that Kubernetes creates in each namespace.
const rootCertificates = "kube-root-ca.crt"

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

// firstSeen returns when an event was first reported.
func firstSeen(e *corev1.Event) time.Time {
	seen := lastSeen(e)
	for _, at := range []time.Time{e.CreationTimestamp.Time, e.FirstTimestamp.Time, e.EventTime.Time} {
		if !at.IsZero() && at.Before(seen) {
			seen = at
		}
	}
	return seen
}
