package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxPreviewRows bounds a preview, which is stored in an annotation.
	maxPreviewRows        = 100
	maxUnmatchedOverrides = 10
	maxHeldMembers        = 10
)

// previewRow is a member whose policy would change.
type previewRow struct {
	member        string
	before, after string // concurrency, and what the member's own ConfigMap leaves of it
	delta         int64
	otherChanges  string // changes of other keys
	source        string
}

// Preview describes what would change if a policy replaced the active one, nil for none:
// which members gain or lose concurrency, and the sum over the fleet. What a member's own
// ConfigMap holds back is neither gained nor counted. Beyond
// maxPreviewRows it lists the members whose concurrency changes most.
func Preview(now, then *Policy, members []Member) string {
	var rows []previewRow
	var refused []apipolicy.KeyError
	var gain, lose, sumNow, sumThen int64
	var held []string
	for _, m := range members {
		before := map[string]string{}
		if now != nil {
			before, _, _ = now.ForMember(m.Name, m.Labels) // without a valid policy there is nothing to compare
		}
		after, source, errs := then.ForMember(m.Name, m.Labels)
		if len(errs) > 0 {
			refused = append(refused, apipolicy.KeyError{Key: m.Name, Message: FormatErrors(errs) + " (" + source + ")"})
			continue
		}
		a, textNow := formatEffective(before, m)
		b, textThen := formatEffective(after, m)
		if b < ConcurrencyOf(after) {
			held = append(held, m.Name)
		}
		sumNow, sumThen = sumNow+a, sumThen+b
		if now != nil && len(before) > 0 {
			before[KeyWeight], after[KeyWeight] = fmt.Sprint(now.MemberWeight(m.Name, m.Labels)), fmt.Sprint(then.MemberWeight(m.Name, m.Labels))
		}
		row := previewRow{m.Name, textNow, textThen, b - a, describeChangedKeys(before, after), source}
		switch {
		case b > a:
			gain++
		case b < a:
			lose++
		}
		if row.before != row.after || row.otherChanges != "" {
			rows = append(rows, row)
		}
	}

	var out strings.Builder
	if len(refused) > 0 {
		fmt.Fprintf(&out, "It would be refused: the overrides contradict each other for %d of %d members.\n%s\n", len(refused), len(members), FormatErrors(refused))
		return out.String()
	}
	fmt.Fprintf(&out, "%d of %d members would change. Concurrency: %d gain, %d lose, the fleet's sum goes from %d to %d (%+d).\n",
		len(rows), len(members), gain, lose, sumNow, sumThen, sumThen-sumNow)
	if over := then.validateSafeShares(members); len(over) > 0 {
		return "It would be refused: " + FormatErrors(over) + "\n"
	}
	if change := describeBudgetChange(now, then); change != "" {
		fmt.Fprintf(&out, "The budget of the fleet: %s.\n", change)
	}
	if len(held) > 0 {
		fmt.Fprintf(&out, "Held lower by key concurrency of their own policy ConfigMap: %s.\n", joinBounded(held, ", ", maxHeldMembers))
	}
	if idle := then.unmatchedOverrides(members); len(idle) > 0 {
		fmt.Fprintf(&out, "No member is subject to: %s.\n", joinBounded(idle, "; ", maxUnmatchedOverrides))
	}
	out.WriteString(formatTable(rows))
	return out.String()
}

// formatEffective returns what a member runs of a policy's concurrency, and both for people,
// as in "8, held to 3".
func formatEffective(data map[string]string, m Member) (effective int64, text string) {
	planned := ConcurrencyOf(data)
	if own := m.OwnConcurrency; own != nil && int64(*own) < planned {
		return int64(*own), fmt.Sprintf("%d, held to %d", planned, *own)
	}
	return planned, cmp.Or(data[apipolicy.KeyConcurrency], "-")
}

// joinBounded joins the first texts, and says how many more there are.
func joinBounded(texts []string, separator string, most int) string {
	joined := strings.Join(texts[:min(len(texts), most)], separator)
	if more := len(texts) - most; more > 0 {
		joined += fmt.Sprintf("%sand %d more", separator, more)
	}
	return joined
}

func formatTable(rows []previewRow) string {
	if len(rows) == 0 {
		return ""
	}
	omitted := 0
	if len(rows) > maxPreviewRows {
		slices.SortFunc(rows, func(a, b previewRow) int {
			return cmp.Or(cmp.Compare(max(b.delta, -b.delta), max(a.delta, -a.delta)), strings.Compare(a.member, b.member))
		})
		omitted = len(rows) - maxPreviewRows
		rows = rows[:maxPreviewRows]
	}
	slices.SortFunc(rows, func(a, b previewRow) int { return strings.Compare(a.member, b.member) })
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "MEMBER\tNOW\tTHEN\tCHANGE\tOTHER KEYS\tFROM")
	for _, r := range rows {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.member, r.before, r.after, formatSigned(r.delta), cmp.Or(r.otherChanges, "-"), r.source)
	}
	_ = w.Flush()
	if omitted > 0 {
		_, _ = fmt.Fprintf(&out, "and %d more\n", omitted)
	}
	return out.String()
}

// describeChangedKeys lists the changed keys except concurrency, as in "retryLimit 3→5".
func describeChangedKeys(before, after map[string]string) string {
	if len(before) == 0 {
		return ""
	}
	var changed []string
	for _, key := range sortedKeys(mergeMaps(before, after)) {
		// The groups are listed once, with the fleet's budget.
		if key != apipolicy.KeyConcurrency && key != apipolicy.KeyFleetSources && before[key] != after[key] {
			changed = append(changed, fmt.Sprintf("%s %s→%s", key, cmp.Or(before[key], "-"), cmp.Or(after[key], "-")))
		}
	}
	return v1alpha1.SanitizeText(strings.Join(changed, ", "), 200)
}

func formatSigned(n int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%+d", n)
}
