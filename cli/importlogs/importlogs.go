// Package importlogs decides which Pod's log is that of an image's import, and what to say where
// none runs.
package importlogs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// importerContainer is the container of CDI's importer Pods that downloads.
const importerContainer = "importer"

// Choice is the log to show.
type Choice struct {
	Pod, Container string
	// Attempt of the image, as its label says; 0 where it says none.
	Attempt int32
	// Ended: the container has ended, and prints nothing more.
	Ended bool
	// Previous: the container was restarted and has not begun again; its log is the one before.
	Previous bool
}

// Choose returns the importer Pod of an image: that of the newest attempt, and of its Pods the
// newest. ok is false where none has begun; waiting then says why one has not, if there is one.
func Choose(image *v1alpha1.VMDiskImage, pods []corev1.Pod) (c Choice, waiting string, ok bool) {
	var importers []corev1.Pod
	for _, pod := range pods {
		if pod.Labels[v1alpha1.LabelImageUID] == string(image.UID) && slices.ContainsFunc(pod.Spec.Containers, isImporter) {
			importers = append(importers, pod)
		}
	}
	slices.SortFunc(importers, func(a, b corev1.Pod) int {
		if byAttempt := int(attemptOf(&b)) - int(attemptOf(&a)); byAttempt != 0 {
			return byAttempt
		}
		if byTime := b.CreationTimestamp.Compare(a.CreationTimestamp.Time); byTime != 0 {
			return byTime
		}
		return strings.Compare(a.Name, b.Name)
	})
	if len(importers) == 0 {
		return Choice{}, "", false
	}
	newest := &importers[0]
	c = Choice{Pod: newest.Name, Container: importerContainer, Attempt: attemptOf(newest)}
	for _, s := range newest.Status.ContainerStatuses {
		if s.Name != importerContainer {
			continue
		}
		switch {
		case s.State.Running != nil:
			return c, "", true
		case s.State.Terminated != nil:
			c.Ended = true
			return c, "", true
		case s.LastTerminationState.Terminated != nil:
			c.Previous = true
			return c, "", true
		case s.State.Waiting != nil:
			return c, describeWaiting(newest, s.State.Waiting.Reason, s.State.Waiting.Message), false
		}
	}
	return c, describeWaiting(newest, string(newest.Status.Phase), newest.Status.Message), false
}

func isImporter(c corev1.Container) bool { return c.Name == importerContainer }

func attemptOf(pod *corev1.Pod) int32 {
	attempt, err := strconv.ParseInt(pod.Labels[v1alpha1.LabelAttempt], 10, 32)
	if err != nil {
		return 0
	}
	return int32(attempt)
}

func describeWaiting(pod *corev1.Pod, reason, message string) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			reason, message = c.Reason, c.Message
		}
	}
	text := fmt.Sprintf("importer Pod %s has not begun: %s", pod.Name, reason)
	if message != "" {
		text += ", " + message
	}
	return v1alpha1.SanitizeText(text, 1024)
}

// Absent is the answer where no importer has begun.
type Absent struct {
	render.Envelope
	Image   string          `json:"image"`
	Phase   v1alpha1.Phase  `json:"phase,omitempty"`
	Reason  v1alpha1.Reason `json:"reason,omitempty"`
	Message string          `json:"message,omitempty"`
	// Waiting says what a Pod that is there waits for.
	Waiting string `json:"waiting,omitempty"`
	// LastFailure is that of the newest attempt that failed.
	LastFailure *v1alpha1.Failure `json:"lastFailure,omitempty"`
	// Attempts that count against the policy's retryLimit.
	Attempts int32 `json:"attempts,omitempty"`

	now time.Time
}

// NewAbsent says why an image has no importer, and what its last failure said.
func NewAbsent(now time.Time, image *v1alpha1.VMDiskImage, waiting string) *Absent {
	a := &Absent{
		Envelope: render.NewEnvelope("NoImporter"), Image: image.Namespace + "/" + image.Name, now: now, Waiting: waiting,
		Phase: image.Status.Phase, Reason: image.Status.Reason, Message: v1alpha1.SanitizeText(image.Status.Message, 1024), Attempts: image.Status.Attempts,
	}
	for i := range image.Status.Revisions {
		failure := image.Status.Revisions[i].Failure
		if failure != nil && (a.LastFailure == nil || failure.Time.After(a.LastFailure.Time.Time)) {
			a.LastFailure = &v1alpha1.Failure{Reason: failure.Reason, Message: v1alpha1.SanitizeText(failure.Message, 1024), Time: failure.Time}
		}
	}
	return a
}

// Names is the VMDiskImage.
func (a *Absent) Names() []string {
	return []string{render.Reference("VMDiskImage", a.Image[strings.IndexByte(a.Image, '/')+1:])}
}

// Draw draws the screen.
func (a *Absent) Draw(p *render.Page) {
	p.Line(render.Waiting.With("No importer runs for %s.", a.Image)...)
	switch {
	case a.Phase == "":
		p.Line(render.Text("  The agent has not processed it yet."))
	case a.Reason == "":
		p.Line(render.Text("  It is %s.", a.Phase))
	default:
		p.Line(render.Text("  It is %s, %s: %s", a.Phase, a.Reason, a.Message))
	}
	if a.Waiting != "" {
		p.Line(render.Text("  %s", a.Waiting))
	}
	if f := a.LastFailure; f != nil {
		p.Line(render.Text("  The last failure, %s ago: %s, %s", render.Age(a.now, f.Time.Time), f.Reason, f.Message))
		p.Line(render.Text("  %s count against retryLimit.", render.Count(a.Attempts, "attempt")))
	}
}
