package join

import (
	"fmt"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Acceptance is what to do about an agent that asks to be let in.
type Acceptance struct {
	// Key to accept; empty where it is accepted already.
	Key string `json:"key,omitempty"`
	// Compared reports whether the key is known to be the agent's own.
	Compared bool `json:"compared"`
	Fingerprints
	// Text says it to a person.
	Text string `json:"text"`
}

// OtherAgentError says that the key is not that of the agent in the member's cluster.
type OtherAgentError struct{ Text string }

func (e OtherAgentError) Error() string { return e.Text }

// DecideAcceptance decides which key of an agent to accept. given is the agent's key as a person
// has read it in its cluster; empty where nobody has. It refuses a key that is not the agent's.
func DecideAcceptance(name string, hub HubState, member *MemberState, given string) (Acceptance, error) {
	switch {
	case hub.Member == nil:
		return Acceptance{}, fmt.Errorf("there is no MemberCluster %s", name)
	case hub.Member.Spec.Connection.Pull == nil:
		return Acceptance{}, fmt.Errorf("the agent of MemberCluster %s is not in pull mode: there is no key to accept", name)
	case given != "" && fingerprintPattern.FindString(given) != given:
		return Acceptance{}, fmt.Errorf("--key is a fingerprint as the agent shows it, SHA256: and 43 characters: %q is none", v1alpha1.Truncate(given, 100))
	}
	a := Acceptance{Fingerprints: ReadFingerprints(hub, member)}
	if given != "" {
		if a.Agent != "" && a.Agent != given {
			return a, fmt.Errorf("--key is not what the agent says, %s: nothing is accepted", a.Agent)
		}
		a.Agent = given
	}
	pull, joined := hub.Member.Spec.Connection.Pull, condition(hub.Member, v1alpha1.ConditionJoined)
	switch {
	case pull.Revoked:
		return a, fmt.Errorf("MemberCluster %s: what its agent had is revoked (spec.connection.pull.revoked); unset it first", name)
	case joined.Reason == v1alpha1.ReasonJoined:
		a.Text = fmt.Sprintf("the agent of %s is registered; no agent asks to be let in", name)
		return a, nil
	case a.Hub != "" && pull.AcceptedKey == a.Hub:
		a.Compared, a.Text = a.Agent == a.Hub, fmt.Sprintf("key %s of %s is accepted already", a.Hub, name)
		return a, nil
	case a.Hub == "":
		return a, fmt.Errorf("no agent asks to be let in as %s: %s", name, orElse(v1alpha1.SanitizeText(joined.Message, 1024), "the hub has not said what it waits for"))
	case a.Agent != "" && a.Agent != a.Hub:
		return a, OtherAgentError{fmt.Sprintf("the agent of %s has key %s, but the hub was sent %s: another agent has presented the join token. Nothing is accepted; have the hub make another token: %s",
			name, a.Agent, a.Hub, NewTokenCommand(name))}
	}
	a.Key, a.Compared = a.Hub, a.Agent == a.Hub
	a.Text = fmt.Sprintf("an agent asks to be let in as %s", name)
	return a, nil
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
