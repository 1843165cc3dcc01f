package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// MemberList is a page of members, by name. Next is the after of the next page; empty at
// the end.
type MemberList struct {
	Members []Member `json:"members"`
	Next    string   `json:"next,omitempty"`
}

// Member is the summary of a member. Unknown values are omitted.
type Member struct {
	MemberSummary
	Labels map[string]string `json:"labels,omitempty"`
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
