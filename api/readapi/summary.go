package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of a Summary, whatever the size of the fleet. What they leave out is counted.
const (
	// MaxSummaryMembers is how many members that are not Ready it names.
	MaxSummaryMembers = 8
	// MaxSummaryRollouts is how many rollouts it names.
	MaxSummaryRollouts = 12
	// MaxSummaryFailing is how many failed images it names.
	MaxSummaryFailing = 5
	// MaxSummaryAttention is how many things it names that need a person.
	MaxSummaryAttention = 10
	// MaxSummaryMessage is the length of a message in it.
	MaxSummaryMessage = 160
	// TrendPoints is how many points a trend has.
	TrendPoints = 8
)

// Summary is the fleet on one page. Unknown values are omitted: they are never zero.
type Summary struct {
	// ElectedAt is since when the replica that answers is elected. What it remembers, such
	// as rates, is no older.
	ElectedAt metav1.Time `json:"electedAt"`
	// RemembersSince is since when it knows what was transferred, where it was filled from
	// Prometheus; absent where that is ElectedAt.
	RemembersSince *metav1.Time    `json:"remembersSince,omitempty"`
	Policy         PolicyState     `json:"policy"`
	Members        MemberStates    `json:"members"`
	Images         Counts          `json:"images"`
	Transfers      TransferSummary `json:"transfers"`
	Rollouts       RolloutSummary  `json:"rollouts"`
	Failing        FailingSummary  `json:"failing"`
	// Attention is what waits for a person.
	Attention AttentionSummary `json:"attention"`
	// CanGo is the newest complete PruneReport; absent for none.
	CanGo *PruneSummary `json:"canGo,omitempty"`
}

// PolicyState is the state of the fleet's policy.
type PolicyState struct {
	// Accepted: the ConfigMap is in force as it is.
	Accepted bool   `json:"accepted"`
	Message  string `json:"message,omitempty"`
}

// MemberState is the state of a member in one word. Each member has one.
type MemberState string

// States of a member, the first that applies.
const (
	// MemberQuarantined: a person has excluded it.
	MemberQuarantined MemberState = "Quarantined"
	// MemberNeverReported: nothing is known of it.
	MemberNeverReported MemberState = "NeverReported"
	// MemberSilent: its agent no longer reports.
	MemberSilent MemberState = "Silent"
	// MemberStalled: a person has to correct something; see the message.
	MemberStalled MemberState = "Stalled"
	// MemberFailing: it has failed images.
	MemberFailing MemberState = "Failing"
	// MemberNotReady: it is on its way to be Ready.
	MemberNotReady MemberState = "NotReady"
	// MemberReady: all is well.
	MemberReady MemberState = "Ready"
)

// AllMemberStates lists all states.
func AllMemberStates() []MemberState {
	return []MemberState{MemberQuarantined, MemberNeverReported, MemberSilent, MemberStalled, MemberFailing, MemberNotReady, MemberReady}
}

// MemberStates counts the members by state. The counts add up to Total.
type MemberStates struct {
	Total         int `json:"total"`
	Ready         int `json:"ready"`
	NotReady      int `json:"notReady"`
	Failing       int `json:"failing"`
	Stalled       int `json:"stalled"`
	Silent        int `json:"silent"`
	NeverReported int `json:"neverReported"`
	Quarantined   int `json:"quarantined"`
	// Unknown is how many of them may have more images than is known.
	Unknown int `json:"unknown"`
	// Named are the first that are not Ready, the worst first.
	Named []NamedMember `json:"named,omitempty"`
}

// CountOf returns the counter of a state.
func (m *MemberStates) CountOf(state MemberState) *int {
	switch state {
	case MemberReady:
		return &m.Ready
	case MemberFailing:
		return &m.Failing
	case MemberStalled:
		return &m.Stalled
	case MemberSilent:
		return &m.Silent
	case MemberNeverReported:
		return &m.NeverReported
	case MemberQuarantined:
		return &m.Quarantined
	default:
		return &m.NotReady
	}
}

// NamedMember is a member that is not Ready.
type NamedMember struct {
	Member string      `json:"member"`
	State  MemberState `json:"state"`
	Reason string      `json:"reason,omitempty"`
	// Since when it has the state; absent if unknown.
	Since   *metav1.Time `json:"since,omitempty"`
	Message string       `json:"message,omitempty"`
}

// TransferSummary is what the fleet downloads.
type TransferSummary struct {
	// Fleet is the budget of the whole fleet, and Sources those of its groups of sources,
	// in the policy's order, with SourceOther at the end.
	Fleet   TransferBudget   `json:"fleet"`
	Sources []TransferBudget `json:"sources"`
	// Queued is how many images wait for a slot, in QueuedMembers members. OldestQueuedAt is
	// since when the first of them waits.
	Queued         int          `json:"queued"`
	QueuedMembers  int          `json:"queuedMembers"`
	OldestQueuedAt *metav1.Time `json:"oldestQueuedAt,omitempty"`
	// ReservedUntil is until when the last slot is reserved for silent members.
	ReservedUntil *metav1.Time `json:"reservedUntil,omitempty"`
}

// TransferBudget is a budget, and what is used of it.
type TransferBudget struct {
	// Name of the group of sources; empty for the fleet.
	Name string `json:"name,omitempty"`
	// Limit is the fleet-wide limit; absent for none.
	Limit *int64 `json:"limit,omitempty"`
	// Used is how many imports run, as members report. UsedAtLeast: members list more
	// slots than imports.
	Used        int  `json:"used"`
	UsedAtLeast bool `json:"usedAtLeast,omitempty"`
	// Held is how many slots the budget counts as taken, and Reserved those of them that
	// silent members may be using. Both are absent without a limit.
	Held     *int64 `json:"held,omitempty"`
	Reserved *int64 `json:"reserved,omitempty"`
	// Waiting images in WaitingMembers members are next in their queues, and from this
	// source. WaitingAtLeast: longer queues are known in part.
	Waiting        int  `json:"waiting"`
	WaitingMembers int  `json:"waitingMembers"`
	WaitingAtLeast bool `json:"waitingAtLeast,omitempty"`
	// BytesPerSecond of the imports whose rate is known; absent where no member tells.
	BytesPerSecond *int64 `json:"bytesPerSecond,omitempty"`
	// Bytes24h were downloaded in the last 24 hours, or since RemembersSince, or ElectedAt.
	Bytes24h *int64 `json:"bytes24h,omitempty"`
	// Trend is bytes per second over the last hour, in TrendPoints parts.
	Trend Values `json:"trend,omitempty"`
	// UnknownMembers of these members it is not known what they download.
	UnknownMembers int `json:"unknownMembers,omitempty"`
}

// RolloutSummary counts the FleetDiskImages by phase.
type RolloutSummary struct {
	Total  int                           `json:"total"`
	Phases map[v1alpha1.RolloutPhase]int `json:"phases,omitempty"`
	// Unobserved rollouts have a status about the spec before, or none: their phase is unknown.
	Unobserved int `json:"unobserved,omitempty"`
	// Named are the first that are not done: those that wait for a person or failed first.
	Named []NamedRollout `json:"named,omitempty"`
}

// NamedRollout is a rollout in short. Without a phase, nothing is known of this version yet.
type NamedRollout struct {
	Name        string                 `json:"name"`
	Version     string                 `json:"version"`
	Phase       v1alpha1.RolloutPhase  `json:"phase,omitempty"`
	Reason      string                 `json:"reason,omitempty"`
	CurrentWave string                 `json:"currentWave,omitempty"`
	Clusters    v1alpha1.ClusterCounts `json:"clusters"`
	ExpectedAt  *metav1.Time           `json:"expectedAt,omitempty"`
}

// FailingSummary counts the failed images.
type FailingSummary struct {
	Images  int `json:"images"`
	Members int `json:"members"`
	// Named are the first, by member, namespace and name.
	Named []FailingImage `json:"named,omitempty"`
}

// FailingImage is a failed image of a member.
type FailingImage struct {
	Member string `json:"member"`
	v1alpha1.ImageSummary
}

// AttentionSummary is what waits for a person.
type AttentionSummary struct {
	Total int         `json:"total"`
	Items []Attention `json:"items,omitempty"`
}

// Attention is one thing that waits for a person.
type Attention struct {
	// Kind of the object, as FleetDiskImage, MemberCluster, ImagePrune, or ConfigMap for the
	// fleet's policy.
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// PruneSummary is a PruneReport in short. Candidates are without those that its ImagePrunes have pruned.
type PruneSummary struct {
	Report          string              `json:"report"`
	CompletedAt     *metav1.Time        `json:"completedAt,omitempty"`
	Digest          string              `json:"digest"`
	Candidates      v1alpha1.PruneTotal `json:"candidates"`
	Others          v1alpha1.PruneTotal `json:"others"`
	UnknownClusters int32               `json:"unknownClusters"`
}
