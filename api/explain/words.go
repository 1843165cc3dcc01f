package explain

import (
	"fmt"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// DescribeMessage returns the message of an image or machine; of one without a phase, why there is none. It
// names no command: which flags that needs depends on how the cluster was reached.
func DescribeMessage(phase, message string) string {
	if phase == "" && message == "" {
		return "the agent has not processed it yet"
	}
	return message
}

// ShownPhase is the phase of an image; of one that is not created, what the agent did with its plan's item.
func ShownPhase(phase v1alpha1.Phase, plan v1alpha1.PlanItemState) string {
	switch {
	case plan == v1alpha1.PlanItemRejected:
		return string(plan)
	case plan != "":
		return "Planned"
	default:
		return string(phase)
	}
}

// FormatState returns phase and reason of an image or machine, as kubectl get shows them.
func FormatState(phase, reason string) string {
	switch {
	case phase == "":
		return "new"
	case reason == "" || reason == phase:
		return phase
	default:
		return phase + ", " + reason
	}
}

// State is phase and reason.
func (w *Image) State() string {
	phase := ShownPhase(w.Phase, w.Plan)
	if phase == "" && w.Verdict == readapi.WhyUnknown {
		return "not known"
	}
	return FormatState(phase, string(w.Reason))
}

// ShownMessage is the message of the image, where Waiting does not say it better.
func (w *Image) ShownMessage() string {
	if w.waitsForSlot() {
		return ""
	}
	return w.Message
}

// waitsForSlot: its place in the queue is what matters. One that waits for a window of the
// policy says when that opens.
func (w *Image) waitsForSlot() bool {
	return w.GoFirst != nil && w.Verdict == readapi.WhyWaits && w.Reason != v1alpha1.ReasonWaitingForWindow
}

// Waiting says what an image waits for that has its place in the queue; empty for others.
func (w *Image) Waiting() string {
	if !w.waitsForSlot() {
		return ""
	}
	text := "Waits for a slot. "
	if w.Budget.Slots != nil && w.Budget.Budget != nil {
		text += fmt.Sprintf("%d of %d are taken, ", *w.Budget.Slots, *w.Budget.Budget)
	}
	if *w.GoFirst == 1 {
		return text + "1 image goes first."
	}
	return text + fmt.Sprintf("%d images go first.", *w.GoFirst)
}

// BudgetChain says, part by part, why as many imports may run as may; empty where that does
// not matter or is unknown.
func (w *Image) BudgetChain() (parts []string) {
	b := &w.Budget
	if w.Verdict == readapi.WhyReady || w.Verdict == readapi.WhyFailed || b.Budget == nil {
		return nil
	}
	if b.PolicyConcurrency != nil {
		text := fmt.Sprintf("policy: concurrency %d", *b.PolicyConcurrency)
		if b.PolicySource != "" {
			text += " (" + b.PolicySource + ")"
		}
		parts = append(parts, text)
	}
	if b.OwnConcurrency != nil {
		parts = append(parts, fmt.Sprintf("this cluster's own ConfigMap: %d", *b.OwnConcurrency))
	} else {
		parts = append(parts, "this cluster's own ConfigMap: none")
	}
	if b.Granted != nil {
		text := fmt.Sprintf("grant: %d", *b.Granted)
		if b.FleetConcurrency != nil {
			text += fmt.Sprintf(" of %d", *b.FleetConcurrency)
		}
		parts = append(parts, text)
	}
	if b.SourceConcurrency != nil {
		parts = append(parts, fmt.Sprintf("its source, in the whole fleet: %d", *b.SourceConcurrency))
	}
	return parts
}

// PassedOver says why an import of the queue is passed over, with times as formatTime writes
// them; empty if it is not.
func (i *Import) PassedOver(now time.Time, formatTime func(time.Time) string) string {
	switch {
	case i.Place == 0:
		return ""
	case i.NotBefore != nil && i.NotBefore.After(now):
		return fmt.Sprintf("backs off until %s, after attempt %d", formatTime(i.NotBefore.Time), i.Attempt)
	case i.Reason.NeedsUserAction():
		return "is passed over: " + string(i.Reason)
	case i.Reason == v1alpha1.ReasonWaitingForSource, i.Reason == v1alpha1.ReasonWaitingForFleet, i.Reason == v1alpha1.ReasonNamespaceShare, i.Reason == v1alpha1.ReasonWaitingForWindow:
		return string(i.Reason)
	default:
		return ""
	}
}
