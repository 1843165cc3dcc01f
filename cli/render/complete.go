package render

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Completion completes the commands within texts by the flags that this command was given: copied
// without them, they would act on another cluster than the one that the screen is about. All that is
// printed passes through it, since messages of hub and agent name commands as well.
type Completion struct {
	// OT are the flags of kubectl ot.
	OT []string
	// Hub, Member and Any are those of kubectl: for commands about kinds of the hub, for all others, and
	// for both. Member is empty where the member's context is not known.
	Hub, Member, Any []string
}

var (
	// kubectlCommand is a command with what may follow it on its line. In prose, kubectl alone is none.
	kubectlCommand = regexp.MustCompile(`\bkubectl (ot|-n|--namespace|--context|annotate|create|delete|describe|get|label|patch|wait) `)
	// ofHub is a command of kubectl about a kind of the hub. Namespaces do not decide: an agent's may have
	// the name of the hub's.
	ofHub = regexp.MustCompile(`^(?:(?:-n|--namespace) \S+ )?[a-z]+ (?:--\S+ )*(?:` +
		`(?:memberclusters?|members?|memberlinks?|link|clusterjoins?|join|fleetdiskimages?|fdi|prunereports?|prr|prunereportpages?|prp|imageprunes?|ipr)(?:\.pelotech\.ot)?|` +
		`clusters?(?:\.cluster\.x-k8s\.io)?|(?:namespaces?|ns)[ /]` + v1alpha1.MemberNamespacePrefix + `\S+)(?:[ /,;:)]|$)`)
)

// Complete returns a text whose commands have the flags.
func (c Completion) Complete(text string) string { return c.complete(text, strings.Join) }

// CompleteJSON does so within the texts of JSON.
func (c Completion) CompleteJSON(data []byte) []byte {
	return []byte(c.complete(string(data), func(flags []string, separator string) string {
		quoted, err := json.Marshal(strings.Join(flags, separator))
		if err != nil {
			panic(err) // of a string: a mistake of this program
		}
		return string(quoted[1 : len(quoted)-1])
	}))
}

func (c Completion) complete(text string, join func([]string, string) string) string {
	if len(c.OT) == 0 && len(c.Hub) == 0 && len(c.Member) == 0 && len(c.Any) == 0 {
		return text
	}
	var b strings.Builder
	for {
		at := kubectlCommand.FindStringSubmatchIndex(text)
		if at == nil {
			return b.String() + text
		}
		rest, flags := text[at[2]:], c.Any
		b.WriteString(text[:at[2]])
		switch {
		case strings.HasPrefix(rest, "ot "):
			b.WriteString("ot ")
			rest, flags = rest[len("ot "):], c.OT
		case strings.HasPrefix(rest, "--context "):
		case ofHub.MatchString(rest):
			flags = append(slices.Clone(c.Any), c.Hub...)
		default:
			flags = append(slices.Clone(c.Any), c.Member...)
		}
		if added := join(flags, " "); added != "" && !strings.HasPrefix(rest, added) {
			b.WriteString(added + " ")
		}
		text = rest
	}
}
