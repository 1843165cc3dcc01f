// Package quarantine decides how a member is cut off from the fleet, and how it comes back.
package quarantine

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/join"
	"github.com/pelotech/ot-fleet/cli/render"
)

// maxReasonLength is that of spec.quarantine.reason.
const maxReasonLength = 256

// Request is what a person asks for: a quarantine for a reason, or its end.
type Request struct {
	Name   string
	Reason string
	End    bool
	// Force changes a field that somebody else applies.
	Force bool
}

// Validate refuses arguments that do not go together.
func (r Request) Validate() error {
	if err := join.ValidateName(r.Name); err != nil {
		return err
	}
	reason := strings.TrimSpace(r.Reason)
	switch {
	case r.End && reason != "":
		return fmt.Errorf("--end takes no --reason: a quarantine that ends has none")
	case !r.End && reason == "":
		return fmt.Errorf("quarantine needs --reason, for whoever finds %s cut off; --end lets it take part again", r.Name)
	case len([]rune(r.Reason)) > maxReasonLength:
		return fmt.Errorf("--reason has %d characters: at most %d", len([]rune(r.Reason)), maxReasonLength)
	case v1alpha1.SanitizeText(r.Reason, 4*maxReasonLength) != r.Reason:
		return fmt.Errorf("--reason is one line of text, without control characters")
	}
	return nil
}

// Quarantine is the answer.
type Quarantine struct {
	render.Envelope
	Name string `json:"name"`
	// Reason of the quarantine; empty where it has ended.
	Reason string `json:"reason,omitempty"`
	// Changed is false where it was so already.
	Changed bool `json:"changed"`
	// Effects say what follows.
	Effects []string `json:"effects"`
	// ByHand are commands for what the hub does not do.
	ByHand []string `json:"byHand,omitempty"`
}

// Names lists the MemberCluster.
func (q *Quarantine) Names() []string { return []string{"membercluster/" + q.Name} }

// Decide decides about a member as it is.
func Decide(r Request, member *v1alpha1.MemberCluster) (*Quarantine, error) {
	q := &Quarantine{Envelope: render.NewEnvelope("Quarantine"), Name: r.Name, Effects: []string{}}
	now := member.Spec.Quarantine
	if r.End {
		q.Changed = now != nil
	} else {
		q.Reason, q.Changed = r.Reason, now == nil || now.Reason != r.Reason
	}
	if owner := ownerOf(member, "f:spec", "f:quarantine"); q.Changed && owner != "" && !r.Force {
		return nil, fmt.Errorf("spec.quarantine of MemberCluster %s belongs to %s, which would set it again: change it there, or add --force-conflicts", r.Name, owner)
	}
	pull := member.Spec.Connection.Pull != nil
	if r.End {
		return q, q.decideEnd(member, pull)
	}
	q.Effects = append(q.Effects, "nothing is synced, in either direction; it gets no grant, and what it may be running is not reserved in the fleet's budget",
		"rollouts pass it over, prunes treat it as unknown; its cluster works on under its last plan")
	if pull {
		q.Effects = append(q.Effects, "the hub revokes its agent's credentials and join tokens")
		return q, nil
	}
	q.Effects = append(q.Effects, "the hub closes its connection; its token in the member is not revoked, and stays valid until it expires")
	q.ByHand = join.RevokeCommand(r.Name, join.AgentNamespace(member))
	return q, nil
}

// decideEnd decides how a quarantine ends.
func (q *Quarantine) decideEnd(member *v1alpha1.MemberCluster, pull bool) error {
	if !q.Changed {
		return nil
	}
	if !pull {
		q.Effects = append(q.Effects, "the hub connects again, and believes what the member claims to run",
			"if its tokens were revoked, let the hub in by kubectl ot join push "+q.Name+" --member <context>")
		return nil
	}
	joined := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionJoined)
	if joined == nil || joined.Reason != v1alpha1.ReasonRevoked {
		said := "the hub has not said what it does"
		if joined != nil {
			said = v1alpha1.SanitizeText(joined.Reason+": "+joined.Message, 1024)
		}
		return fmt.Errorf("the quarantine of %s ends only once its agent's credentials are revoked (condition Joined, reason Revoked); now: %s", q.Name, said)
	}
	q.Effects = append(q.Effects, "its agent registers anew, with a new join token: kubectl ot join pull "+q.Name+" --member <context> -- …",
		"from then on the hub believes what the member claims to run")
	return nil
}

// ownerOf returns who applies a field, other than people with kubectl; empty where nobody does.
func ownerOf(member *v1alpha1.MemberCluster, path ...string) string {
	for _, entry := range member.ManagedFields {
		if entry.FieldsV1 == nil || entry.Subresource != "" || strings.HasPrefix(entry.Manager, "kubectl") {
			continue
		}
		var fields map[string]any
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		found := true
		for _, step := range path {
			next, ok := fields[step].(map[string]any)
			fields, found = next, found && ok
		}
		if found {
			return v1alpha1.SanitizeText(entry.Manager, 128)
		}
	}
	return ""
}

// Draw draws the screen.
func (q *Quarantine) Draw(p *render.Page) {
	switch {
	case q.Reason != "" && q.Changed:
		p.Line(render.Attention.With("%s is in quarantine: %s", q.Name, q.Reason)...)
	case q.Reason != "":
		p.Line(render.Attention.With("%s is in quarantine already: %s", q.Name, q.Reason)...)
	case q.Changed:
		p.Line(render.Done.With("the quarantine of %s has ended", q.Name)...)
	default:
		p.Line(render.Done.With("%s is in no quarantine", q.Name)...)
	}
	for _, effect := range q.Effects {
		p.Line(render.Text("  %s", effect))
	}
	for i, command := range q.ByHand {
		if i == 0 {
			p.Line(render.Text("To revoke the hub's tokens, where the member is reached:"))
		}
		p.Command(command)
	}
}
