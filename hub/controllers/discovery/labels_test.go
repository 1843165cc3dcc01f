package discovery

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

type labelSet = map[string]string

func TestMergeLabels(t *testing.T) {
	for name, tt := range map[string]struct {
		current, record, origin labelSet
		wantLabels, wantRecord  labelSet
	}{
		"new":                          {nil, nil, labelSet{"a": "1"}, labelSet{"a": "1"}, labelSet{"a": "1"}},
		"set by people before":         {labelSet{"a": "mine"}, nil, labelSet{"a": "1"}, labelSet{"a": "mine"}, labelSet{}},
		"follows":                      {labelSet{"a": "1"}, labelSet{"a": "1"}, labelSet{"a": "2"}, labelSet{"a": "2"}, labelSet{"a": "2"}},
		"changed by people":            {labelSet{"a": "mine"}, labelSet{"a": "1"}, labelSet{"a": "2"}, labelSet{"a": "mine"}, labelSet{"a": "1"}},
		"removed by people":            {labelSet{}, labelSet{"a": "1"}, labelSet{"a": "1"}, labelSet{}, labelSet{"a": "1"}},
		"gone from the origin":         {labelSet{"a": "1"}, labelSet{"a": "1"}, labelSet{}, labelSet{}, labelSet{}},
		"gone, but changed by people":  {labelSet{"a": "mine"}, labelSet{"a": "1"}, labelSet{}, labelSet{"a": "mine"}, labelSet{}},
		"a deployment tool's":          {nil, nil, labelSet{"argocd.argoproj.io/instance": "x"}, labelSet{}, labelSet{}},
		"the registration":             {nil, nil, labelSet{v1alpha1.LabelMember: "x", v1alpha1.LabelDiscovered: "y"}, labelSet{}, labelSet{}},
		"copied when it was no tool's": {labelSet{"helm.sh/chart": "x"}, labelSet{"helm.sh/chart": "x"}, labelSet{"helm.sh/chart": "x"}, labelSet{}, labelSet{}},
	} {
		t.Run(name, func(t *testing.T) {
			labels, record := mergeLabels(tt.current, tt.record, tt.origin)
			require.Equal(t, tt.wantLabels, labels)
			require.Equal(t, tt.wantRecord, record)
		})
	}
}

// Copying is idempotent, and labels set by users survive any origin.
func TestCopyLabels(t *testing.T) {
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
			copyLabels(member, origin)
			if copyLabels(member, origin) {
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

func TestNamesFor(t *testing.T) {
	long := strings.Repeat("x", 60)
	for name, tt := range map[string]struct {
		namespace, cluster string
		want               []string
	}{
		"usual":         {"team-a", "edge", []string{"edge", "team-a-edge"}},
		"long together": {strings.Repeat("n", 50), "edge", []string{"edge"}},
		"too long":      {"team-a", long, nil},
		"with dots":     {"team-a", "edge.example", nil},
	} {
		t.Run(name, func(t *testing.T) {
			names := namesFor(tt.namespace, tt.cluster)
			require.Len(t, names, len(tt.want)+1)
			last := names[len(tt.want)]
			require.Equal(t, append(tt.want, last), names)
			require.LessOrEqual(t, len(last), maxNameLength)
			require.Regexp(t, validName, last)
		})
	}
	require.NotEqual(t, namesFor("a", long)[0], namesFor("b", long)[0])
}
