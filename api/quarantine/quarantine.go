// Package quarantine decides how a member is cut off from the fleet, and how it comes back.
package quarantine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// MaxReasonLength is that of spec.quarantine.reason, in characters.
const MaxReasonLength = 256

// Request is what a person asks for: a quarantine for a reason, or its end.
type Request struct {
	Reason string
	End    bool
	// Force changes a field that somebody else applies.
	Force bool
}

// Change is what a request does.
type Change struct {
	// Reason of the quarantine; empty where it ends.
	Reason string `json:"reason,omitempty"`
	// Changed is false where it was so already.
	Changed bool `json:"changed"`
	// Effects say what follows.
	Effects []string `json:"effects"`
	// ByHand are commands for what the hub does not do.
	ByHand []string `json:"byHand,omitempty"`
}

// ValidateReason refuses a reason that cannot be stored, or is not one line of text.
func ValidateReason(reason string) error {
	switch {
	case len([]rune(reason)) > MaxReasonLength:
		return fmt.Errorf("reason has %d characters: at most %d", len([]rune(reason)), MaxReasonLength)
	case v1alpha1.SanitizeText(reason, 4*MaxReasonLength) != reason:
		return fmt.Errorf("reason is one line of text, without control characters")
	}
	return nil
}

// Decide decides about a member as it is.
func Decide(r Request, member *v1alpha1.MemberCluster) (Change, error) {
	c := Change{Effects: []string{}}
	now := member.Spec.Quarantine
	if r.End {
		c.Changed = now != nil
	} else {
		c.Reason, c.Changed = r.Reason, now == nil || now.Reason != r.Reason
	}
	if owner := ownerOf(member); c.Changed && owner != "" && !r.Force {
		return Change{}, fmt.Errorf("spec.quarantine of MemberCluster %s belongs to %s, which would set it again: change it there, or add --force-conflicts", member.Name, owner)
	}
	pull := member.Spec.Connection.Pull != nil
	if r.End {
		return c, c.decideEnd(member, pull)
	}
	c.Effects = append(c.Effects, "nothing is synced, in either direction; it gets no grant, and what it may be running is not reserved in the fleet's budget",
		"rollouts pass it over, prunes treat it as unknown; its cluster works on under its last plan")
	if pull {
		c.Effects = append(c.Effects, "the hub revokes its agent's credentials and join tokens")
		return c, nil
	}
	c.Effects = append(c.Effects, "the hub closes its connection; its token in the member is not revoked, and stays valid until it expires")
	c.ByHand = RevokeCommands(member.Name, AgentNamespace(member))
	return c, nil
}

// decideEnd decides how a quarantine ends.
func (c *Change) decideEnd(member *v1alpha1.MemberCluster, pull bool) error {
	if !c.Changed {
		return nil
	}
	joined := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionJoined)
	revoked := joined != nil && joined.Reason == v1alpha1.ReasonRevoked
	if !pull {
		if joined != nil && !revoked {
			return fmt.Errorf("the quarantine of %s ends only once the hub has revoked what its agent got in pull mode (condition Joined is gone then); now: %s", member.Name, describeJoined(joined))
		}
		c.Effects = append(c.Effects, "the hub connects again, and believes what the member claims to run",
			"if its tokens were revoked, let the hub in by "+shellword.FormatCommand("kubectl ot join push %s --member <context>", member.Name))
		return nil
	}
	if !revoked {
		return fmt.Errorf("the quarantine of %s ends only once its agent's credentials are revoked (condition Joined, reason Revoked); now: %s", member.Name, describeJoined(joined))
	}
	c.Effects = append(c.Effects, "its agent registers anew, with a new join token: "+shellword.FormatCommand("kubectl ot join pull %s --member <context> -- …", member.Name),
		"from then on the hub believes what the member claims to run")
	return nil
}

func describeJoined(c *metav1.Condition) string {
	if c == nil {
		return "the hub has not said what it does"
	}
	return v1alpha1.SanitizeText(c.Reason+": "+c.Message, 1024)
}

// DefaultAgentNamespace is that of a MemberCluster that names none.
const DefaultAgentNamespace = "ot-agent"

// AgentNamespace returns the namespace of a member's agent.
func AgentNamespace(member *v1alpha1.MemberCluster) string {
	if member != nil && member.Spec.AgentNamespace != "" {
		return member.Spec.AgentNamespace
	}
	return DefaultAgentNamespace
}

// Secrets of the hub's account in a member.
const (
	// AccessSecret is what the hub's tokens are bound to: without it none is valid.
	AccessSecret = "ot-hub-access"
	// LegacyTokenSecret has the token without end that earlier versions gave the hub.
	LegacyTokenSecret = "ot-hub-token"
)

// RevokeCommands returns the documented commands that end every token of the hub in a member.
func RevokeCommands(context, agentNamespace string) []string {
	return []string{
		shellword.FormatCommand("kubectl --context %s -n %s delete secret %s", context, agentNamespace, AccessSecret),
		shellword.FormatCommand("kubectl --context %s -n %s delete secret %s --ignore-not-found", context, agentNamespace, LegacyTokenSecret),
	}
}

// Setter is who wrote spec.quarantine as it is: a field manager, and when.
type Setter struct {
	Manager string
	At      *metav1.Time
}

// Setters returns who wrote spec.quarantine, the last first; none where the member's managed
// fields are not known.
func Setters(member *v1alpha1.MemberCluster) (all []Setter) {
	for _, entry := range member.ManagedFields {
		if entry.FieldsV1 == nil || entry.Subresource != "" {
			continue
		}
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil || fields.Spec["f:quarantine"] == nil {
			continue
		}
		all = append(all, Setter{Manager: v1alpha1.SanitizeText(entry.Manager, 128), At: entry.Time})
	}
	slices.SortStableFunc(all, func(a, b Setter) int {
		switch {
		case a.At.Equal(b.At):
			return 0
		case b.At == nil || a.At != nil && b.At.Before(a.At):
			return -1
		default:
			return 1
		}
	})
	return all
}

// ownerOf returns who applies spec.quarantine, other than people with kubectl; empty where
// nobody does.
func ownerOf(member *v1alpha1.MemberCluster) string {
	for _, s := range Setters(member) {
		if !strings.HasPrefix(s.Manager, "kubectl") {
			return s.Manager
		}
	}
	return ""
}
