package image

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// failurePatterns classify the messages of CDI's importer (pkg/importer; those of
// each version are in testdata/cdi-texts.yaml). They are anchored in its own wording: an image that is called
// lab-404 is not missing.
var failurePatterns = []struct {
	reason  v1alpha1.Reason
	pattern *regexp.Regexp
}{
	{v1alpha1.ReasonNotFound, regexp.MustCompile(`expected status code \d+, got (404|410)\b`)},
	{v1alpha1.ReasonForbidden, regexp.MustCompile(`expected status code \d+, got (401|403)\b`)},
	{v1alpha1.ReasonNotFound, regexp.MustCompile(`could not get s3 object: "[^"]*": (NoSuchKey|NoSuchBucket|NotFound): `)},
	{v1alpha1.ReasonForbidden, regexp.MustCompile(`could not get s3 object: "[^"]*": (AccessDenied|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch): `)},
	{v1alpha1.ReasonNotFound, regexp.MustCompile(`storage: (object|bucket) doesn't exist`)},
	{v1alpha1.ReasonForbidden, regexp.MustCompile(`googleapi: (Error|got HTTP response code) 40[13]\b`)},
	{v1alpha1.ReasonNotFound, regexp.MustCompile(`rpc error: code = NotFound desc = failed to pull `)},
	{v1alpha1.ReasonForbidden, regexp.MustCompile(`pull access denied|failed to authorize: |unexpected status.*: 40[13] `)},
	{v1alpha1.ReasonNotFound, regexp.MustCompile(`(?i)(manifest unknown|repository name not known to registry)`)},
	{v1alpha1.ReasonForbidden, regexp.MustCompile(`(?i)unauthorized: `)},
	{v1alpha1.ReasonChecksumMismatch, regexp.MustCompile(`checksum mismatch`)},
	{v1alpha1.ReasonDiskTooSmall, regexp.MustCompile(`^DataVolume too small to contain image|is larger than the reported available|no space left on device|file largest block is bigger than maxblock|disk quota exceeded`)},
}

// nodeDiskFull matches texts of kubelets and container runtimes, which detectPodFailure
// introduces: it is the node's own disk that has no room, and another node may have some.
var nodeDiskFull = regexp.MustCompile(`(?s)^the node cannot (pull|start) .*(no space left on device|disk quota exceeded)`)

// CDI's reasons on the conditions of a DataVolume (CDI 1.64 to 1.66, pkg/controller).
const (
	cdiReasonError         = "Error"
	cdiReasonPullFailed    = "ImagePullFailed"
	cdiReasonOOMKilled     = "OOMKilled"
	cdiReasonChecksumError = "ChecksumError"
	cdiReasonExceededQuota = "ErrExceededQuota"
)

// kubeletPullText begins CDI's message for any container image that the kubelet has not pulled; the
// image's name follows. That of an importer's own pull begins with "Unable to process data: ".
const kubeletPullText = "failed to pull image: "

const outOfMemoryMessage = "importer ran out of memory (OOMKilled): raise podResourceRequirements in the spec.config of CDI"

// DetectFailure reports whether an import has failed, at its first sign: CDI
// itself would restart the download endlessly.
func DetectFailure(o *AttemptObjects) (v1alpha1.Failure, bool) {
	for i := range o.Pods {
		if text, failed := detectPodFailure(&o.Pods[i]); failed {
			return classifyFailure(text), true
		}
	}
	dv := o.DataVolume
	if dv == nil {
		return v1alpha1.Failure{}, false
	}
	for _, c := range dv.Status.Conditions {
		if c.Reason == cdiReasonExceededQuota {
			return v1alpha1.Failure{Reason: v1alpha1.ReasonQuotaExceeded, Message: quote(c.Message)}, true
		}
	}
	running := findCondition(dv, cdiv1.DataVolumeRunning)
	if running.Reason == cdiReasonChecksumError {
		return v1alpha1.Failure{Reason: v1alpha1.ReasonChecksumMismatch, Message: quote(running.Message)}, true
	}
	if slices.ContainsFunc(o.Pods, describesOtherContainer) && dv.Status.Phase != cdiv1.Failed {
		return v1alpha1.Failure{}, false
	}
	if running.Reason == cdiReasonOOMKilled {
		running.Message = outOfMemoryMessage
	}
	// Of a pull by the kubelet, the Pod says which container's it is, whether anything was asked, and
	// whether the importer restarts after it.
	kubeletPulls := running.Reason == cdiReasonPullFailed && strings.HasPrefix(running.Message, kubeletPullText) ||
		importcause.IsPulledByNode(dv) && diskTimeout.MatchString(running.Message)
	stopped := running.Status == corev1.ConditionFalse && !kubeletPulls &&
		slices.Contains([]string{cdiReasonError, cdiReasonPullFailed, cdiReasonOOMKilled}, running.Reason)
	if dv.Status.Phase == cdiv1.Failed || dv.Status.RestartCount > 0 && !importcause.IsPulledByNode(dv) || stopped {
		return classifyFailure(running.Message), true
	}
	return v1alpha1.Failure{}, false
}

// describesOtherContainer reports whether CDI takes a container that a webhook has added for the
// importer: its conditions and its count of restarts are those of a Pod's first container, and
// kubelets sort them by name.
func describesOtherContainer(pod corev1.Pod) bool {
	statuses := pod.Status.ContainerStatuses
	return len(statuses) > 0 && statuses[0].Name != importcause.ImporterContainer
}

// pullThrottled is the kubelet's message for a pull that it delays itself: nothing was asked.
const pullThrottled = "pull QPS exceeded"

var pullFailures = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}

// startFailures are the runtimes' reasons of containers that never ran.
var startFailures = []string{"StartError", "ContainerCannotRun"}

// diskTimeout is how an importer ends that has waited 60 s for the disk's container, with pullMethod
// node: CDI waits no longer, however long the kubelet pulls (cmd/cdi-importer/importer.go).
var diskTimeout = regexp.MustCompile(`^Timeout waiting for file \S+$`)

// awaitsDisk reports whether the importer has ended only because the kubelet had not pulled the disk yet.
// It is restarted after the pull, and downloads nothing. Where the disk's container ran before the
// importer did, nothing serves the disk.
func awaitsDisk(pod *corev1.Pod, t *corev1.ContainerStateTerminated) bool {
	return diskTimeout.MatchString(t.Message) && pod.Spec.RestartPolicy != corev1.RestartPolicyNever &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.Name == importcause.DiskContainer && c.State.Running != nil && !t.StartedAt.Before(&c.State.Running.StartedAt)
		})
}

// detectPodFailure reads the status of an importer Pod, which shows a failure
// before the DataVolume does.
func detectPodFailure(pod *corev1.Pod) (message string, failed bool) {
	if slices.Contains(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.GateOneDownload}) {
		return outOfMemoryMessage, true
	}
	for _, c := range importcause.CDIContainers(pod) {
		if w := c.State.Waiting; w != nil && c.Name == importcause.DiskContainer && slices.Contains(pullFailures, w.Reason) && !strings.Contains(w.Message, pullThrottled) {
			return fmt.Sprintf("the node cannot pull the image (%s): %s", w.Reason, w.Message), true
		}
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 && !awaitsDisk(pod, t) {
				return describeTermination(pod, t), true
			}
		}
	}
	switch {
	case pod.Status.Phase != corev1.PodFailed:
		return "", false
	case describeDisruption(pod) != "":
		return describeDisruption(pod), true
	}
	for _, c := range pod.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("importer Pod failed: container %s ended with exit code %d (%s)", c.Name, t.ExitCode, t.Reason), true
		}
	}
	return strings.TrimSpace("importer Pod failed " + pod.Status.Message), true
}

// describeTermination says why a container of CDI has ended, first by what Kubernetes itself knows:
// where an importer was killed and has left no message, kubelets put the end of its log in place of
// one (terminationMessagePolicy FallbackToLogsOnError).
func describeTermination(pod *corev1.Pod, t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason == cdiReasonOOMKilled:
		return outOfMemoryMessage
	case describeDisruption(pod) != "":
		return describeDisruption(pod)
	case t.Message == "":
		return fmt.Sprintf("importer ended with exit code %d (%s)", t.ExitCode, t.Reason)
	case slices.Contains(startFailures, t.Reason):
		return fmt.Sprintf("the node cannot start the importer (%s): %s", t.Reason, t.Message)
	case diskTimeout.MatchString(t.Message):
		return "the container image did not serve its disk within the 60 s that CDI waits: " + t.Message
	}
	return t.Message
}

// describeDisruption says why Kubernetes has ended a Pod, as for an eviction or a drain; empty for one
// that has ended by itself.
func describeDisruption(pod *corev1.Pod) string {
	reason, message := pod.Status.Reason, pod.Status.Message
	for _, c := range pod.Status.Conditions {
		if reason == "" && c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			reason, message = c.Reason, c.Message
		}
	}
	if reason == "" {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf("the importer was ended by Kubernetes (%s): %s", reason, message), ": ")
}

// importerLog matches a line of an importer's log. No message of its own has one.
var importerLog = regexp.MustCompile(`(?m)^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\.go:\d+\] `)

// quoteLogEnd returns the end of a log for a message.
func quoteLogEnd(log string) string { return quote(log[max(0, len(log)-maxLogEndBytes):]) }

// classifyFailure gives an importer's message a reason.
func classifyFailure(message string) v1alpha1.Failure {
	message = v1alpha1.Truncate(message, maxClassifiedBytes)
	if importerLog.MatchString(message) {
		return v1alpha1.Failure{Reason: v1alpha1.ReasonImportFailed, Message: "the importer ended without a message, as when its node is drained or fails; its log ends with: " + quoteLogEnd(message)}
	}
	failure := v1alpha1.Failure{Reason: v1alpha1.ReasonImportFailed, Message: quote(message)}
	if failure.Message == "" {
		failure.Message = "the importer failed and gave no reason"
	}
	if nodeDiskFull.MatchString(message) {
		failure.Message = quote("free the disk of the node: " + message)
		return failure
	}
	for _, p := range failurePatterns {
		if p.pattern.MatchString(message) {
			failure.Reason = p.reason
			break
		}
	}
	return failure
}

// showFailure states a failure that is not retried, with what to do about it.
func (d *decider) showFailure(rev *v1alpha1.RevisionStatus) {
	d.setActivity(rev.Failure.Reason, rev.Failure.Message+adviceFor(rev.Failure.Reason, &d.Image.Spec))
}

// adviceFor says what a person can do about a failure of an image that is not retried.
func adviceFor(r v1alpha1.Reason, spec *v1alpha1.VMDiskImageSpec) string {
	const restart = " Annotation " + v1alpha1.AnnotationRetry + " starts it over."
	switch r {
	case v1alpha1.ReasonNotFound:
		return ". Correct spec.url, or publish the image and change annotation " + v1alpha1.AnnotationRetry
	case v1alpha1.ReasonChecksumMismatch:
		return ". Correct spec.checksum, or publish the file it belongs to." + restart
	case v1alpha1.ReasonDiskTooSmall:
		return ". Enlarge spec.diskSize"
	case v1alpha1.ReasonForbidden:
		switch {
		case spec.PullMethod == v1alpha1.PullNode:
			return ". Check the node's credentials, and spec.config.imagePullSecrets of CDI." + restart
		case len(spec.ExtraHeaders) > 0 || len(spec.SecretExtraHeaders) > 0:
			return ". Check the headers in spec.extraHeaders and in the Secrets of spec.secretExtraHeaders." + restart
		case spec.SecretRef == "":
			return ". Let the source give it to anybody, or name a Secret with credentials in spec.secretRef." + restart
		}
		return ". Check the credentials in the Secret of spec.secretRef." + restart
	case v1alpha1.ReasonQuotaExceeded:
		return ". Free or raise the quota of the namespace." + restart
	default:
		if r == v1alpha1.ReasonImportFailed && spec.SourceType == v1alpha1.SourceGCS {
			return ". CDI reads a gs:// object for 60 s at most: use sourceType http for a download that takes longer." + restart
		}
		return "." + restart
	}
}

func findCondition(dv *cdiv1.DataVolume, t cdiv1.DataVolumeConditionType) cdiv1.DataVolumeCondition {
	for _, c := range dv.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return cdiv1.DataVolumeCondition{}
}
