package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Keys of the fleet's policy ConfigMap, beside those of a cluster's.
const (
	// KeyOverrides holds a YAML list of overrides.
	KeyOverrides = "overrides"
)

// SourceDefault is the source of a policy that no override has a part in.
const SourceDefault = "fleet default"

// maxSourceLength is what ClusterPlan.spec.policySource has room for.
const maxSourceLength = 512

// Member is what a policy looks at in a MemberCluster.
type Member struct {
	Name   string
	Labels map[string]string
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
	defaults  map[string]string
	overrides []override
	budget    *Budget
}

// override sets some keys for some members: for one, or for those that a
// selector matches.
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

// ParsePolicy reads the data of the fleet's policy ConfigMap: the keys of
// package policy, which are the defaults of all members, and overrides:
//
//	concurrency: "3"
//	overrides: |
//	  - selector: {matchLabels: {edge: "true"}}
//	    concurrency: 1
//	  - cluster: frankfurt
//	    concurrency: 8
//	    attemptTimeout: 2h
//
// Every error is returned, by key, those of overrides with their path, as in
// "overrides[1].concurrency". With any of them there is no Policy: half of one
// is nobody's intention. Keys at the top that nobody knows are returned and are
// no error: they can be for a later version.
func ParsePolicy(data map[string]string) (p *Policy, unknown []string, errs []apipolicy.KeyError) {
	base := map[string]string{}
	for key, text := range data {
		if !isFleetOnlyKey(key) {
			base[key] = text
		}
	}
	_, unknown, errs = apipolicy.Parse(base)
	unknown = slices.DeleteFunc(unknown, func(key string) bool { return key == KeyWeight })
	if len(unknown) == 0 {
		unknown = nil
	}
	for _, key := range unknown {
		delete(base, key)
	}
	p = &Policy{defaults: base}
	var wrong []apipolicy.KeyError
	p.budget, wrong = parseBudget(data)
	errs = append(errs, wrong...)
	var more []apipolicy.KeyError
	p.overrides, more = parseOverrides(data[KeyOverrides])
	errs = append(errs, more...)
	if len(errs) == 0 {
		// Each override must do by itself; what several make of one member together
		// shows in For only.
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

// ForMember returns the policy of a member, every key, and where it comes from: the
// overrides that decide at least one key of it, or SourceDefault.
//
// With errors there is no policy for this member: each override does by itself,
// and together they contradict each other.
func (p *Policy) ForMember(member string, labels map[string]string) (data map[string]string, source string, errs []apipolicy.KeyError) {
	set, source := p.resolveKeys(Member{member, labels})
	effective, _, errs := apipolicy.Parse(p.applyGrantKeys(set))
	if len(errs) > 0 {
		return nil, source, errs
	}
	return effective.ToData(), source, nil
}

// resolveKeys returns the keys that are set for a member, and who set them.
func (p *Policy) resolveKeys(m Member) (data map[string]string, source string) {
	data = mergeMaps(p.defaults, nil)
	by := map[string]string{} // source of each key that an override has set
	var applying []string
	for _, named := range []bool{false, true} {
		for i := range p.overrides {
			o := &p.overrides[i]
			if (o.cluster != "") != named || !o.matches(m) {
				continue
			}
			for key, text := range o.values {
				data[key], by[key] = text, o.source
			}
			if !slices.Contains(applying, o.source) {
				applying = append(applying, o.source)
			}
		}
	}
	deciding := map[string]bool{}
	for _, s := range by {
		deciding[s] = true
	}
	return data, joinSources(slices.DeleteFunc(applying, func(s string) bool { return !deciding[s] }))
}

// joinSources names as many as there is room for.
func joinSources(sources []string) string {
	if len(sources) == 0 {
		return SourceDefault
	}
	joined := strings.Join(sources, ", ")
	for n := len(sources) - 1; len(joined) > maxSourceLength && n > 0; n-- {
		joined = fmt.Sprintf("%s and %d more", strings.Join(sources[:n], ", "), len(sources)-n)
	}
	return v1alpha1.Truncate(joined, maxSourceLength)
}

// ValidateMembers returns the errors of the members whose overrides contradict each
// other, and of safe shares that are more than the fleet's budget. A ConfigMap is to be taken only without any.
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

// maxErrors is how many errors a text for people names.
const maxErrors = 5

// FormatErrors joins errors to one line of bounded length.
func FormatErrors(errs []apipolicy.KeyError) string {
	var parts []string
	for i, e := range errs {
		if i == maxErrors {
			parts = append(parts, fmt.Sprintf("and %d more", len(errs)-i))
			break
		}
		parts = append(parts, v1alpha1.Truncate(e.Error(), 200))
	}
	return strings.Join(parts, "; ")
}

// unmatchedOverrides returns the overrides that no member of the fleet is subject to, by
// their source.
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
	for key, text := range base {
		data[key] = text
	}
	for key, text := range over {
		data[key] = text
	}
	return data
}

// Equal compares what two policies mean: an older version may have written
// fewer keys.
func Equal(a, b map[string]string) bool {
	p, _, bad := apipolicy.Parse(a)
	q, _, worse := apipolicy.Parse(b)
	if len(bad)+len(worse) > 0 {
		return maps.Equal(a, b)
	}
	return p.Equal(q)
}
