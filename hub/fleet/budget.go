package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Keys of the budget over the whole fleet.
const (
	// KeyFleetConcurrency is how many imports may run in the whole fleet. Without it
	// there is no such budget, and the other keys are of no account.
	KeyFleetConcurrency = "fleetConcurrency"
	// KeyGrantDuration is how long a grant holds.
	KeyGrantDuration = "fleetGrantDuration"
	// KeyWeight is a member's weight against the others; overrides may set it.
	KeyWeight = "fleetWeight"
)

const (
	mostFleetConcurrency = 100_000
	mostWeight           = 1000
	// A grant that holds for less would be renewed more often than reports are written.
	leastGrantDuration   = 15 * time.Second
	mostGrantDuration    = 24 * time.Hour
	defaultGrantDuration = 5 * time.Minute
)

// SourceBudget is a group of sources with a budget of its own.
type SourceBudget struct {
	policy.Source `json:",inline"`
	Concurrency   *int32 `json:"concurrency"`
}

// Budget is the budget over the whole fleet.
type Budget struct {
	Concurrency   int32
	Sources       []SourceBudget
	GrantDuration time.Duration
}

// Groups are the groups as a plan tells a member of them.
func (b *Budget) Groups() policy.Sources {
	var groups policy.Sources
	for _, s := range b.Sources {
		groups = append(groups, s.Source)
	}
	return groups
}

// Budget over the whole fleet; nil for none.
func (p *Policy) Budget() *Budget { return p.budget }

// Weight of a member against the others.
func (p *Policy) Weight(member string, labels map[string]string) int32 {
	set, _ := p.set(Member{member, labels})
	return weight(set)
}

func weight(set map[string]string) int32 {
	if n, err := parseWeight(set[KeyWeight]); err == nil {
		return n
	}
	return 1
}

func parseWeight(text string) (int32, error) { return number(text, 1, mostWeight) }

func number(text string, least, most int32) (int32, error) {
	v, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || v < int64(least) || v > int64(most) {
		return 0, fmt.Errorf("%q is not a whole number from %d to %d", text, least, most)
	}
	return int32(v), nil
}

// forFleet tells keys that are of no account in the policy of one member.
func forFleet(key string) bool {
	switch key {
	case KeyOverrides, KeyFleetConcurrency, KeyGrantDuration, policy.KeySources:
		return true
	}
	return false
}

// Keys are those of the fleet's policy ConfigMap, sorted.
func Keys() []string {
	keys := append(overridable(), KeyOverrides, KeyFleetConcurrency, KeyGrantDuration, policy.KeySources)
	slices.Sort(keys)
	return keys
}

// overridable are the keys that an override may set, sorted.
func overridable() []string {
	keys := append(policy.Keys(), policy.KeySafe, KeyWeight)
	slices.Sort(keys)
	return keys
}

// parseBudget reads the keys at the top of the ConfigMap that are for the fleet.
func parseBudget(data map[string]string) (b *Budget, errs []policy.KeyError) {
	read := Budget{GrantDuration: defaultGrantDuration}
	fail := func(key string, err error) { errs = append(errs, policy.KeyError{Key: key, Message: err.Error()}) }
	var err error
	text, set := data[KeyFleetConcurrency]
	if set {
		if read.Concurrency, err = number(text, 0, mostFleetConcurrency); err != nil {
			fail(KeyFleetConcurrency, err)
		}
	}
	if text, set := data[KeyGrantDuration]; set {
		read.GrantDuration, err = time.ParseDuration(strings.TrimSpace(text))
		if err != nil || read.GrantDuration < leastGrantDuration || read.GrantDuration > mostGrantDuration || read.GrantDuration%time.Second != 0 {
			fail(KeyGrantDuration, fmt.Errorf("%q is not a duration in whole seconds from %s to %s", text, leastGrantDuration, mostGrantDuration))
		}
	}
	if read.Sources, err = parseSources(data[policy.KeySources]); err != nil {
		fail(policy.KeySources, err)
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

func parseSources(text string) (sources []SourceBudget, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	if severalDocuments(text) {
		return nil, fmt.Errorf("it is more than one YAML document, of which only the first would count: make it one list")
	}
	if err := yaml.UnmarshalStrict([]byte(text), &sources); err != nil {
		return nil, fmt.Errorf("it is not a list of groups, each with name, hosts and concurrency: %s", oneLine(err))
	}
	for i, s := range sources {
		if s.Concurrency == nil || *s.Concurrency < 0 || *s.Concurrency > mostFleetConcurrency {
			return nil, fmt.Errorf("[%d].concurrency: give a whole number from 0 to %d", i, mostFleetConcurrency)
		}
	}
	b := Budget{Sources: sources}
	if err := b.Groups().Check(); err != nil {
		return nil, err
	}
	return sources, nil
}

// limit has a member's policy go by grants where there is a budget.
func (p *Policy) limit(set map[string]string) map[string]string {
	delete(set, KeyWeight)
	delete(set, policy.KeySources)
	if p.budget == nil {
		delete(set, policy.KeySafe)
		return set
	}
	if _, given := set[policy.KeySafe]; !given {
		set[policy.KeySafe] = "0"
	}
	if groups := p.budget.Groups(); len(groups) > 0 {
		text, err := json.Marshal(groups)
		if err != nil {
			panic(err) // plain types of our own
		}
		set[policy.KeySources] = string(text)
	}
	return set
}

// checkSafe returns an error where the safe shares are more than there is.
func (p *Policy) checkSafe(members []Member) []policy.KeyError {
	if p.budget == nil {
		return nil
	}
	sum := int64(0)
	for _, m := range members {
		set, _ := p.set(m)
		if n, err := number(set[policy.KeySafe], 0, v1alpha1.MaxSlots); err == nil {
			sum += int64(n)
		}
	}
	if sum <= int64(p.budget.Concurrency) {
		return nil
	}
	return []policy.KeyError{{Key: policy.KeySafe, Message: fmt.Sprintf("the safe shares of all %d members are %d together, which is more than fleetConcurrency, %d", len(members), sum, p.budget.Concurrency)}}
}

// budgetChange tells, for people, what changes of the fleet's budget; empty for
// nothing.
func budgetChange(now, then *Policy) string {
	var before, after *Budget
	if now != nil {
		before = now.budget
	}
	after = then.budget
	var parts []string
	tell := func(what, a, b string) {
		if a != b {
			parts = append(parts, fmt.Sprintf("%s %s→%s", what, a, b))
		}
	}
	tell(KeyFleetConcurrency, before.concurrency(), after.concurrency())
	if after != nil && before != nil {
		tell(KeyGrantDuration, before.GrantDuration.String(), after.GrantDuration.String())
	}
	tell(policy.KeySources, before.sources(), after.sources())
	return strings.Join(parts, ", ")
}

func (b *Budget) concurrency() string {
	if b == nil {
		return "none"
	}
	return strconv.Itoa(int(b.Concurrency))
}

func (b *Budget) sources() string {
	if b == nil || len(b.Sources) == 0 {
		return "none"
	}
	var parts []string
	for _, s := range b.Sources {
		parts = append(parts, fmt.Sprintf("%s:%d", s.Name, *s.Concurrency))
	}
	return strings.Join(parts, " ")
}
