package vm

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// SetRequestFailed has the status say that something could not be made for a reason that
// may pass by itself: a webhook that is down, a conflict over a quota, a timeout.
// What is said the second time is what was said the first time, but for numbers
// in it: each status that is stored has the machine looked at again at once.
func (d *Decision) SetRequestFailed(generation int64, now time.Time, what string, err error) {
	message := fmt.Sprintf("making %s did not succeed and is tried again: %s", what, Truncate(stableErrorText(err), maxQuotedBytes))
	if c := meta.FindStatusCondition(d.previousConditions, v1alpha1.ConditionReady); c != nil && c.Reason == string(v1alpha1.ReasonRequestFailed) && differOnlyInNumbers(c.Message, message) {
		message = c.Message
	}
	d.overrideState(generation, now, provisioningState(v1alpha1.ReasonRequestFailed, message))
}

// stableErrorText is the part of an error that is the same the next time. What a webhook
// could not be asked for is not: there are many ways for a connection to fail.
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

var wordsWithDigits = regexp.MustCompile(`[\w-]*\d[\w-]*`)

// differOnlyInNumbers tells that two texts differ in numbers at most, and in words with numbers
// in them.
func differOnlyInNumbers(a, b string) bool {
	return wordsWithDigits.ReplaceAllString(a, "#") == wordsWithDigits.ReplaceAllString(b, "#")
}

// overrideState puts another wait in place of what was decided, because nothing came of it.
func (d *Decision) overrideState(generation int64, now time.Time, w machineState) {
	s := &decider{status: &d.Status, timestamp: metav1.NewTime(now.UTC().Truncate(time.Second))}
	s.setPhase(generation, w)
	if d.CreateRootDisk != nil {
		d.Status.RootDisk = nil
		s.setCondition(v1alpha1.ConditionRootDiskReady, false, v1alpha1.ReasonNotCreated, d.Status.Message)
	}
	if d.ApplyKubeVirtVM != nil && d.ApplyKubeVirtVM.GetResourceVersion() == "" {
		s.setCondition(v1alpha1.ConditionMachineCreated, false, v1alpha1.ReasonNotCreated, d.Status.Message)
	}
	for i := range d.Status.Conditions { // what was so before has not changed in between
		c := &d.Status.Conditions[i]
		if was := meta.FindStatusCondition(d.previousConditions, c.Type); was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
}

// What is created together comes in any order, as from a GitOps controller: a
// Secret, an image, its namespace or a network that is not there yet is no fault
// of a machine that is as young as this.
const (
	settlingPeriod          = 15 * time.Second
	settlingRecheckInterval = 3 * time.Second
)

// SettlingRecheck tells whether a machine is so young, and when to look again then.
func SettlingRecheck(obj *v1alpha1.VirtualMachine, now time.Time) (bool, time.Duration) {
	left := settlingPeriod - now.Sub(obj.CreationTimestamp.Time)
	return left > 0, max(0, min(left, settlingRecheckInterval))
}

// missingDependency is the wait for something that others are to make.
func (s *decider) missingDependency(reason v1alpha1.Reason, message string) machineState {
	if young, again := SettlingRecheck(s.VM, s.Now); young {
		s.requeueWithin(again)
		return provisioningState(reason, message)
	}
	return failedState(reason, message)
}

// SetNamespaceMissing has the status say that there is no namespace for the image.
func (d *Decision) SetNamespaceMissing(obj *v1alpha1.VirtualMachine, now time.Time, reason v1alpha1.Reason, what string, err error) {
	d.SetRefused(obj.Generation, now, reason, what, err)
	if young, again := SettlingRecheck(obj, now); young {
		d.overrideState(obj.Generation, now, provisioningState(reason, d.Status.Message))
		d.RequeueAfter = min(d.RequeueAfter, again)
	}
}
