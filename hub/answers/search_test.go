package answers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

func newMembers(names ...string) (members []v1alpha1.MemberCluster) {
	for _, name := range names {
		members = append(members, v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return members
}

func TestSearch(t *testing.T) {
	ubuntu := apitest.FleetDiskImage("ubuntu").WithStatus(v1alpha1.FleetDiskImageStatus{
		Versions: []v1alpha1.VersionStatus{{Version: "2.0.3"}, {Version: "2.0.3"}},
	}).Obj()
	in := &answers.SearchTerms{
		Members: newMembers("bergen", "new-bergen", "edge-1", "edge-12", "bergen-2", "gothenbergen"),
		Images:  []v1alpha1.FleetDiskImage{*ubuntu},
		Sources: slices.Values([]string{"http https://images.example.com/ubuntu/2.0.3/disk.qcow2", "http https://images.example.com/bergen.qcow2"}),
	}
	for text, want := range map[string][]string{
		"":             {},
		"  ":           {},
		"nothing":      {},
		"Bergen":       {"Cluster bergen", "Cluster bergen-2", "Cluster new-bergen", "Source http https://images.example.com/bergen.qcow2", "Cluster gothenbergen"},
		"1 edge":       {"Cluster edge-1", "Cluster edge-12"},
		"ubuntu":       {"Rollout ubuntu", "Source http https://images.example.com/ubuntu/2.0.3/disk.qcow2"},
		"ubuntu 2.0.3": {"Version ubuntu 2.0.3", "Source http https://images.example.com/ubuntu/2.0.3/disk.qcow2"},
	} {
		t.Run(text, func(t *testing.T) {
			got := []string{}
			for _, f := range answers.Search(text, in).Found {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Kind, f.Name, f.Version)))
			}
			assert.Equal(t, want, got)
		})
	}
}

func TestSearchIsBounded(t *testing.T) {
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprintf("edge-%03d", i)
	}
	answer := answers.Search("edge", &answers.SearchTerms{Members: newMembers(names...)})
	assert.Len(t, answer.Found, readapi.MaxFound)
	assert.True(t, answer.More)
	assert.Equal(t, "edge-000", answer.Found[0].Name)
}

// However many names match less well, and however they are ordered, the best are found.
func TestSearchFindsTheBestOfMany(t *testing.T) {
	sources := []string{"http z/ubuntu", "ubuntu z"}
	for i := range 5000 {
		sources = append(sources, fmt.Sprintf("http a/xubuntu-%04d", i))
	}
	reversed := slices.Clone(sources)
	slices.Reverse(reversed)
	for name, all := range map[string][]string{"in front": sources, "at the end": reversed} {
		t.Run(name, func(t *testing.T) {
			answer := answers.Search("ubuntu", &answers.SearchTerms{Sources: slices.Values(all)})
			assert.Len(t, answer.Found, readapi.MaxFound)
			assert.True(t, answer.More)
			assert.Equal(t, "ubuntu z", answer.Found[0].Name)
			assert.Equal(t, "http z/ubuntu", answer.Found[1].Name)
			assert.Equal(t, "http a/xubuntu-0000", answer.Found[2].Name)
		})
	}
}

// What is found has all words, and what has its whole name searched for comes first.
func TestSearchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[ab]{1,3}(-[ab]{1,2})?`), 1, 12, rapid.ID[string]).Draw(t, "names")
		text := rapid.StringMatching(`[ab-]{1,3}( [ab]{1,2})?`).Draw(t, "text")
		found := answers.Search(text, &answers.SearchTerms{Members: newMembers(names...)}).Found
		matching := 0
		for _, name := range names {
			if !slices.ContainsFunc(strings.Fields(text), func(w string) bool { return !strings.Contains(name, w) }) {
				matching++
			}
		}
		assert.Len(t, found, matching)
		if slices.Contains(names, text) {
			assert.Equal(t, text, found[0].Name)
		}
	})
}
