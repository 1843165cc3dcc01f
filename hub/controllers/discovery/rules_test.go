package discovery

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDecide(t *testing.T) {
	only := func(namespaces ...string) Rules { return Rules{Namespaces: namespaces} }
	for name, tt := range map[string]struct {
		rules Rules
		state clusterState
		want  action
	}{
		"of an allowed namespace":             {only("team-a"), clusterState{exists: true, selected: true}, actionCreate},
		"of any namespace":                    {only("*"), clusterState{exists: true, selected: true}, actionCreate},
		"of another namespace":                {only("team-b", "team"), clusterState{exists: true, selected: true}, actionRefuse},
		"no namespace is allowed":             {only(), clusterState{exists: true, selected: true}, actionRefuse},
		"not selected":                        {only(), clusterState{exists: true}, actionNone},
		"never a member, gone":                {only("team-a"), clusterState{}, actionNone},
		"being deleted before it joined":      {only("team-a"), clusterState{exists: true, selected: true, deleting: true}, actionNone},
		"joined before the rules":             {only(), clusterState{exists: true, selected: true, hasMember: true, discovered: true}, actionCopyLabels},
		"joined, being deleted":               {only("team-a"), clusterState{exists: true, selected: true, deleting: true, hasMember: true, discovered: true}, actionCopyLabels},
		"joined, gone":                        {only("team-a"), clusterState{hasMember: true, discovered: true}, actionDelete},
		"joined, gone, of another namespace":  {only(), clusterState{hasMember: true, discovered: true}, actionDelete},
		"joined, no longer selected":          {only("team-a"), clusterState{exists: true, hasMember: true, discovered: true}, actionDelete},
		"joined, created again":               {only("team-a"), clusterState{exists: true, selected: true, hasMember: true, discovered: true, replaced: true}, actionDelete},
		"in quarantine":                       {only("team-a"), clusterState{exists: true, selected: true, hasMember: true, discovered: true, quarantined: true}, actionCopyLabels},
		"in quarantine, gone":                 {only("team-a"), clusterState{hasMember: true, discovered: true, quarantined: true}, actionKeep},
		"in quarantine, no longer selected":   {only("team-a"), clusterState{exists: true, hasMember: true, discovered: true, quarantined: true}, actionKeep},
		"in quarantine, created again":        {only("team-a"), clusterState{exists: true, selected: true, hasMember: true, discovered: true, replaced: true, quarantined: true}, actionKeep},
		"a person's member":                   {only("team-a"), clusterState{exists: true, selected: true, hasMember: true}, actionNone},
		"a person's member, its Cluster gone": {only("team-a"), clusterState{hasMember: true}, actionNone},
	} {
		t.Run(name, func(t *testing.T) {
			tt.state.namespace = "team-a"
			require.Equal(t, tt.want, tt.rules.decide(tt.state))
		})
	}
}

func TestNamesFor(t *testing.T) {
	long := strings.Repeat("x", 60)
	for name, tt := range map[string]struct {
		namespace, cluster string
		want               []string
	}{
		"qualified":                {"team-a", "edge", []string{"team-a--edge"}},
		"own name allowed":         {"platform", "edge", []string{"edge", "platform--edge"}},
		"long together":            {strings.Repeat("n", 50), "edge", nil},
		"too long":                 {"team-a", long, nil},
		"with dots":                {"team-a", "edge.example", nil},
		"ambiguous":                {"team-a", "edge--1", nil},
		"another's qualified name": {"platform", "team-a--edge", nil},
	} {
		t.Run(name, func(t *testing.T) {
			names := Rules{OwnNames: []string{"platform"}}.namesFor(tt.namespace, tt.cluster)
			require.Len(t, names, len(tt.want)+1)
			last := names[len(tt.want)]
			require.Equal(t, append(tt.want, last), names)
			require.True(t, isMemberName(last), last)
			require.NotContains(t, last, qualifier)
		})
	}
}

// No Cluster gets a name that another namespace's Cluster of any name could have.
func TestNamesAreOneCluster(t *testing.T) {
	label := rapid.SampledFrom([]string{"a", "b", "a-b", "a--b", "b--a", "a-b-a"})
	rapid.Check(t, func(t *rapid.T) {
		type clusterKey struct{ namespace, name string }
		owners := map[string]clusterKey{}
		for range rapid.IntRange(2, 40).Draw(t, "clusters") {
			key := clusterKey{label.Draw(t, "namespace"), label.Draw(t, "name")}
			for _, name := range (Rules{}).namesFor(key.namespace, key.name) {
				require.True(t, isMemberName(name), name)
				if owner, taken := owners[name]; taken && owner != key {
					t.Fatalf("%v and %v may both be %s", owner, key, name)
				}
				owners[name] = key
			}
		}
	})
}

func TestValidateRules(t *testing.T) {
	require.NoError(t, Rules{Namespaces: []string{"team-a", "*"}, OwnNames: []string{"platform"}}.Validate())
	require.ErrorContains(t, Rules{Namespaces: []string{"team-*"}}.Validate(), `"team-*" is not the name of a namespace`)
	require.ErrorContains(t, Rules{OwnNames: []string{"A"}}.Validate(), `"A" is not`)
}
