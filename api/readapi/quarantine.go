package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MemberQuarantineDetail is the quarantine of a member, and what it would do to begin one or to
// end it. It is read from the API server itself.
type MemberQuarantineDetail struct {
	Member string `json:"member"`
	// Quarantined: it is in quarantine, for Reason, since Since by the hub's condition.
	Quarantined bool         `json:"quarantined"`
	Reason      string       `json:"reason,omitempty"`
	Since       *metav1.Time `json:"since,omitempty"`
	// SetBy is the field manager that wrote it last, at SetAt, as the API server recorded; it
	// does not record the person.
	SetBy string       `json:"setBy,omitempty"`
	SetAt *metav1.Time `json:"setAt,omitempty"`
	// ResourceVersion that all this is about: a change of another one is decided anew.
	ResourceVersion string             `json:"resourceVersion"`
	Begin           QuarantineDecision `json:"begin"`
	End             QuarantineDecision `json:"end"`
}

// QuarantineDecision is what follows if a quarantine begins or ends.
type QuarantineDecision struct {
	Effects []string `json:"effects"`
	// ByHand are commands for what the hub does not do.
	ByHand []string `json:"byHand,omitempty"`
	// Refused is why it cannot be done now; empty if it can.
	Refused string `json:"refused,omitempty"`
}
