package vm

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// IsRefused reports whether the API server or a webhook rejected a request for its content.
// Webhooks often set a code without a reason (CDI 1.65 for a clone that is not allowed).
func IsRefused(err error) bool {
	return apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}

// Refusal is the API server's refusal of an object.
type Refusal struct {
	Object string
	Err    error
}

// SetRefused replaces the state with Failed: the API server refused object, and further ones.
func (d *Decision) SetRefused(generation int64, now time.Time, reason v1alpha1.Reason, object string, err error, further ...Refusal) {
	message, separator := "the API server refused ", ""
	limit := min(maxQuotedBytes, maxRefusalsBytes/(1+len(further)))
	for _, refusal := range append([]Refusal{{object, err}}, further...) {
		message += fmt.Sprintf("%s%s: %s", separator, refusal.Object, v1alpha1.SanitizeText(refusal.Err.Error(), limit))
		separator = "; "
	}
	d.overrideState(generation, now, failedState(reason, d.storedFailureMessage(generation, now, reason, message)))
	d.requeueRefused()
}

// maxRefusalsBytes bounds what a message quotes of several refusals, so that it names each.
const maxRefusalsBytes = maxMessageBytes / 2

// storedFailureMessage returns the stored message of a failure that has the same reason, and message
// otherwise. Invariant: a failure that recurs has its message stored once per missingRecheckInterval
// at most, whatever a webhook says each time: each status write triggers a reconcile, which repeats
// the request.
func (d *Decision) storedFailureMessage(generation int64, now time.Time, reason v1alpha1.Reason, message string) string {
	c := meta.FindStatusCondition(d.previousConditions, v1alpha1.ConditionReady)
	if c == nil || c.Reason != string(reason) || c.Status == metav1.ConditionTrue {
		return message
	}
	// The numbers of a refusal, such as a size and its limit, are what a person corrects.
	passesByItself := reason == v1alpha1.ReasonRequestFailed
	if passesByItself && differOnlyInNumbers(c.Message, message) || c.ObservedGeneration == generation && d.hasJustStoredMessage(now) {
		return c.Message
	}
	return message
}

// MessageChanged reports whether the message of Ready or SpecAdjusted differs.
func MessageChanged(before, after []metav1.Condition) bool {
	messageOf := func(conditions []metav1.Condition, kind string) string {
		if c := meta.FindStatusCondition(conditions, kind); c != nil {
			return c.Message
		}
		return ""
	}
	return slices.ContainsFunc([]string{v1alpha1.ConditionReady, v1alpha1.ConditionSpecAdjusted}, func(kind string) bool {
		return messageOf(before, kind) != messageOf(after, kind)
	})
}

func (d *Decision) hasJustStoredMessage(now time.Time) bool {
	since := now.Sub(d.messageStoredAt)
	return since >= 0 && since < missingRecheckInterval
}

func (d *Decision) requeueRefused() {
	if d.RequeueAfter == 0 || d.RequeueAfter > missingRecheckInterval {
		d.RequeueAfter = missingRecheckInterval
	}
}

// SetAdoptionRefused adds to condition SpecAdjusted that the API server refused the machine as
// owner of an object. The state stays: the machine can do without.
func (d *Decision) SetAdoptionRefused(generation int64, now time.Time, target AdoptTarget, err error) {
	refused := fmt.Sprintf("%s %s remains when this machine is deleted, since the API server refused the machine as its owner: delete it then by hand, or make the machine its owner with an account that may",
		target.Kind.Kind, target.Name)
	message := fmt.Sprintf("%s (%s)", refused, v1alpha1.SanitizeText(err.Error(), maxQuotedBytes))
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionSpecAdjusted); c != nil && c.Status == metav1.ConditionTrue && !strings.Contains(c.Message, refused) {
		message = c.Message + "; " + message
	}
	previous := meta.FindStatusCondition(d.previousConditions, v1alpha1.ConditionSpecAdjusted)
	if previous != nil && previous.Status == metav1.ConditionTrue && strings.Contains(previous.Message, refused) &&
		previous.ObservedGeneration == generation && d.hasJustStoredMessage(now) {
		message = previous.Message // as storedFailureMessage
	}
	s := &decider{status: &d.Status, timestamp: storedtime.Truncate(now), generation: generation}
	s.setCondition(v1alpha1.ConditionSpecAdjusted, true, v1alpha1.ReasonAdjusted, message)
	d.keepTransitionTimes()
	d.requeueRefused()
}

// SetNamespaceMissing replaces the state: the namespace of the image does not exist.
func (d *Decision) SetNamespaceMissing(vm *v1alpha1.VirtualMachine, now time.Time, reason v1alpha1.Reason, object string, err error, further ...Refusal) {
	d.SetRefused(vm.Generation, now, reason, object, err, further...)
	if settling, recheck := settlingRecheck(vm, now); settling {
		d.overrideState(vm.Generation, now, provisioningState(reason, d.Status.Message))
		d.RequeueAfter = min(d.RequeueAfter, recheck)
	}
}

// SetRequestFailed replaces the state: creating object failed for a reason that may pass by
// itself, such as an unavailable webhook, a quota conflict or a timeout.
func (d *Decision) SetRequestFailed(generation int64, now time.Time, object string, err error) {
	message := fmt.Sprintf("creating or updating %s failed and is retried: %s", object, v1alpha1.SanitizeText(stableErrorText(err), maxQuotedBytes))
	message = d.storedFailureMessage(generation, now, v1alpha1.ReasonRequestFailed, message)
	d.overrideState(generation, now, provisioningState(v1alpha1.ReasonRequestFailed, message))
}

// stableErrorText cuts what differs at each retry: how the connection to a webhook failed.
func stableErrorText(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "the API server did not answer"
	}
	text := status.Status().Message
	for _, verb := range []string{"Post", "Get", "Put", "Patch", "Delete"} {
		text, _, _ = strings.Cut(text, ": "+verb+` "`)
	}
	if text == "" {
		text = string(status.Status().Reason)
	}
	return text
}

// variableWords are numbers, durations, addresses, timestamps and identifiers: words with a digit, with
// what separates their parts, and long words that are hexadecimal.
var variableWords = regexp.MustCompile(`[\pL\pN_.:+-]*\pN[\pL\pN_.:+-]*|\b[0-9a-f]{8,}\b`)

// differOnlyInNumbers ignores all variableWords. Of a text that was cut, the rest may be as long as its
// numbers leave room for.
func differOnlyInNumbers(a, b string) bool {
	a, cutA := strings.CutSuffix(variableWords.ReplaceAllString(a, "#"), "…")
	b, cutB := strings.CutSuffix(variableWords.ReplaceAllString(b, "#"), "…")
	if cutA && cutB {
		n := min(len(a), len(b))
		n -= min(n, maxCutDifference)
		return a[:n] == b[:n]
	}
	return cutA == cutB && a == b
}

// maxCutDifference is how many bytes at the end of a text that was cut are not compared: a word of them
// may be incomplete.
const maxCutDifference = 32

// overrideState replaces the decided state after the request for it failed.
func (d *Decision) overrideState(generation int64, now time.Time, state machineState) {
	s := &decider{status: &d.Status, timestamp: storedtime.Truncate(now)}
	s.setPhase(generation, state)
	for _, disk := range d.CreateDisks {
		condition := v1alpha1.ConditionRootDiskReady
		if disk.Disk == "" {
			d.Status.RootDisk = nil
		} else {
			condition = v1alpha1.ConditionDisksReady // its volume stays: it says that the disk was requested
		}
		s.setCondition(condition, false, v1alpha1.ReasonNotCreated, d.Status.Message)
	}
	if d.ApplyKubeVirtVM != nil && d.ApplyKubeVirtVM.GetResourceVersion() == "" {
		s.setCondition(v1alpha1.ConditionMachineCreated, false, v1alpha1.ReasonNotCreated, d.Status.Message)
	}
	d.keepTransitionTimes()
}

// keepTransitionTimes: a status that returns to the stored one has not changed.
func (d *Decision) keepTransitionTimes() {
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if previous := meta.FindStatusCondition(d.previousConditions, c.Type); previous != nil && previous.Status == c.Status {
			c.LastTransitionTime = previous.LastTransitionTime
		}
	}
}

// Objects that are created together arrive in any order, as from a GitOps controller. While
// a machine is younger than settlingPeriod, a missing Secret, image, namespace or network is
// no failure.
const (
	settlingPeriod          = 15 * time.Second
	settlingRecheckInterval = 3 * time.Second
)

// settlingRecheck reports whether a machine is younger than the settling period, and when
// to decide again if so.
func settlingRecheck(vm *v1alpha1.VirtualMachine, now time.Time) (settling bool, recheck time.Duration) {
	left := settlingPeriod - now.Sub(vm.CreationTimestamp.Time)
	return left > 0, max(0, min(left, settlingRecheckInterval))
}

// missingDependency returns the state for an object that others have to create.
func (d *decider) missingDependency(reason v1alpha1.Reason, message string) machineState {
	if settling, recheck := settlingRecheck(d.VM, d.Now); settling {
		d.requeueWithin(recheck)
		return provisioningState(reason, message)
	}
	return failedState(reason, message)
}
