package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Why is what the hub knows of one image of one member: its state, what runs and what
// goes first, and why the budget is what it is. Times of the activity are by the member's
// clock, those of estimates by the hub's.
type Why struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Unknown is why all this may be out of date; empty if it is not.
	Unknown string `json:"unknown,omitempty"`
	// ReportedAt is when the hub received the report, by its own clock; absent where this
	// replica has only seen what was stored when it was elected.
	ReportedAt *metav1.Time `json:"reportedAt,omitempty"`
	// Image as the member reports it; absent where it reports none of that name.
	Image *v1alpha1.ReportedImage `json:"image,omitempty"`
	// Planned: the member's plan has it.
	Planned bool `json:"planned"`
	// Activity is what the member imports and what waits; absent from agents that do not
	// tell, and where nothing was imported yet.
	Activity *WhyActivity `json:"activity,omitempty"`
	// Position is how many images of the queue go first; absent if it does not wait for a
	// slot, or waits behind those that the member lists.
	Position *int `json:"position,omitempty"`
	// BehindHead: it waits behind those that the member lists.
	BehindHead bool `json:"behindHead,omitempty"`
	// Expected is when it will be ready.
	Expected *Estimate `json:"expected,omitempty"`
	// Budget is why as many imports may run as may.
	Budget WhyBudget `json:"budget"`
	// Explanation says it in the words of kubectl ot why.
	Explanation *WhyExplanation `json:"explanation,omitempty"`
}

// WhyVerdict is why an image is where it is, in one word.
type WhyVerdict string

// Verdicts.
const (
	WhyReady  WhyVerdict = "Ready"
	WhyFailed WhyVerdict = "Failed"
	WhyWaits  WhyVerdict = "Waits"
	// WhyHeld: a person has to do something.
	WhyHeld    WhyVerdict = "WaitsForPerson"
	WhyUnknown WhyVerdict = "Unknown"
)

// WhyExplanation is what kubectl ot why says of an image. Times in its texts are in RFC 3339.
type WhyExplanation struct {
	Verdict WhyVerdict `json:"verdict"`
	// State is phase and reason, as kubectl get shows them.
	State string `json:"state"`
	// QueuedAt is since when it waits.
	QueuedAt *metav1.Time `json:"queuedAt,omitempty"`
	// Text is what it waits for, or its message.
	Text string `json:"text,omitempty"`
	// Budget says, part by part, why the budget is what it is.
	Budget []string `json:"budget,omitempty"`
	// Sooner is what would bring it sooner.
	Sooner *WhySooner `json:"sooner,omitempty"`
}

// WhySooner is what one more slot would bring.
type WhySooner struct {
	Concurrency int32        `json:"concurrency"`
	At          *metav1.Time `json:"at,omitempty"`
	Seconds     int64        `json:"seconds,omitempty"`
	Command     string       `json:"command"`
}

// WhyActivity is what a member imports, and what waits for a slot.
type WhyActivity struct {
	ObservedAt metav1.Time           `json:"observedAt"`
	Active     []ActiveEntry         `json:"active"`
	Head       []QueuedEntry         `json:"head"`
	Queued     int32                 `json:"queued"`
	Rates      []v1alpha1.SourceRate `json:"rates,omitempty"`
}

// Reported returns the activity as the member reported it, with its budget and the slots that are taken.
func (a *WhyActivity) Reported(budget, slots int32) *v1alpha1.ReportedActivity {
	reported := &v1alpha1.ReportedActivity{ObservedAt: a.ObservedAt, Queued: a.Queued, Rates: a.Rates, Budget: budget, Slots: slots}
	for i := range a.Active {
		reported.Active = append(reported.Active, v1alpha1.ActiveImport(a.Active[i].ActiveImport))
	}
	for i := range a.Head {
		reported.Head = append(reported.Head, v1alpha1.QueuedImport(a.Head[i].QueuedImport))
	}
	return reported
}

// ActiveImport is that of a member as an object. In its report it is a line, and so would be
// all that embeds it.
type ActiveImport v1alpha1.ActiveImport

// QueuedImport is that of a member as an object, likewise.
type QueuedImport v1alpha1.QueuedImport

// ActiveEntry is a running import, and when it will end.
type ActiveEntry struct {
	ActiveImport
	Expected *Estimate `json:"expected,omitempty"`
}

// QueuedEntry is an image that waits, and when it will be ready.
type QueuedEntry struct {
	QueuedImport
	// Note is why it is passed over; empty if it is not.
	Note     string    `json:"note,omitempty"`
	Expected *Estimate `json:"expected,omitempty"`
}

// Estimate is when something is expected, with a range. Without At, Reason and Message say
// why there is none.
type Estimate struct {
	At       *metav1.Time `json:"at,omitempty"`
	Earliest *metav1.Time `json:"earliest,omitempty"`
	Latest   *metav1.Time `json:"latest,omitempty"`
	// AtMost: a size is not known, and the size of the disk was taken for it.
	AtMost  bool   `json:"atMost,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// NewEstimate returns an estimate as the read API gives it.
func NewEstimate(e eta.Estimate) *Estimate {
	if e.Why != "" {
		return &Estimate{Reason: string(e.Why), Message: e.Why.Message()}
	}
	at, low, high := metav1.NewTime(e.At), metav1.NewTime(e.Low), metav1.NewTime(e.High)
	return &Estimate{At: &at, Earliest: &low, Latest: &high, AtMost: e.AtMost}
}

// WhyBudget is the chain that leads to the number of imports that a member may run:
// policy, own ConfigMap, ledger, grant. Unknown values are omitted.
type WhyBudget struct {
	// PolicyConcurrency is what the fleet's policy plans, from PolicySource.
	PolicyConcurrency *int32 `json:"policyConcurrency,omitempty"`
	PolicySource      string `json:"policySource,omitempty"`
	// OwnConcurrency is the limit of the member's own policy ConfigMap; absent for none.
	OwnConcurrency *int32 `json:"ownConcurrency,omitempty"`
	// Budget of the member's ledger: the smaller of the two, as far as it has
	// acknowledged the plan. Slots are taken.
	Budget *int32 `json:"budget,omitempty"`
	Slots  *int32 `json:"slots,omitempty"`
	// Acknowledged: the ledger is written under the newest plan.
	Acknowledged bool `json:"acknowledged"`
	// Transfers is the member's share of FleetConcurrency; absent without a fleet-wide
	// budget.
	Transfers        *v1alpha1.MemberTransfers `json:"transfers,omitempty"`
	FleetConcurrency *int64                    `json:"fleetConcurrency,omitempty"`
	// SourceConcurrency is the fleet-wide limit of the image's group of sources.
	SourceConcurrency *int64 `json:"sourceConcurrency,omitempty"`
}
