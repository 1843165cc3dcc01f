package discovery

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

type labelSet = map[string]string

func TestMergeLabels(t *testing.T) {
	rules := Rules{LabelPrefixes: []string{"fleet/", "argocd.argoproj.io/", "pelotech.ot/"}}
	for name, tt := range map[string]struct {
		current, record, origin labelSet
		wantLabels, wantRecord  labelSet
	}{
		"new":                          {nil, nil, labelSet{"fleet/a": "1"}, labelSet{"fleet/a": "1"}, labelSet{"fleet/a": "1"}},
		"set by people before":         {labelSet{"fleet/a": "mine"}, nil, labelSet{"fleet/a": "1"}, labelSet{"fleet/a": "mine"}, labelSet{}},
		"follows":                      {labelSet{"fleet/a": "1"}, labelSet{"fleet/a": "1"}, labelSet{"fleet/a": "2"}, labelSet{"fleet/a": "2"}, labelSet{"fleet/a": "2"}},
		"changed by people":            {labelSet{"fleet/a": "mine"}, labelSet{"fleet/a": "1"}, labelSet{"fleet/a": "2"}, labelSet{"fleet/a": "mine"}, labelSet{"fleet/a": "1"}},
		"removed by people":            {labelSet{}, labelSet{"fleet/a": "1"}, labelSet{"fleet/a": "1"}, labelSet{}, labelSet{"fleet/a": "1"}},
		"gone from the origin":         {labelSet{"fleet/a": "1"}, labelSet{"fleet/a": "1"}, labelSet{}, labelSet{}, labelSet{}},
		"gone, but changed by people":  {labelSet{"fleet/a": "mine"}, labelSet{"fleet/a": "1"}, labelSet{}, labelSet{"fleet/a": "mine"}, labelSet{}},
		"not allowed":                  {nil, nil, labelSet{"tier": "gold", "xfleet/a": "1"}, labelSet{}, labelSet{}},
		"excluded since, and changed":  {labelSet{"tier": "gold"}, labelSet{"tier": "gold"}, labelSet{"tier": "silver"}, labelSet{"tier": "gold"}, labelSet{"tier": "gold"}},
		"excluded since, and gone":     {labelSet{"tier": "gold"}, labelSet{"tier": "gold"}, labelSet{}, labelSet{"tier": "gold"}, labelSet{"tier": "gold"}},
		"a deployment tool's":          {nil, nil, labelSet{"argocd.argoproj.io/instance": "x"}, labelSet{}, labelSet{}},
		"the registration":             {nil, nil, labelSet{v1alpha1.LabelMember: "x", v1alpha1.LabelDiscovered: "y"}, labelSet{}, labelSet{}},
		"copied when it was no tool's": {labelSet{"helm.sh/chart": "x"}, labelSet{"helm.sh/chart": "x"}, labelSet{"helm.sh/chart": "x"}, labelSet{}, labelSet{}},
	} {
		t.Run(name, func(t *testing.T) {
			labels, record := rules.mergeLabels(tt.current, tt.record, tt.origin)
			require.Equal(t, tt.wantLabels, labels)
			require.Equal(t, tt.wantRecord, record)
		})
	}
}

// Copying is idempotent, and labels set by users survive any origin.
func TestCopyLabels(t *testing.T) {
	rules := Rules{LabelPrefixes: []string{Everything}}
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.MapOf(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"1", "2"}))
		member := &v1alpha1.MemberCluster{}
		member.Labels = some.Draw(t, "before")
		people := labelSet{}
		for key, value := range member.Labels {
			people[key] = value
		}
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			origin := some.Draw(t, "origin")
			rules.copyLabels(member, origin)
			if rules.copyLabels(member, origin) {
				t.Fatalf("copied twice: %v", member)
			}
			for key, value := range people {
				if member.Labels[key] != value {
					t.Fatalf("label %s was people's", key)
				}
			}
			for key, value := range origin {
				if _, theirs := people[key]; !theirs && member.Labels[key] != value {
					t.Fatalf("label %s is not copied", key)
				}
			}
		}
	})
}
