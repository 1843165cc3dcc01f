package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// MemberList is a page of members, by name unless sorted by something else. Next is the after
// of the next page; empty at the end, and where the request has an offset.
type MemberList struct {
	Members []Member `json:"members"`
	Next    string   `json:"next,omitempty"`
	// Total is how many members match.
	Total int `json:"total"`
	// States counts those that match the request but for its state.
	States MemberStates `json:"states"`
}

// What a MemberList is sorted by. What is unknown is last.
const (
	MembersByName  = "name"
	MembersByState = "state"
	// MembersByQueued: those with the most images that wait first, and so on.
	MembersByQueued  = "queued"
	MembersBySlots   = "slots"
	MembersByFailing = "failing"
	MembersByImages  = "images"
	MembersByBytes   = "bytes"
	MembersByVersion = "version"
	// MembersByLastReport: those that have not reported for longest first.
	MembersByLastReport = "lastReport"
)

// MemberOrders lists what a MemberList can be sorted by, the default first.
func MemberOrders() []string {
	return []string{MembersByName, MembersByState, MembersByQueued, MembersBySlots, MembersByFailing, MembersByImages, MembersByBytes, MembersByVersion, MembersByLastReport}
}

// StateUnknown selects the members that may have more images than is known, whatever their
// MemberState.
const StateUnknown = "unknown"

// Member is the summary of a member. Unknown values are omitted.
type Member struct {
	MemberSummary
	Labels map[string]string `json:"labels,omitempty"`
	// State in one word, the Reason for it, and Since when it has it.
	State  MemberState  `json:"state"`
	Reason string       `json:"reason,omitempty"`
	Since  *metav1.Time `json:"since,omitempty"`
	// Queued, Syncing and FailingTotal count images, as the member last reported.
	Queued       *int32 `json:"queued,omitempty"`
	Syncing      *int32 `json:"syncing,omitempty"`
	FailingTotal *int32 `json:"failingTotal,omitempty"`
	// Ready, Reachable, AgentHealthy and PolicyAcknowledged are conditions of its
	// MemberCluster: True, False or Unknown. Message is that of Ready.
	Ready              metav1.ConditionStatus `json:"ready"`
	Reachable          metav1.ConditionStatus `json:"reachable"`
	AgentHealthy       metav1.ConditionStatus `json:"agentHealthy"`
	PolicyAcknowledged metav1.ConditionStatus `json:"policyAcknowledged"`
	Message            string                 `json:"message,omitempty"`
	// Quarantine is the reason of its quarantine; empty for none. Transfers is its share
	// of the fleet-wide budget.
	Quarantine   string                    `json:"quarantine,omitempty"`
	Transfers    *v1alpha1.MemberTransfers `json:"transfers,omitempty"`
	ClusterUID   string                    `json:"clusterUID,omitempty"`
	AgentVersion string                    `json:"agentVersion,omitempty"`
	Policy       *v1alpha1.MemberPolicy    `json:"policy,omitempty"`
	Budget       *int32                    `json:"budget,omitempty"`
	SlotsUsed    *int32                    `json:"slotsUsed,omitempty"`
	// OwnConcurrency is the limit of the member's own policy ConfigMap; absent for none.
	OwnConcurrency *int32                  `json:"ownConcurrency,omitempty"`
	LastReport     *metav1.Time            `json:"lastReport,omitempty"`
	Failing        []v1alpha1.ImageSummary `json:"failing,omitempty"`
}

// MemberDetail is one member: who it is, what holds of it, and why it may import as much as
// it may.
type MemberDetail struct {
	Member
	// Mode is how hub and member reach each other: ModePush or ModePull.
	Mode           string `json:"mode"`
	AgentNamespace string `json:"agentNamespace,omitempty"`
	// Shard is the hub replica that syncs it.
	Shard     string      `json:"shard,omitempty"`
	CreatedAt metav1.Time `json:"createdAt"`
	// ReportedAt is when the hub received the report, by its own clock; absent where this
	// replica has only seen what was stored when it was elected.
	ReportedAt  *metav1.Time `json:"reportedAt,omitempty"`
	SilentSince *metav1.Time `json:"silentSince,omitempty"`
	// Plan is the newest, and AcknowledgedPlan the one that the member works under.
	Plan             *v1alpha1.PlanVersion `json:"plan,omitempty"`
	AcknowledgedPlan *v1alpha1.PlanVersion `json:"acknowledgedPlan,omitempty"`
	// Conditions, those that somebody has to look at first.
	Conditions []MemberCondition `json:"conditions"`
	// BudgetChain is why as many imports may run as may.
	BudgetChain WhyBudget `json:"budgetChain"`
	// Activity is what the member imports and what waits; ActivityUnknown is why it may be out
	// of date, empty if it is not.
	Activity        *WhyActivity           `json:"activity,omitempty"`
	ActivityUnknown string                 `json:"activityUnknown,omitempty"`
	ImageCounts     *v1alpha1.MemberImages `json:"imageCounts,omitempty"`
}

// Modes of a member.
const (
	// ModePush: the hub connects to the member.
	ModePush = "push"
	// ModePull: the member's agent connects to the hub.
	ModePull = "pull"
)

// RunbooksURL followed by a runbook and .md is its page.
const RunbooksURL = "https://github.com/pelotech/ot-fleet/blob/main/charts/ot-hub/runbooks/"

// MemberCondition is a condition of a member.
type MemberCondition struct {
	Type    string                 `json:"type"`
	Status  metav1.ConditionStatus `json:"status"`
	Reason  string                 `json:"reason"`
	Message string                 `json:"message,omitempty"`
	Since   metav1.Time            `json:"since"`
	// Wanted is the status that a healthy member has.
	Wanted metav1.ConditionStatus `json:"wanted"`
	// WhatToDo where Status is not Wanted, in a sentence; absent where there is nothing to do, or
	// where Message says it.
	WhatToDo string `json:"whatToDo,omitempty"`
	// Runbook is the page that says more; absent for none.
	Runbook string `json:"runbook,omitempty"`
}

// MemberImages are the images of one page of a member's report. Unknown is why the member may
// have more; empty if all is known. Next is the page of the next request; empty at the end.
type MemberImages struct {
	Images  []v1alpha1.ReportedImage `json:"images"`
	Unknown string                   `json:"unknown,omitempty"`
	Next    string                   `json:"next,omitempty"`
}

// MemberSummary sums up one member. Unknown is why it may have more than is known; empty
// if all is known.
type MemberSummary struct {
	Member  string `json:"member"`
	Unknown string `json:"unknown,omitempty"`
	Counts
}

// UnknownMember is a member that may have more than is known of it, and the reason.
type UnknownMember struct {
	Member string `json:"member"`
	Reason string `json:"reason"`
}
