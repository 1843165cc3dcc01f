package diagnosis

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Urgency says what a report means for a machine.
type Urgency int

// Urgencies, the least first.
const (
	// Routine reports belong to every start.
	Routine Urgency = iota
	// Passing reports belong to every clone, and hold it up if they last.
	Passing
	// Unknown reports match no rule. They are passed on verbatim.
	Unknown
	// Waits: it passes without anybody's action.
	Waits
	// ActIfLasting: a person has to act unless it passes within some seconds.
	ActIfLasting
	// Act: a person has to act.
	Act
)

// Report is what one object of a lower layer says: a condition, or the state of a container.
type Report struct {
	// Object is the kind of the object.
	Object string
	// Type and Status are those of a condition, or of a container and its state.
	Type, Status    string
	Reason, Message string
}

// Finding is a judged report.
type Finding struct {
	Report
	Urgency Urgency
	// MachineReason is the reason of the VirtualMachine, if it is a special one.
	MachineReason v1alpha1.Reason
	// Advice says what to do, where the report does not.
	Advice string

	rule int
}

const (
	// maxQuotedBytes bounds what a sentence quotes of one report.
	maxQuotedBytes = 768
	// maxTypeBytes bounds type, status and reason.
	maxTypeBytes = 128
	// maxFindings bounds how many reports one text has.
	maxFindings = 4
)

// randomSuffix of Pods that KubeVirt creates again and again: with it, each attempt would
// write the status of the machine.
var randomSuffix = regexp.MustCompile(`\b(virt-launcher-[-.a-z0-9]*-)[bcdfghjklmnpqrstvwxz2456789]{5}\b`)

// Sentence returns who reports what.
func (f Finding) Sentence() string {
	what := f.Reason
	if what == "" {
		what = strings.TrimSpace(f.Type + " " + f.Status)
	}
	text := reporters[f.Object] + " reports " + v1alpha1.SanitizeText(what, maxTypeBytes)
	if f.Object == objectPod && f.Reason != "" {
		text += " of " + v1alpha1.SanitizeText(f.Type, maxTypeBytes)
	}
	if f.Message != "" {
		text += ": " + v1alpha1.SanitizeText(randomSuffix.ReplaceAllString(f.Message, "$1…"), maxQuotedBytes)
	}
	if f.Advice != "" {
		text += ": " + f.Advice
	}
	return text
}

// Findings are sorted: the most urgent first, and what is more specific before the rest.
type Findings []Finding

// judgeReports applies the rules to reports. A message counts once, where several objects repeat it.
func judgeReports(reports []Report) Findings {
	var all Findings
	seen := map[string]bool{}
	for _, r := range reports {
		f := applyRules(r)
		if r.Message != "" && f.Urgency > Routine {
			if seen[r.Message] {
				continue
			}
			seen[r.Message] = true
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Urgency, a.Urgency), cmp.Compare(a.rule, b.rule))
	})
	return all
}

// Worst returns the most urgent finding.
func (all Findings) Worst() Finding {
	if len(all) == 0 {
		return Finding{}
	}
	return all[0]
}

// Describe joins the sentences of all findings that are at least as urgent as from.
func (all Findings) Describe(from Urgency) string {
	var sentences []string
	for _, f := range all {
		if f.Urgency >= from && len(sentences) < maxFindings {
			sentences = append(sentences, f.Sentence())
		}
	}
	return strings.Join(sentences, "; ")
}
