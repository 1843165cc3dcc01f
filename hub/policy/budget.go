package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/api/yamlalias"
)

// Keys of the fleet-wide budget.
const (
	// KeyFleetConcurrency is how many imports may run in the whole fleet. Without it
	// there is no fleet-wide budget, and the other keys have no effect.
	KeyFleetConcurrency = "fleetConcurrency"
	// KeyGrantDuration is how long a TransferGrant is valid.
	KeyGrantDuration = "fleetGrantDuration"
	// KeyExcessTolerance is how long counts what a member reports beyond what the hub has
	// planned or granted, from when it was first seen.
	KeyExcessTolerance = "fleetExcessTolerance"
	// KeyWeight is the weight of a member against the others; overrides may set it.
	KeyWeight = "fleetWeight"
)

const (
	maxFleetConcurrency = apipolicy.MaxFleetConcurrency
	maxWeight           = 1000
	// A shorter grant would have to be renewed more often than reports are written.
	minGrantDuration     = 15 * time.Second
	maxGrantDuration     = 24 * time.Hour
	defaultGrantDuration = 5 * time.Minute
	// At most it is attemptTimeout: no honest attempt runs for longer.
	minExcessTolerance     = time.Second
	defaultExcessTolerance = 30 * time.Minute
)

// SourceBudget is the budget of a group of sources, within the fleet's.
type SourceBudget struct {
	apipolicy.Source `json:",inline"`
	Concurrency      *int32 `json:"concurrency"`
}

// Budget is the fleet-wide budget at a time.
type Budget struct {
	Concurrency int32
	// FallsAt is when a lower Concurrency comes into force, and RisesAt when a higher one does;
	// zero for never. A FallsAt that no grant reaches may be missing.
	FallsAt, RisesAt time.Time
	// RisesTo is that higher Concurrency.
	RisesTo int32
	// LowerFrom is from when a lower one than Concurrency may be in force, while the window is closed than
	// RisesTo; zero for never. Unlike a FallsAt, none is missing. Least is the lowest one of all times.
	LowerFrom     time.Time
	Least         int32
	Sources       []SourceBudget
	GrantDuration time.Duration
	// ExcessTolerance is how long counts what a member reports beyond what the hub knows.
	ExcessTolerance time.Duration
}

// SourceGroups returns the groups as plans carry them to members.
func (b *Budget) SourceGroups() apipolicy.Sources {
	var groups apipolicy.Sources
	for _, s := range b.Sources {
		groups = append(groups, s.Source)
	}
	return groups
}

// SourceLimits returns how many imports from each group of sources a member may run by its
// grant, nil for none; nil where no group is limited.
func (b *Budget) SourceLimits(grant *v1alpha1.TransferGrant) map[string]int32 {
	if b == nil || len(b.Sources) == 0 || grant == nil || grant.Spec.Limits == nil {
		return nil
	}
	limits := make(map[string]int32, len(b.Sources))
	for _, group := range b.Sources {
		limits[group.Name] = 0
	}
	for _, granted := range grant.Spec.Limits.Sources {
		limits[granted.Name] = granted.Slots
	}
	return limits
}

// Slots returns how many imports from a group of sources may run in the whole fleet.
func (b *Budget) Slots(group string) int32 {
	for _, s := range b.Sources {
		if s.Name == group && s.Concurrency != nil {
			return min(b.Concurrency, *s.Concurrency)
		}
	}
	return b.Concurrency
}

// MemberWeight returns the weight of a member against the others; 1 by default.
func (p *Policy) MemberWeight(member string, labels map[string]string) int32 {
	set, _ := p.resolveKeys(Member{Name: member, Labels: labels})
	return weightOrDefault(set)
}

func weightOrDefault(set map[string]string) int32 {
	if n, err := parseWeight(set[KeyWeight]); err == nil {
		return n
	}
	return 1
}

func parseWeight(text string) (int32, error) { return parseIntInRange(text, 1, maxWeight) }

func parseIntInRange(text string, least, most int32) (int32, error) {
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || v < int64(least) || v > int64(most) {
		return 0, fmt.Errorf("%q is not a whole number from %d to %d", text, least, most)
	}
	return int32(v), nil
}

// isFleetOnlyKey reports whether a key has no meaning in the policy of one member.
func isFleetOnlyKey(key string) bool {
	switch key {
	case KeyOverrides, KeyFleetConcurrency, KeyGrantDuration, KeyExcessTolerance, apipolicy.KeyFleetSources:
		return true
	}
	return false
}

// KnownKeys returns the keys of the fleet's policy ConfigMap, sorted.
func KnownKeys() []string {
	keys := append(overridableKeys(), KeyOverrides, KeyFleetConcurrency, KeyGrantDuration, KeyExcessTolerance, apipolicy.KeyFleetSources)
	slices.Sort(keys)
	return keys
}

// overridableKeys returns the keys that an override may set, sorted.
func overridableKeys() []string {
	keys := append(slices.DeleteFunc(apipolicy.ConfigMapKeys(), apipolicy.IsOwnKey), apipolicy.KeySafeConcurrency, KeyWeight)
	slices.Sort(keys)
	return keys
}

// parseBudget reads the keys of the fleet-wide budget.
func parseBudget(data map[string]string) (b *Budget, errs []apipolicy.KeyError) {
	read := Budget{GrantDuration: defaultGrantDuration}
	fail := func(key string, err error) { errs = append(errs, apipolicy.KeyError{Key: key, Message: err.Error()}) }
	var err error
	text, set := data[KeyFleetConcurrency]
	if set {
		if read.Concurrency, err = parseIntInRange(text, 0, maxFleetConcurrency); err != nil {
			fail(KeyFleetConcurrency, err)
		}
	}
	if text, set := data[KeyGrantDuration]; set {
		read.GrantDuration, err = time.ParseDuration(strings.TrimSpace(text))
		if err != nil || read.GrantDuration < minGrantDuration || read.GrantDuration > maxGrantDuration || read.GrantDuration%time.Second != 0 {
			fail(KeyGrantDuration, fmt.Errorf("%q is not a duration in whole seconds from %s to %s", text, minGrantDuration, maxGrantDuration))
		}
	}
	if read.ExcessTolerance, err = parseExcessTolerance(data); err != nil {
		fail(KeyExcessTolerance, err)
	}
	if read.Sources, err = parseSources(data[apipolicy.KeyFleetSources]); err != nil {
		fail(apipolicy.KeyFleetSources, err)
	}
	if text, set := data[KeyWeight]; set {
		if _, err := parseWeight(text); err != nil {
			fail(KeyWeight, err)
		}
	}
	if !set || len(errs) > 0 {
		return nil, errs
	}
	return &read, nil
}

// maxIneffective is how many notes DescribeIneffective returns: each of thousands of overrides may have some.
const maxIneffective = 20

// DescribeIneffective returns what keys of the policy have no effect, or let no import end well, and why. Of
// more than maxIneffective notes, the last one counts the others.
func (p *Policy) DescribeIneffective() (notes []string) {
	isSet := func(key string) bool {
		_, set := p.written[key]
		return set || slices.ContainsFunc(p.overrides, func(o override) bool { _, set := o.values[key]; return set })
	}
	if p.budget == nil {
		budgetKeys := []string{KeyExcessTolerance, KeyGrantDuration, apipolicy.KeyFleetSources, KeyWeight, apipolicy.KeySafeConcurrency}
		if idle := slices.DeleteFunc(budgetKeys, func(key string) bool { return !isSet(key) }); len(idle) > 0 {
			notes = append(notes, fmt.Sprintf("without %s, these keys have no effect: %s", KeyFleetConcurrency, strings.Join(idle, ", ")))
		}
	}
	if isSet(apipolicy.KeyAllowedNamespaces) {
		notes = append(notes, apipolicy.KeyAllowedNamespaces+" has an effect in a cluster's own ConfigMap only")
	}
	notes = append(notes, p.describeTimeouts("", nil)...)
	for i, o := range p.overrides {
		if o.values[apipolicy.KeyAttemptTimeout] != "" || o.values[apipolicy.KeyStallTimeout] != "" {
			notes = append(notes, p.describeTimeouts(fmt.Sprintf("%s[%d]: ", KeyOverrides, i), o.values)...)
		}
	}
	if more := len(notes) - maxIneffective; more > 0 {
		notes = append(notes[:maxIneffective], fmt.Sprintf("and %d more", more))
	}
	return notes
}

// shortAttempt is what hardly any import is done within.
const shortAttempt = time.Minute

// describeTimeouts returns what is wrong with the timeouts of an override, or of the policy without any.
func (p *Policy) describeTimeouts(where string, values map[string]string) (notes []string) {
	set := mergeMaps(p.defaults, values)
	parsed, _, _ := apipolicy.Parse(set) // valid: see ParsePolicy
	attempt, stall := parsed.AttemptTimeout, parsed.StallTimeout
	if attempt < shortAttempt {
		notes = append(notes, fmt.Sprintf("%s%s, %s, ends most imports before they are done", where, apipolicy.KeyAttemptTimeout, apipolicy.FormatDuration(attempt)))
	}
	if _, isSet := set[apipolicy.KeyStallTimeout]; isSet && stall > attempt {
		notes = append(notes, fmt.Sprintf("%s%s, %s, ends no import: %s, %s, is shorter", where, apipolicy.KeyStallTimeout, apipolicy.FormatDuration(stall), apipolicy.KeyAttemptTimeout, apipolicy.FormatDuration(attempt)))
	}
	return notes
}

// parseExcessTolerance returns the tolerance, which is at most the fleet's attemptTimeout.
func parseExcessTolerance(data map[string]string) (time.Duration, error) {
	attempt := apipolicy.Default().AttemptTimeout
	if own, err := time.ParseDuration(strings.TrimSpace(data["attemptTimeout"])); err == nil {
		attempt = own
	}
	text, set := data[KeyExcessTolerance]
	if !set {
		return min(defaultExcessTolerance, attempt), nil
	}
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d < minExcessTolerance || d > attempt {
		return 0, fmt.Errorf("%q is not a duration from %s to attemptTimeout, %s", text, minExcessTolerance, attempt)
	}
	return d, nil
}

func parseSources(text string) (sources []SourceBudget, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	if apipolicy.HasSeveralDocuments(text) {
		return nil, fmt.Errorf("it is more than one YAML document, of which only the first would count: make it one list")
	}
	if err := yamlalias.Check([]byte(text)); err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict([]byte(text), &sources); err != nil {
		return nil, fmt.Errorf("it is not a list of groups, each with name, hosts and concurrency: %s", singleLine(err))
	}
	for i, s := range sources {
		if s.Concurrency == nil || *s.Concurrency < 0 || *s.Concurrency > maxFleetConcurrency {
			return nil, fmt.Errorf("[%d].concurrency: give a whole number from 0 to %d", i, maxFleetConcurrency)
		}
	}
	b := Budget{Sources: sources}
	if err := b.SourceGroups().Validate(); err != nil {
		return nil, err
	}
	return sources, nil
}

// applyGrantKeys limits a member by grants if there is a fleet-wide budget.
func (p *Policy) applyGrantKeys(set map[string]string) map[string]string {
	delete(set, KeyWeight)
	delete(set, apipolicy.KeyFleetSources)
	if p.budget == nil {
		delete(set, apipolicy.KeySafeConcurrency)
		return set
	}
	if _, ok := set[apipolicy.KeySafeConcurrency]; !ok {
		set[apipolicy.KeySafeConcurrency] = "0"
	}
	if groups := p.budget.SourceGroups(); len(groups) > 0 {
		text, err := json.Marshal(groups)
		if err != nil {
			panic(err) // plain types of this package
		}
		set[apipolicy.KeyFleetSources] = string(text)
	}
	return set
}

// validateSafeShares returns an error if the safe shares add up to more than the budget.
func (p *Policy) validateSafeShares(members []Member) []apipolicy.KeyError {
	if p.budget == nil {
		return nil
	}
	sum := int64(0)
	for _, m := range members {
		sum += p.safeShare(m)
	}
	least, where := p.leastFleetConcurrency(), ""
	if least < p.budget.Concurrency {
		where = " in a window: members use their safe shares at all times"
	} else if len(p.fleetWindows) > 0 {
		where = " outside the windows: members use their safe shares at all times"
	}
	if sum <= int64(least) {
		return nil
	}
	return []apipolicy.KeyError{{Key: apipolicy.KeySafeConcurrency, Message: fmt.Sprintf("the safe shares of all %d members are %d together, which is more than fleetConcurrency, %d%s", len(members), sum, least, where)}}
}

func (p *Policy) safeShare(m Member) int64 {
	set, _ := p.resolveKeys(m)
	n, err := parseIntInRange(set[apipolicy.KeySafeConcurrency], 0, v1alpha1.MaxSlots)
	if err != nil {
		return 0
	}
	return int64(n)
}

// raisesSafeShares reports whether a member gets a larger safe share than by the policy in force,
// or the fleet a smaller budget. A share that moves from one member to another counts: until the
// other knows, both use it.
func (p *Policy) raisesSafeShares(inForce *Policy, members []Member) bool {
	if p.budget == nil || inForce.budget == nil || p.leastFleetConcurrency() < inForce.leastFleetConcurrency() {
		return true
	}
	return slices.ContainsFunc(members, func(m Member) bool { return p.safeShare(m) > inForce.safeShare(m) })
}

// describeBudgetChange describes what changes of the fleet-wide budget; empty for
// nothing.
func describeBudgetChange(now, then *Policy) string {
	var before, after *Budget
	if now != nil {
		before = now.budget
	}
	after = then.budget
	var parts []string
	addChange := func(what, a, b string) {
		if a != b {
			parts = append(parts, fmt.Sprintf("%s %s→%s", what, a, b))
		}
	}
	addChange(KeyFleetConcurrency, before.formatConcurrency(), after.formatConcurrency())
	if after != nil && before != nil {
		addChange(KeyGrantDuration, before.GrantDuration.String(), after.GrantDuration.String())
		addChange(KeyExcessTolerance, before.ExcessTolerance.String(), after.ExcessTolerance.String())
	}
	addChange(apipolicy.KeyFleetSources, before.formatSources(), after.formatSources())
	if after != nil && before != nil {
		parts = append(parts, describeHostsChange(before.Sources, after.Sources)...)
	}
	if change := describeListChange("windows of fleetConcurrency", now.listFleetWindows(), then.listFleetWindows(), "; "); change != "" {
		parts = append(parts, change)
	}
	return strings.Join(parts, ", ")
}

// describeHostsChange describes what changes of the hosts of each group that stays.
func describeHostsChange(before, after []SourceBudget) (parts []string) {
	for _, group := range after {
		i := slices.IndexFunc(before, func(s SourceBudget) bool { return s.Name == group.Name })
		if i < 0 {
			continue
		}
		if change := describeListChange("hosts of "+group.Name, before[i].Hosts, group.Hosts, " "); change != "" {
			parts = append(parts, change)
		}
	}
	return parts
}

// maxListedEntries bounds each side of describeListChange.
const maxListedEntries = 5

// describeListChange lists both sides of a change; empty for none. Invariant: the first difference
// is listed. Equal entries before it are left out where they fill the bound.
func describeListChange(what string, before, after []string, separator string) string {
	if slices.Equal(before, after) {
		return ""
	}
	same := 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	if same >= maxListedEntries {
		before, after, what = before[same:], after[same:], fmt.Sprintf("%s after the first %d", what, same)
	}
	list := func(entries []string) string {
		return cmp.Or(joinBounded(entries, separator, maxListedEntries), "none")
	}
	return what + " " + list(before) + "→" + list(after)
}

func (b *Budget) formatConcurrency() string {
	if b == nil {
		return "none"
	}
	return strconv.Itoa(int(b.Concurrency))
}

func (p *Policy) listFleetWindows() (parts []string) {
	if p == nil {
		return nil
	}
	for _, w := range p.fleetWindows {
		parts = append(parts, fmt.Sprintf("%d at %q %s for %s", *w.FleetConcurrency, w.Cron, cmp.Or(w.TimeZone, "UTC"), apipolicy.FormatDuration(w.Duration)))
	}
	return parts
}

func (b *Budget) formatSources() string {
	if b == nil || len(b.Sources) == 0 {
		return "none"
	}
	var parts []string
	for _, s := range b.Sources {
		parts = append(parts, fmt.Sprintf("%s:%d", s.Name, *s.Concurrency))
	}
	return strings.Join(parts, " ")
}

func plainConcurrency(data map[string]string) int64 {
	n, _ := strconv.ParseInt(data[apipolicy.KeyConcurrency], 10, 32)
	return n
}
