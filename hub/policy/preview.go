package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxPreviewRows bounds a preview, which is stored in an annotation.
	maxPreviewRows        = 100
	maxUnmatchedOverrides = 10
	maxHeldMembers        = 10
)

// Comparison is what would change if a policy replaced the active one.
type Comparison struct {
	// Refused are members whose overrides contradict each other, by name, and OverBudget what
	// exceeds the fleet-wide budget: with any of them the policy would not come into force.
	Refused, OverBudget []apipolicy.KeyError
	// Members in total; Gain and Lose are those with more and less concurrency.
	Members, Gain, Lose int
	// SumNow and SumThen are the effective concurrency of all members.
	SumNow, SumThen int64
	// Changed members by name.
	Changed []ChangedMember
	// BudgetChange describes what changes of the fleet-wide budget; empty for nothing.
	BudgetChange string
	// Held members run less than planned, by their own policy ConfigMap; by name.
	Held []string
	// Unmatched overrides select no member.
	Unmatched []string
	// Windowed members have windows, one of which opens or closes next at NextEdge. All
	// concurrency is that in force at the time of the comparison.
	Windowed int
	NextEdge time.Time
	// FleetWindows describes what the windows of the fleet-wide budget have in force; empty
	// without any.
	FleetWindows string
}

// ChangedMember is a member whose policy would change.
type ChangedMember struct {
	Name string
	// Now and Then are the effective concurrency.
	Now, Then EffectiveConcurrency
	// OtherChanges of the policy, as in "retryLimit 3→5".
	OtherChanges string
	Source       string
}

// EffectiveConcurrency is what a policy plans, and what a member's own ConfigMap leaves of it.
type EffectiveConcurrency struct {
	// Known is false without a policy.
	Known              bool
	Planned, Effective int64
}

func (c EffectiveConcurrency) String() string {
	switch {
	case !c.Known:
		return "-"
	case c.Effective < c.Planned:
		return fmt.Sprintf("%d, held to %d", c.Planned, c.Effective)
	default:
		return strconv.FormatInt(c.Planned, 10)
	}
}

func effectiveConcurrency(data map[string]string, m Member, at time.Time) EffectiveConcurrency {
	planned := ConcurrencyAt(data, at)
	_, known := data[apipolicy.KeyConcurrency]
	c := EffectiveConcurrency{Known: known, Planned: planned, Effective: planned}
	if own := m.OwnConcurrency; own != nil {
		c.Effective = min(planned, int64(*own))
	}
	return c
}

// Delta is how much concurrency a member gains.
func (c *ChangedMember) Delta() int64 { return c.Then.Effective - c.Now.Effective }

// Compare returns what would change at a time if a policy replaced the active one, nil for
// none. What a member's own ConfigMap holds back is neither gained nor counted.
func Compare(now, then *Policy, members []Member, at time.Time) Comparison {
	c := Comparison{Members: len(members)}
	// A cache lists members in any order: the first that are named have to stay the same.
	members = slices.SortedFunc(slices.Values(members), func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	nowPolicies, thenPolicies := parsedPolicies{}, parsedPolicies{}
	for _, m := range members {
		before := map[string]string{}
		var standing []apipolicy.KeyError
		if now != nil {
			before, _, standing = nowPolicies.forMember(now, m) // without a valid policy there is nothing to compare
		}
		after, source, errs := thenPolicies.forMember(then, m)
		if known := keysOf(standing); len(errs) > 0 && !slices.ContainsFunc(errs, func(e apipolicy.KeyError) bool { return !known[e.Key] }) {
			continue // it has no policy either way: see ValidateChange
		}
		if len(errs) > 0 {
			c.Refused = append(c.Refused, apipolicy.KeyError{Key: m.Name, Message: FormatErrors(errs) + " (" + source + ")"})
			continue
		}
		changed := ChangedMember{Name: m.Name, Now: effectiveConcurrency(before, m, at), Then: effectiveConcurrency(after, m, at), Source: source}
		if _, edge := InForce(after, false, at); !edge.IsZero() {
			c.Windowed++
			c.NextEdge = earliest(c.NextEdge, edge)
		}
		if changed.Then.Effective < changed.Then.Planned {
			c.Held = append(c.Held, m.Name)
		}
		c.SumNow, c.SumThen = c.SumNow+changed.Now.Effective, c.SumThen+changed.Then.Effective
		if now != nil && len(before) > 0 {
			before[KeyWeight], after[KeyWeight] = fmt.Sprint(now.MemberWeight(m.Name, m.Labels)), fmt.Sprint(then.MemberWeight(m.Name, m.Labels))
		}
		changed.OtherChanges = describeChangedKeys(before, after)
		switch delta := changed.Delta(); {
		case delta > 0:
			c.Gain++
		case delta < 0:
			c.Lose++
		}
		if changed.Now != changed.Then || changed.OtherChanges != "" {
			c.Changed = append(c.Changed, changed)
		}
	}
	if now == nil || len(now.validateSafeShares(members)) == 0 || then.raisesSafeShares(now, members) {
		c.OverBudget = then.validateSafeShares(members)
	}
	c.BudgetChange, c.FleetWindows = describeBudgetChange(now, then), then.describeFleetWindows(at)
	c.Unmatched = then.unmatchedOverrides(members)
	return c
}

// parsedPolicies are policies by the keys that are set: most members have the same.
type parsedPolicies map[string]parsedPolicy

type parsedPolicy struct {
	data map[string]string
	errs []apipolicy.KeyError
}

// forMember is Policy.ForMember.
func (c parsedPolicies) forMember(p *Policy, m Member) (data map[string]string, source string, errs []apipolicy.KeyError) {
	set, source := p.resolveKeys(m)
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(set)) {
		fmt.Fprintf(&key, "%q%q", name, set[name])
	}
	parsed, known := c[key.String()]
	if !known {
		parsed.data, _, parsed.errs = p.ForMember(m.Name, m.Labels)
		c[key.String()] = parsed
	}
	return maps.Clone(parsed.data), source, parsed.errs
}

// MostChanged returns up to limit changed members, those whose concurrency changes most
// first.
func (c *Comparison) MostChanged(limit int) []ChangedMember {
	rows := slices.Clone(c.Changed)
	slices.SortStableFunc(rows, func(a, b ChangedMember) int {
		return cmp.Compare(max(b.Delta(), -b.Delta()), max(a.Delta(), -a.Delta()))
	})
	return rows[:min(len(rows), limit)]
}

// Preview describes a Comparison for people. Beyond maxPreviewRows it lists the members
// whose concurrency changes most.
func Preview(now, then *Policy, members []Member, at time.Time) string {
	c := Compare(now, then, members, at)
	var out strings.Builder
	if len(c.Refused) > 0 {
		fmt.Fprintf(&out, "It would be refused: the overrides contradict each other for %d of %d members.\n%s\n", len(c.Refused), len(members), FormatErrors(c.Refused))
		return out.String()
	}
	fmt.Fprintf(&out, "%d of %d members would change. Concurrency: %d gain, %d lose, the fleet's sum goes from %d to %d (%+d).\n",
		len(c.Changed), len(members), c.Gain, c.Lose, c.SumNow, c.SumThen, c.SumThen-c.SumNow)
	if len(c.OverBudget) > 0 {
		return "It would be refused: " + FormatErrors(c.OverBudget) + "\n"
	}
	if c.BudgetChange != "" {
		fmt.Fprintf(&out, "The budget of the fleet: %s.\n", c.BudgetChange)
	}
	if text := c.DescribeWindows(); text != "" {
		fmt.Fprintf(&out, "%s\n", text)
	}
	if len(c.Held) > 0 {
		fmt.Fprintf(&out, "Held lower by key concurrency of their own policy ConfigMap: %s.\n", joinBounded(c.Held, ", ", maxHeldMembers))
	}
	if len(c.Unmatched) > 0 {
		fmt.Fprintf(&out, "No member is subject to: %s.\n", joinBounded(c.Unmatched, "; ", maxUnmatchedOverrides))
	}
	out.WriteString(c.formatTable())
	return out.String()
}

// DescribeWindows says what the numbers of a Comparison are where they change with time;
// empty where they do not.
func (c *Comparison) DescribeWindows() string {
	var parts []string
	if c.Windowed > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d members would have windows: concurrency is that in force now, and the next window opens or closes at %s.", c.Windowed, c.Members, formatTime(c.NextEdge)))
	}
	if c.FleetWindows != "" {
		parts = append(parts, c.FleetWindows)
	}
	return strings.Join(parts, " ")
}

// describeFleetWindows says which fleetConcurrency is in force, and what follows; empty
// without windows that set it.
func (p *Policy) describeFleetWindows(at time.Time) string {
	b := p.Budget(at)
	if b == nil || len(p.fleetWindows) == 0 {
		return ""
	}
	text := fmt.Sprintf("fleetConcurrency would be %d now", b.Concurrency)
	if changes := b.ChangesAt(); !changes.IsZero() {
		text += fmt.Sprintf(", and %d from %s", p.Budget(changes).Concurrency, formatTime(changes))
	}
	return text + "."
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// earliest returns the first of two times; a zero one counts as none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// joinBounded joins the first texts, and says how many more there are.
func joinBounded(texts []string, separator string, most int) string {
	joined := strings.Join(texts[:min(len(texts), most)], separator)
	if more := len(texts) - most; more > 0 {
		joined += fmt.Sprintf("%sand %d more", separator, more)
	}
	return joined
}

func (c *Comparison) formatTable() string {
	rows, omitted := c.Changed, len(c.Changed)-maxPreviewRows
	if omitted > 0 {
		rows = c.MostChanged(maxPreviewRows)
		slices.SortFunc(rows, func(a, b ChangedMember) int { return strings.Compare(a.Name, b.Name) })
	}
	if len(rows) == 0 {
		return ""
	}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "MEMBER\tNOW\tTHEN\tCHANGE\tOTHER KEYS\tFROM")
	for i := range rows {
		r := &rows[i]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.Now, r.Then, formatSigned(r.Delta()), cmp.Or(r.OtherChanges, "-"), r.Source)
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
	for _, key := range slices.Sorted(maps.Keys(mergeMaps(before, after))) {
		switch {
		case key == apipolicy.KeyConcurrency, before[key] == after[key]:
		case key == apipolicy.KeyWindows:
			changed = append(changed, describeWindowsChange(before[key], after[key]))
		case key == apipolicy.KeyFleetSources:
			changed = append(changed, key+" changed") // what of them is said once, with the fleet's budget
		default:
			changed = append(changed, fmt.Sprintf("%s %s→%s", key, cmp.Or(before[key], "-"), cmp.Or(after[key], "-")))
		}
	}
	return v1alpha1.SanitizeText(strings.Join(changed, ", "), 200)
}

// describeWindowsChange counts windows, which are too long to be listed for each member.
func describeWindowsChange(before, after string) string {
	count := func(text string) int {
		windows, _ := apipolicy.ParseWindows(text) // they come from a parsed policy
		return len(windows)
	}
	if a, b := count(before), count(after); a != b {
		return fmt.Sprintf("windows %d→%d", a, b)
	}
	return "windows changed"
}

func formatSigned(n int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%+d", n)
}
