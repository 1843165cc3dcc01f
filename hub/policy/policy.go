package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/labels"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Keys of the fleet's policy ConfigMap, beside those of api/policy.
const (
	// KeyOverrides has a YAML list of overrides.
	KeyOverrides = "overrides"
)

// SourceDefault is the source of a policy that no override changes.
const SourceDefault = "fleet default"

// maxSourceLength is the limit of ClusterPlan.spec.policySource.
const maxSourceLength = 512

// Member is the part of a MemberCluster that overrides select by.
type Member struct {
	Name   string
	Labels map[string]string
	// OwnConcurrency is the limit of the member's own policy ConfigMap, for previews; nil
	// for none.
	OwnConcurrency *int32
}

// Policy is the policy of a fleet: defaults, and overrides for some members.
//
// Each key of a member's policy comes from the last of these that sets it:
//
//  1. the defaults of package policy,
//  2. the keys at the top of the ConfigMap,
//  3. the overrides whose selector matches the member's labels, in the order of
//     the list,
//  4. the overrides that name the member, in the order of the list.
//
// So an override by name wins over one by selector wherever it stands.
type Policy struct {
	written   map[string]string
	defaults  map[string]string
	overrides []override
	budget    *Budget // outside all windows
	// windows are those of the whole fleet, and fleetWindows those of them that set
	// fleetConcurrency.
	windows, fleetWindows apipolicy.Windows
	lastBudget            atomic.Pointer[knownBudget]
}

// override sets some keys for one member, or for those that a selector matches.
type override struct {
	cluster  string
	selector labels.Selector
	source   string
	values   map[string]string
}

func (o *override) matches(m Member) bool {
	if o.cluster != "" {
		return o.cluster == m.Name
	}
	return o.selector.Matches(labels.Set(m.Labels))
}

// ParsePolicy reads the data of the fleet's policy ConfigMap: the keys of api/policy,
// which are the defaults of all members, and overrides:
//
//	concurrency: "3"
//	overrides: |
//	  - selector: {matchLabels: {edge: "true"}}
//	    concurrency: 1
//	  - cluster: frankfurt
//	    concurrency: 8
//	    attemptTimeout: 2h
//	    windows:
//	      - {cron: "0 22 * * *", duration: 8h, timeZone: Europe/Berlin, concurrency: 16}
//
// All errors are returned, by key; those of overrides with their path, as in
// "overrides[1].concurrency". With any error the Policy is nil: half a policy is nobody's
// intention. Unknown keys at the top are returned and are no error, since a later version
// may know them.
func ParsePolicy(data map[string]string) (p *Policy, unknown []string, errs []apipolicy.KeyError) {
	base := map[string]string{}
	for key, text := range data {
		if !isFleetOnlyKey(key) && !apipolicy.IsOwnKey(key) {
			base[key] = text
		}
	}
	windows, badWindows := parseWindows(data)
	base[apipolicy.KeyWindows] = windows.ForMembers().String()
	_, unknown, errs = apipolicy.Parse(base)
	errs = append(errs, badWindows...)
	unknown = slices.DeleteFunc(unknown, func(key string) bool { return key == KeyWeight || apipolicy.IsOwnKey(key) })
	if len(unknown) == 0 {
		unknown = nil
	}
	for _, key := range unknown {
		delete(base, key)
	}
	if base[apipolicy.KeyWindows] == "" {
		delete(base, apipolicy.KeyWindows)
	}
	p = &Policy{written: maps.Clone(data), defaults: base, windows: windows}
	for _, w := range windows {
		if w.FleetConcurrency != nil {
			p.fleetWindows = append(p.fleetWindows, w)
		}
	}
	var wrong []apipolicy.KeyError
	p.budget, wrong = parseBudget(data)
	errs = append(errs, wrong...)
	var more []apipolicy.KeyError
	p.overrides, more = parseOverrides(data[KeyOverrides])
	errs = append(errs, more...)
	if len(errs) == 0 {
		// Each override has to be valid by itself. ForMember finds what contradicts
		// itself only in combination.
		for i, o := range p.overrides {
			_, _, bad := apipolicy.Parse(mergeMaps(base, o.values))
			for _, e := range bad {
				errs = append(errs, apipolicy.KeyError{Key: fmt.Sprintf("%s[%d].%s", KeyOverrides, i, e.Key), Message: e.Message})
			}
		}
	}
	if len(errs) > 0 {
		return nil, unknown, errs
	}
	return p, unknown, nil
}

// ForMember returns all keys of a member's policy and their source: the overrides that
// decide at least one key, or SourceDefault.
//
// The policy has its windows; InForce applies them. With errors the member has no policy: overrides that are valid by themselves contradict
// each other.
func (p *Policy) ForMember(member string, labels map[string]string) (data map[string]string, source string, errs []apipolicy.KeyError) {
	set, source := p.resolveKeys(Member{Name: member, Labels: labels})
	effective, _, errs := apipolicy.Parse(p.applyGrantKeys(set))
	if len(errs) > 0 {
		return nil, source, errs
	}
	return effective.ToData(), source, nil
}

// KeySources returns where the keys that are set for a member come from: SourceDefault, or an
// override. Keys that nothing sets have their defaults.
func (p *Policy) KeySources(m Member) map[string]string {
	data, by, _ := p.applyOverrides(m)
	for key := range data {
		if by[key] == "" {
			by[key] = SourceDefault
		}
	}
	return by
}

// resolveKeys returns the keys that are set for a member, and their source.
func (p *Policy) resolveKeys(m Member) (data map[string]string, source string) {
	data, by, applying := p.applyOverrides(m)
	deciding := map[string]bool{}
	for _, s := range by {
		deciding[s] = true
	}
	return data, joinSources(slices.DeleteFunc(applying, func(s string) bool { return !deciding[s] }))
}

// applyOverrides returns the keys that are set for a member, the source of each that an
// override sets, and the overrides that apply.
func (p *Policy) applyOverrides(m Member) (data, by map[string]string, applying []string) {
	data, deciding, applied := p.mergeOverrides(m)
	by = make(map[string]string, len(deciding))
	for key, i := range deciding {
		by[key] = p.overrides[i].source
	}
	for _, i := range applied {
		if source := p.overrides[i].source; !slices.Contains(applying, source) {
			applying = append(applying, source)
		}
	}
	return data, by, applying
}

// mergeOverrides returns the keys that are set for a member, which override decides each that
// one sets, and which overrides apply, in that order.
func (p *Policy) mergeOverrides(m Member) (data map[string]string, deciding map[string]int, applied []int) {
	data, deciding = mergeMaps(p.defaults, nil), map[string]int{}
	for _, named := range []bool{false, true} {
		set := map[string]bool{}
		for i := range p.overrides {
			o := &p.overrides[i]
			if (o.cluster != "") != named || !o.matches(m) {
				continue
			}
			applied = append(applied, i)
			for key, text := range o.values {
				data[key], deciding[key], set[key] = text, i, true
			}
		}
		// Invariant: windows for more members never replace the concurrency of an override: a
		// member that one pauses stays paused.
		if set[apipolicy.KeyConcurrency] && !set[apipolicy.KeyWindows] {
			delete(data, apipolicy.KeyWindows)
			delete(deciding, apipolicy.KeyWindows)
		}
	}
	return data, deciding, applied
}

// joinSources names as many sources as maxSourceLength allows.
func joinSources(sources []string) string {
	if len(sources) == 0 {
		return SourceDefault
	}
	joined := strings.Join(sources, ", ")
	for n := len(sources) - 1; len(joined) > maxSourceLength && n > 0; n-- {
		joined = fmt.Sprintf("%s and %d more", strings.Join(sources[:n], ", "), len(sources)-n)
	}
	return v1alpha1.SanitizeText(joined, maxSourceLength)
}

// ValidateMembers returns the errors of members whose overrides contradict each other,
// and of safe shares beyond the fleet's budget. A ConfigMap with any error must not become
// active where there was none before; beside another, ValidateChange decides.
func (p *Policy) ValidateMembers(members []Member) []apipolicy.KeyError {
	var errs []apipolicy.KeyError
	for _, m := range members {
		_, source, bad := p.ForMember(m.Name, m.Labels)
		for _, e := range bad {
			errs = append(errs, apipolicy.KeyError{Key: "member " + m.Name + ": " + e.Key, Message: e.Message + " (" + source + ")"})
		}
	}
	errs = append(errs, p.validateSafeShares(members)...)
	slices.SortFunc(errs, func(a, b apipolicy.KeyError) int { return strings.Compare(a.Key, b.Key) })
	return errs
}

// ValidateChange divides the errors of ValidateMembers: standing ones has the policy in force as
// well, for these members, and this one makes none of them worse. They are no reason to refuse
// it: members join and get other labels, and an edit that pauses the fleet must not wait for them.
//
// Invariant: a policy that takes the place of another never adds to what safe shares exceed the
// fleet's budget by.
func (p *Policy) ValidateChange(inForce *Policy, members []Member) (errs, standing []apipolicy.KeyError) {
	errs = p.ValidateMembers(members)
	if inForce == nil || len(errs) == 0 {
		return errs, nil
	}
	before := keysOf(inForce.ValidateMembers(members))
	raises := p.raisesSafeShares(inForce, members)
	for _, e := range errs {
		if before[e.Key] && (e.Key != apipolicy.KeySafeConcurrency || !raises) {
			standing = append(standing, e)
		}
	}
	isStanding := keysOf(standing)
	return slices.DeleteFunc(errs, func(e apipolicy.KeyError) bool { return isStanding[e.Key] }), standing
}

func keysOf(errs []apipolicy.KeyError) map[string]bool {
	keys := make(map[string]bool, len(errs))
	for _, e := range errs {
		keys[e.Key] = true
	}
	return keys
}

// maxErrors is how many errors FormatErrors names.
const maxErrors = 5

// FormatErrors joins errors to one line of bounded length.
func FormatErrors(errs []apipolicy.KeyError) string {
	var parts []string
	for i, e := range errs {
		if i == maxErrors {
			parts = append(parts, fmt.Sprintf("and %d more", len(errs)-i))
			break
		}
		parts = append(parts, v1alpha1.SanitizeText(e.Error(), 200))
	}
	return strings.Join(parts, "; ")
}

// unmatchedOverrides returns the sources of overrides that select no member.
func (p *Policy) unmatchedOverrides(members []Member) []string {
	var sources []string
	for i := range p.overrides {
		o := &p.overrides[i]
		if !slices.ContainsFunc(members, o.matches) && !slices.Contains(sources, o.source) {
			sources = append(sources, o.source)
		}
	}
	return sources
}

func mergeMaps(base, over map[string]string) map[string]string {
	data := make(map[string]string, len(base)+len(over))
	maps.Copy(data, base)
	maps.Copy(data, over)
	return data
}

// Equal compares two policies by meaning: an older version may have written fewer keys.
func Equal(a, b map[string]string) bool {
	p, _, bad := apipolicy.Parse(a)
	q, _, worse := apipolicy.Parse(b)
	if len(bad)+len(worse) > 0 {
		return maps.Equal(a, b)
	}
	return p.Equal(q)
}
