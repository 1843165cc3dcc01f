package readapi

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MaxPolicyBytes bounds the policy of a request for its BlastRadius.
const MaxPolicyBytes = 32 << 10

// BlastRadius is what would change if a policy replaced the one in force. Nothing is
// written. Unknown values are omitted.
type BlastRadius struct {
	// Refused is why the policy would not come into force; empty: it would.
	Refused []string `json:"refused,omitempty"`
	// Members in total, of which Changed would have another policy; Gain and Lose are those
	// with more and less concurrency.
	Members int `json:"members"`
	Changed int `json:"changed"`
	Gain    int `json:"gain"`
	Lose    int `json:"lose"`
	// ConcurrencyNow and ConcurrencyThen are summed up over all members.
	ConcurrencyNow  int64 `json:"concurrencyNow"`
	ConcurrencyThen int64 `json:"concurrencyThen"`
	// FleetNow and FleetThen are the fleet-wide budget; absent for none.
	FleetNow  *int64 `json:"fleetNow,omitempty"`
	FleetThen *int64 `json:"fleetThen,omitempty"`
	// BudgetChange describes what changes of it.
	BudgetChange string `json:"budgetChange,omitempty"`
	// Windows says at which times the numbers change; absent where they do not.
	Windows string `json:"windows,omitempty"`
	// Rows are the members that change, those whose concurrency changes most first. Omitted
	// more change.
	Rows    []BlastRow `json:"rows"`
	Omitted int        `json:"omitted,omitempty"`
	// Unmatched are overrides that no member is subject to.
	Unmatched []string `json:"unmatched,omitempty"`
	// UnknownKeys are keys that this hub does not know, and that have no effect.
	UnknownKeys []string `json:"unknownKeys,omitempty"`
	// Ineffective says which keys have no effect, and why.
	Ineffective []string `json:"ineffective,omitempty"`
	// HeldMembers have an own ConfigMap that leaves them less than the policy.
	HeldMembers []string `json:"heldMembers,omitempty"`
}

// BlastRow is a member whose policy would change.
type BlastRow struct {
	Member string `json:"member"`
	// Now and Then are its effective concurrency; Now is absent without a policy in force.
	Now  *int64 `json:"now,omitempty"`
	Then int64  `json:"then"`
	// PlannedNow and PlannedThen are what the policy says, where the member's own ConfigMap
	// leaves less.
	PlannedNow  *int64 `json:"plannedNow,omitempty"`
	PlannedThen *int64 `json:"plannedThen,omitempty"`
	// Running imports, and images that wait.
	Running *int32 `json:"running,omitempty"`
	Queued  *int32 `json:"queued,omitempty"`
	// OldestQueuedAt is since when the first of them waits.
	OldestQueuedAt *metav1.Time `json:"oldestQueuedAt,omitempty"`
	// WaitNow and WaitThen are when the image that has waited longest is expected.
	WaitNow  *Estimate `json:"waitNow,omitempty"`
	WaitThen *Estimate `json:"waitThen,omitempty"`
	// OtherChanges of the policy, as "retryLimit 3→5".
	OtherChanges string `json:"otherChanges,omitempty"`
	// From is where the policy comes from: "fleet default" or overrides.
	From string `json:"from"`
	// Unknown is why all this may be out of date; empty if it is not.
	Unknown string `json:"unknown,omitempty"`
}
