package fleetpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/api/yamlalias"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// ShowSnapshot is what a Show is made of.
type ShowSnapshot struct {
	Now time.Time
	// Name of the policy's ConfigMap, as namespace/name.
	Name string
	// Written is its data, nil if there is none; InForce is that of the policy in force, nil
	// for none.
	Written, InForce map[string]string
	// Unreadable are the keys of the ConfigMap that are not text.
	Unreadable []apipolicy.KeyError
	// Member whose policy is shown; nil for the fleet's.
	Member  *v1alpha1.MemberCluster
	Members []v1alpha1.MemberCluster
}

// Show is the answer of kubectl ot policy show.
type Show struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	Name       string      `json:"name"`
	Cluster    string      `json:"cluster,omitempty"`
	// Problems are why the ConfigMap is not in force as it is written.
	Problems []string `json:"problems,omitempty"`
	// Contradictions are what of it, although in force, is not valid for the members that there are.
	Contradictions []string `json:"contradictions,omitempty"`
	// Ineffective says which keys of it have no effect, and why.
	Ineffective []string `json:"ineffective,omitempty"`
	// Keys of the policy in force, with all defaults.
	Keys []Key `json:"keys"`
	// Overrides are where a cluster's policy comes from, for the fleet: by source, how many
	// clusters.
	Overrides []Override `json:"overrides,omitempty"`
	// Chain is why a cluster's budget is what it is.
	Chain *Chain `json:"chain,omitempty"`
}

// Key of a policy.
type Key struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// From is "default", or where it is set.
	From string `json:"from"`
}

// Override is where some clusters' policies come from.
type Override struct {
	Source   string `json:"source"`
	Clusters int    `json:"clusters"`
}

// Chain leads from the policy to what a cluster runs. Unknown values are absent.
type Chain struct {
	Planned        int64                     `json:"planned"`
	OwnConcurrency *int32                    `json:"ownConcurrency,omitempty"`
	Budget         *int32                    `json:"budget,omitempty"`
	Slots          *int32                    `json:"slots,omitempty"`
	Acknowledged   bool                      `json:"acknowledged"`
	Transfers      *v1alpha1.MemberTransfers `json:"transfers,omitempty"`
}

// NewShow returns the policy of the fleet, or of one cluster.
func NewShow(s ShowSnapshot) (*Show, error) {
	show := &Show{Envelope: render.NewEnvelope("Policy"), ObservedAt: metav1.NewTime(s.Now), Name: s.Name}
	show.Problems, show.Contradictions = findProblems(s)
	if s.InForce == nil {
		return show, nil
	}
	inForce, _, errs := policy.ParsePolicy(s.InForce)
	if len(errs) > 0 {
		return nil, fmt.Errorf("the policy in force cannot be read by this version: %s", policy.FormatErrors(errs))
	}
	show.Ineffective = inForce.DescribeIneffective()
	name, labels := "", map[string]string(nil)
	if s.Member != nil {
		name, labels = s.Member.Name, s.Member.Labels
		show.Cluster = name
	}
	data, _, errs := inForce.ForMember(name, labels)
	if len(errs) > 0 {
		return nil, fmt.Errorf("cluster %s has no policy: %s", name, policy.FormatErrors(errs))
	}
	sources := inForce.KeySources(policy.Member{Name: name, Labels: labels})
	for _, key := range slices.Sorted(maps.Keys(data)) {
		from := cmp.Or(sources[key], fromDefault)
		if key == apipolicy.KeyFleetSources { // which no override can set
			from = policy.SourceDefault
		}
		show.Keys = append(show.Keys, Key{Name: key, Value: data[key], From: from})
	}
	if _, grants := data[apipolicy.KeySafeConcurrency]; grants { // the hub shares the fleet's budget by weight
		show.Keys = append(show.Keys, Key{Name: policy.KeyWeight, Value: fmt.Sprint(inForce.MemberWeight(name, labels)), From: cmp.Or(sources[policy.KeyWeight], fromDefault)})
	}
	if s.Member == nil {
		show.addFleet(s, inForce)
	} else {
		st := &s.Member.Status
		show.Chain = &Chain{
			Planned: policy.ConcurrencyAt(data, s.Now), OwnConcurrency: st.OwnConcurrency, Budget: st.Budget, Slots: st.SlotsUsed, Transfers: st.Transfers,
			Acknowledged: meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionPolicyAcknowledged),
		}
	}
	return show, nil
}

// addFleet adds the keys that are for the whole fleet, and where policies come from.
func (show *Show) addFleet(s ShowSnapshot, inForce *policy.Policy) {
	// What members get of these keys lacks what is for the whole fleet, such as the concurrency of sources.
	for _, key := range []string{apipolicy.KeyWindows, apipolicy.KeyFleetSources} {
		show.Keys = slices.DeleteFunc(show.Keys, func(k Key) bool { return k.Name == key })
	}
	budget := inForce.Budget(s.Now)
	for _, key := range policy.Keys() {
		if !key.FleetOnly && key.Name != apipolicy.KeyWindows || key.Name == policy.KeyOverrides {
			continue
		}
		value, set := s.InForce[key.Name]
		switch {
		case set && strings.TrimSpace(value) != "":
			show.Keys = append(show.Keys, Key{key.Name, formatValue(value), policy.SourceDefault})
		case key.Name == policy.KeyFleetConcurrency:
			show.Keys = append(show.Keys, Key{key.Name, "none", fromDefault})
		case key.Name == policy.KeyExcessTolerance && budget != nil: // at most attemptTimeout
			show.Keys = append(show.Keys, Key{key.Name, budget.ExcessTolerance.String(), fromDefault})
		case key.Default != "":
			show.Keys = append(show.Keys, Key{key.Name, formatValue(key.Default), fromDefault})
		}
	}
	counts := map[string]int{}
	for i := range s.Members {
		_, source, _ := inForce.ForMember(s.Members[i].Name, s.Members[i].Labels)
		counts[source]++
	}
	for _, source := range slices.Sorted(maps.Keys(counts)) {
		show.Overrides = append(show.Overrides, Override{source, counts[source]})
	}
}

// fromDefault is where keys come from that nothing sets.
const fromDefault = "default"

// formatValue returns the value of a key as those of members are formatted, and a list, which may have
// several lines, as JSON in one.
func formatValue(value string) string {
	value = strings.TrimSpace(value)
	if d, err := time.ParseDuration(value); err == nil && d > 0 {
		return d.String()
	}
	if yamlalias.Check([]byte(value)) != nil {
		return value
	}
	if text, err := yaml.YAMLToJSON([]byte(value)); err == nil && strings.HasPrefix(string(text), "[") {
		return string(text)
	}
	return value
}

// findProblems returns why the ConfigMap is not in force, and what of it contradicts itself for
// members that have joined or changed since.
func findProblems(s ShowSnapshot) (problems, contradictions []string) {
	switch {
	case s.Written == nil && s.InForce == nil:
		return []string{fmt.Sprintf("there is no ConfigMap %s, and no policy is in force: nothing is imported", s.Name)}, nil
	case s.Written == nil:
		return []string{fmt.Sprintf("ConfigMap %s is missing: the last one stays in force", s.Name)}, nil
	}
	written, _, errs := policy.ParsePolicy(s.Written)
	var standing []apipolicy.KeyError
	if errs = append(errs, s.Unreadable...); len(errs) == 0 {
		var inForce *policy.Policy
		if s.InForce != nil {
			inForce, _, _ = policy.ParsePolicy(s.InForce) // nil where it is invalid, as for the hub
		}
		errs, standing = written.ValidateChange(inForce, answers.PolicyMembers(s.Members))
	}
	problems, contradictions = sanitizeErrors(errs), sanitizeErrors(standing)
	if len(problems) == 0 && !maps.Equal(s.Written, s.InForce) {
		problems = append(problems, "the hub has not taken the last edit into force yet")
	}
	return problems, contradictions
}

func sanitizeErrors(errs []apipolicy.KeyError) (texts []string) {
	for _, e := range errs {
		texts = append(texts, v1alpha1.SanitizeText(e.Error(), 512))
	}
	return texts
}

// ExitCode is No where the ConfigMap is not in force.
func (show *Show) ExitCode() exit.Code {
	if len(show.Problems) > 0 {
		return exit.No
	}
	return exit.Yes
}

// verdicts say whether the ConfigMap is in force.
func (show *Show) verdicts() (lines []render.Line) {
	if len(show.Problems) == 0 {
		lines = append(lines, render.Done.With("in force"))
	}
	for _, contradiction := range show.Contradictions {
		lines = append(lines, render.Attention.With("in force, but: %s", contradiction))
	}
	for _, note := range show.Ineffective {
		lines = append(lines, render.Attention.With("%s", note))
	}
	for _, problem := range show.Problems {
		lines = append(lines, render.Failed.With("not in force: %s", problem))
	}
	return lines
}

// WatchItems are the verdicts, the keys, how many clusters each override is for, and the cluster's budget.
func (show *Show) WatchItems() (items []render.Item) {
	items = append(items, render.Item{Key: "ConfigMap " + show.Name, State: render.Join(show.verdicts(), "  ")})
	for _, k := range show.Keys {
		items = append(items, render.Item{Key: k.Name, State: render.Line{render.Text("%s", k.oneLine()), render.Dim("  from %s", k.From)}})
	}
	for _, o := range show.Overrides {
		items = append(items, render.Item{Key: "from " + o.Source, State: render.Words(render.Count(o.Clusters, "cluster"))})
	}
	if show.Chain != nil {
		items = append(items, render.Item{Key: "budget", State: render.Join(show.Chain.lines(), " · ")})
	}
	return items
}

// oneLine returns a value that may have several lines.
func (k *Key) oneLine() string { return strings.Join(strings.Fields(k.Value), " ") }

// Draw draws the screen.
func (show *Show) Draw(p *render.Page) {
	title := "POLICY OF THE FLEET"
	if show.Cluster != "" {
		title = "POLICY OF " + show.Cluster
	}
	p.Line(render.Bold("%s", title), render.Text(" · ConfigMap %s", show.Name))
	p.Lines(show.verdicts()...)
	if len(show.Keys) > 0 {
		p.Gap()
		t := p.Table(render.Column{Title: "KEY"}, render.Column{Title: "VALUE", Elastic: true}, render.Column{Title: "FROM", Drop: 1, Elastic: true})
		for _, k := range show.Keys {
			t.Row(render.Words(k.Name), render.Words(k.oneLine()), render.Words(k.From))
		}
	}
	if len(show.Overrides) > 0 {
		p.Gap()
		t := p.Table(render.Column{Title: "FROM", Elastic: true}, render.Column{Title: "CLUSTERS", Right: true})
		for _, o := range show.Overrides {
			t.Row(render.Words(o.Source), render.Words(render.Number(o.Clusters)))
		}
	}
	if show.Chain != nil {
		show.Chain.draw(p)
	}
}

func (c *Chain) draw(p *render.Page) {
	p.Section("WHY THE BUDGET IS WHAT IT IS")
	p.Lines(c.lines()...)
}

func (c *Chain) lines() []render.Line {
	own, budget := "none", "unknown"
	if c.OwnConcurrency != nil {
		own = fmt.Sprint(*c.OwnConcurrency)
	}
	if c.Budget != nil && c.Slots != nil {
		budget = fmt.Sprintf("%d, %d taken", *c.Budget, *c.Slots)
	}
	lines := []render.Line{{render.Text("policy: concurrency %d · this cluster's own ConfigMap: %s · its ledger: %s", c.Planned, own, budget)}}
	if !c.Acknowledged {
		lines = append(lines, render.Waiting.With("the cluster has not acknowledged the newest plan yet"))
	}
	if t := c.Transfers; t != nil {
		lines = append(lines, render.Line{render.Text("share of the fleet's budget: granted %d · held %d · wanted %d", t.Granted, t.Held, t.Wanted)})
		if t.Message != "" {
			lines = append(lines, render.Words(t.Message))
		}
	}
	return lines
}
