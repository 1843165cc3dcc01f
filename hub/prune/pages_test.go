package prune_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// joinPages merges the parts of clusters.
func joinPages(pages [][]v1alpha1.ReportedCluster) (clusters []v1alpha1.ReportedCluster) {
	for _, page := range pages {
		for _, part := range page {
			if n := len(clusters); n > 0 && clusters[n-1].Cluster == part.Cluster {
				last := &clusters[n-1]
				last.Candidates = append(last.Candidates, part.Candidates...)
				last.Kept = append(last.Kept, part.Kept...)
				last.Orphans = append(last.Orphans, part.Orphans...)
				last.OmittedOrphans += part.OmittedOrphans
				last.OmittedOrphanBytes += part.OmittedOrphanBytes
				continue
			}
			clusters = append(clusters, part)
		}
	}
	return clusters
}

// newLargeCluster has the given numbers of candidates, kept groups and images per group.
func newLargeCluster(name string, candidates, groups, images int) v1alpha1.ReportedCluster {
	c := v1alpha1.ReportedCluster{
		Cluster: name, ClusterUID: types.UID("uid-" + name), Plan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 2, Hash: strings.Repeat("h", 64)}, ObservedAt: toStoredTime(now),
		Orphans: []v1alpha1.OrphanedObject{{Kind: "DataVolume", Namespace: "farm", Name: "dv", Bytes: 7}}, OmittedOrphans: 2, OmittedOrphanBytes: 9,
	}
	for i := range candidates {
		c.Candidates = append(c.Candidates, v1alpha1.PruneCandidate{
			Namespace: "farm", Name: fmt.Sprintf("image-%06d", i), UID: types.UID(fmt.Sprintf("6f1c1f0e-0000-0000-0000-%012d", i)),
			Revision: "0123456789abcdef", Phase: v1alpha1.PhaseSucceeded, Origin: v1alpha1.OriginPlan, DeclaredBy: "ubuntu", Bytes: 1 << 40, UnreferencedSince: toStoredTime(now),
		})
	}
	for i := range groups {
		g := v1alpha1.KeptImages{Reason: v1alpha1.KeptWanted, Detail: fmt.Sprintf("FleetDiskImage i-%06d", i), Bytes: 11}
		for k := range images {
			g.Images = append(g.Images, fmt.Sprintf("farm/%s-%d-%d", strings.Repeat("n", 40), i, k))
		}
		c.Kept = append(c.Kept, g)
	}
	return c
}

// checkPages requires pages to hold what clusters hold, within the size limit.
func checkPages(t require.TestingT, pages [][]v1alpha1.ReportedCluster, clusters []v1alpha1.ReportedCluster) {
	require.True(t, toJSON(t, clusters) == toJSON(t, joinPages(pages)), "nothing is lost, and nothing stands twice") //nolint:testifylint // Equal would print the pages
	for _, page := range pages {
		require.NotEmpty(t, page)
		require.LessOrEqual(t, len(page), 4096)
		require.LessOrEqual(t, len(toJSON(t, page)), 400<<10)
		for _, part := range page {
			require.LessOrEqual(t, len(part.Candidates), 4096)
			require.LessOrEqual(t, len(part.Kept), 4096)
			require.LessOrEqual(t, len(part.Orphans), 64)
			whole := clusters[0]
			for _, c := range clusters {
				if c.Cluster == part.Cluster {
					whole = c
				}
			}
			require.Equal(t, whole.ClusterUID, part.ClusterUID, "each part names its cluster")
			require.Equal(t, whole.Plan, part.Plan)
			require.Equal(t, whole.ObservedAt, part.ObservedAt)
		}
	}
}

func TestPaginate(t *testing.T) {
	many := make([]v1alpha1.ReportedCluster, 5000)
	for i := range many {
		many[i] = v1alpha1.ReportedCluster{Cluster: fmt.Sprintf("c-%05d", i), Unknown: v1alpha1.ReasonOffline}
	}
	quotes := make([]v1alpha1.ReportedCluster, 1000)
	for i := range quotes {
		quotes[i] = v1alpha1.ReportedCluster{Cluster: fmt.Sprintf("c-%05d", i), Unknown: v1alpha1.ReasonOffline, Message: strings.Repeat("<", 512)}
	}
	names := v1alpha1.ReportedCluster{Cluster: "a"}
	for range 1000 {
		name := strings.Repeat("<\x01", 126)
		names.Candidates = append(names.Candidates, v1alpha1.PruneCandidate{Namespace: "a", Name: name})
		names.Kept = append(names.Kept, v1alpha1.KeptImages{Reason: "W", Images: []string{"a/" + name}})
	}
	tests := map[string]struct {
		clusters  []v1alpha1.ReportedCluster
		wantPages int
	}{
		"none":                     {nil, 0},
		"one small":                {[]v1alpha1.ReportedCluster{newLargeCluster("a", 1, 1, 1)}, 1},
		"small ones share a page":  {[]v1alpha1.ReportedCluster{newLargeCluster("a", 10, 5, 3), newLargeCluster("b", 10, 5, 3), newLargeCluster("c", 0, 0, 0)}, 1},
		"a large one is continued": {[]v1alpha1.ReportedCluster{newLargeCluster("a", 1, 1, 1), newLargeCluster("b", 10000, 50, 1000), newLargeCluster("c", 1, 1, 1)}, 15},
		"many groups of one image": {[]v1alpha1.ReportedCluster{newLargeCluster("a", 0, 9000, 1)}, 7},
		"many unknown ones":        {many, 6},
		"texts that JSON escapes":  {quotes, 9},
		"names that JSON escapes":  {[]v1alpha1.ReportedCluster{names}, 9},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pages, digest, err := prune.Paginate("report-uid", test.clusters)
			require.NoError(t, err)
			if len(test.clusters) > 0 {
				checkPages(t, pages, test.clusters)
			}
			require.Equal(t, test.wantPages, len(pages)) //nolint:testifylint // Len would print the pages
			require.Equal(t, prune.Digest("report-uid", pages), digest)
		})
	}
}

func TestPagePartsFitAPILimits(t *testing.T) {
	c := v1alpha1.ReportedCluster{Cluster: "a"}
	for range 4097 {
		c.Kept = append(c.Kept, v1alpha1.KeptImages{Reason: "W", Images: []string{"a/b"}})
	}
	pages, _, err := prune.Paginate("u", []v1alpha1.ReportedCluster{c})
	require.NoError(t, err)
	checkPages(t, pages, []v1alpha1.ReportedCluster{c})
}

func TestTooLargeReportFails(t *testing.T) {
	clusters := make([]v1alpha1.ReportedCluster, 0, 1000)
	c := newLargeCluster("c", 0, 1, 9000)
	for i := range 1000 {
		c.Cluster = fmt.Sprintf("c-%04d", i)
		clusters = append(clusters, c)
	}
	_, _, err := prune.Paginate("u", clusters)
	require.ErrorIs(t, err, prune.ErrTooLarge)
	st := prune.TooLargeStatus(newReport(withStarted), now)
	require.Equal(t, v1alpha1.PruneReportFailed, st.Phase)
	require.Equal(t, v1alpha1.ReasonReportTooLarge, st.Reason)
	requireConditions(t, st.Conditions, 3, reportConditions, failed)
	require.Equal(t, toJSON(t, st), toJSON(t, prune.TooLargeStatus(newReport(func(r *v1alpha1.PruneReport) { r.Status = st }), now.AddDate(1, 0, 0))))
}

// TestMembersWithoutEndCostNoReport has a few members that report as much as they can.
func TestMembersWithoutEndCostNoReport(t *testing.T) {
	var clusters []v1alpha1.ReportedCluster
	for i := range 100 {
		clusters = append(clusters, newLargeCluster(fmt.Sprintf("c-%03d", i), 0, 1, 9000))
	}
	honest, _, err := prune.Paginate("u", clusters)
	require.NoError(t, err)
	flood := newLargeCluster("flood", 120000, 0, 0)
	for i := range 3 {
		flood.Cluster = fmt.Sprintf("flood-%d", i)
		clusters = append(clusters, flood)
	}
	_, _, err = prune.Paginate("u", clusters)
	require.ErrorIs(t, err, prune.ErrTooLarge)

	fitting := prune.OmitLargest(clusters)
	pages, _, err := prune.Paginate("u", fitting)
	require.NoError(t, err)
	assert.InDelta(t, len(honest), len(pages), 1)
	st := prune.CompleteStatus(newReport(withStarted), fitting, len(pages), "digest", now)
	assert.EqualValues(t, 3, st.Clusters.Unknown)
	assert.Contains(t, st.Message, "flood-0: ReportTooLarge")
}

func TestPageNamesFit(t *testing.T) {
	name := prune.PageName(strings.Repeat("n", 180), prune.Digest("u", nil), v1alpha1.MaxPruneReportPages-1)
	require.LessOrEqual(t, len(name), 253)
	require.Equal(t, "spring-abc-0", prune.PageName("spring", "abc", 0))
}

func TestPropertyPagesLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var clusters []v1alpha1.ReportedCluster
		for i := range rapid.IntRange(1, 4).Draw(t, "clusters") {
			size := rapid.SampledFrom([]int{0, 1, 10, 40}).Draw(t, "size")
			clusters = append(clusters, newLargeCluster(fmt.Sprintf("c%d", i), rapid.IntRange(0, size*30).Draw(t, "candidates"), rapid.IntRange(0, size).Draw(t, "groups"), 1+rapid.IntRange(0, size).Draw(t, "images")))
		}
		given := rapid.Permutation(clusters).Draw(t, "order")
		pages, digest, err := prune.Paginate("u", given)
		require.NoError(t, err)
		checkPages(t, pages, clusters)
		require.Equal(t, digest, prune.Digest("u", roundTrip(t, pages)))
	})
}

func TestPropertyDigestSurvivesAPIServerRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pages, digest, err := prune.Paginate("u", judgeAll(drawSpec(t), drawClusters(t)))
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(digest), 16)
		read := make([][]v1alpha1.ReportedCluster, len(pages))
		for i := range pages {
			object := roundTrip(t, v1alpha1.PruneReportPage{Clusters: pages[i]})
			read[i] = object.Clusters
		}
		require.Equal(t, digest, prune.Digest("u", read))
		require.NotEqual(t, digest, prune.Digest("another", read))
	})
}

// Any changed value in a page changes the digest.
func TestDigestCoversEveryField(t *testing.T) {
	base := func() [][]v1alpha1.ReportedCluster {
		a, b := newLargeCluster("a", 2, 2, 2), v1alpha1.ReportedCluster{Cluster: "b", Unknown: "Offline", Message: "m"}
		a.Orphans[0].Image, a.Orphans[0].ImageUID = "i", "u"
		return [][]v1alpha1.ReportedCluster{{a}, {b}}
	}
	digest := prune.Digest("u", base())
	n := 0
	for leaf := 0; ; leaf++ {
		pages := base()
		path, changed := changeLeaf(reflect.ValueOf(&pages).Elem(), leaf)
		if !changed {
			break
		}
		n++
		require.NotEqual(t, digest, prune.Digest("u", pages), path)
	}
	require.Greater(t, n, 40)

	pages := base()
	require.NotEqual(t, digest, prune.Digest("u", pages[:1]), "one page less")
	require.NotEqual(t, digest, prune.Digest("u", [][]v1alpha1.ReportedCluster{pages[1], pages[0]}), "another order")
	require.NotEqual(t, digest, prune.Digest("u", [][]v1alpha1.ReportedCluster{append(pages[0], pages[1]...)}), "another division")
	require.NotEqual(t, digest, prune.Digest("u", append(pages, nil)), "one page more")
	pages = base()
	pages[0][0].Candidates = pages[0][0].Candidates[1:]
	require.NotEqual(t, digest, prune.Digest("u", pages), "one row less")
}

// changeLeaf changes the nth text or number of a value.
func changeLeaf(v reflect.Value, leaf int) (path string, changed bool) {
	var walk func(v reflect.Value, at string) bool
	walk = func(v reflect.Value, at string) bool {
		if v.Type() == reflect.TypeOf(now) {
			if leaf--; leaf == -1 {
				v.Set(reflect.ValueOf(now.AddDate(0, 0, 1)))
				path = at
			}
			return leaf < 0
		}
		switch v.Kind() {
		case reflect.Slice:
			for i := range v.Len() {
				if walk(v.Index(i), fmt.Sprintf("%s[%d]", at, i)) {
					return true
				}
			}
		case reflect.Pointer:
			return !v.IsNil() && walk(v.Elem(), at)
		case reflect.Struct:
			for i := range v.NumField() {
				if walk(v.Field(i), at+"."+v.Type().Field(i).Name) {
					return true
				}
			}
		case reflect.String:
			if leaf--; leaf == -1 {
				v.SetString(v.String() + "x")
				path = at
			}
			return leaf < 0
		case reflect.Int32, reflect.Int64:
			if leaf--; leaf == -1 {
				v.SetInt(v.Int() + 1)
				path = at
			}
			return leaf < 0
		default:
			panic(v.Kind())
		}
		return false
	}
	changed = walk(v, "")
	return path, changed
}

func TestPropertyDigestChangesWithAnyRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pages, digest, err := prune.Paginate("u", judgeAll(drawSpec(t), drawClusters(t)))
		require.NoError(t, err)
		text, err := json.Marshal(pages)
		require.NoError(t, err)
		var other [][]v1alpha1.ReportedCluster
		require.NoError(t, json.Unmarshal(text, &other))
		leaf := rapid.IntRange(0, 400).Draw(t, "leaf")
		if path, changed := changeLeaf(reflect.ValueOf(&other).Elem(), leaf); changed {
			require.NotEqual(t, digest, prune.Digest("u", other), path)
		}
	})
}
