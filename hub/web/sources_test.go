package web

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newFloodedFleet has a member with more sources than a matrix has rows, all of which come before
// those of the others.
func newFloodedFleet(t *testing.T) *testFleet {
	t.Helper()
	f := newTestFleet(t, "a", "flood")
	f.reportSources("flood", 2, readapi.MaxMatrixRows+1)
	return f
}

// reportSources replaces the report of a member by one of so many sources.
func (f *testFleet) reportSources(member string, sequence int64, n int) {
	images := make([]v1alpha1.ReportedImage, n)
	for i := range images {
		name := fmt.Sprintf("%05d", i)
		images[i] = v1alpha1.ReportedImage{Namespace: "images", Name: name, UID: "u", Source: "http a/" + name, Phase: v1alpha1.PhaseSucceeded}
	}
	setReport(f.Index, member, sequence, images)
}

// What one member reports hides no source of the others from a search.
func TestManySourcesHideNone(t *testing.T) {
	f := newFloodedFleet(t)
	var found readapi.SearchAnswer
	f.read(t, "search?q=debian", &found)
	assert.Equal(t, []readapi.Found{{Kind: readapi.FoundSource, Name: "http debian"}}, found.Found)
	assert.False(t, found.More)
	f.read(t, "search?q=http", &found)
	assert.Len(t, found.Found, readapi.MaxFound)
	assert.True(t, found.More)
}

// Where the sources of all clusters are too many, those of a part of them are not.
func TestMatrixOfSourcesIsOfItsClusters(t *testing.T) {
	f := newFloodedFleet(t)
	for query, wantRefused := range map[string]bool{
		"":                                     true,
		"&cols=a,flood":                        true,
		"&selector=name+notin+(a)":             true,
		"&cols=a":                              false,
		"&cols=a,dark":                         false,
		"&selector=name+notin+(flood)":         false,
		"&cols=a,flood&selector=name%21=flood": false,
	} {
		t.Run(query, func(t *testing.T) {
			path := "matrix?rows=source" + query
			if wantRefused {
				var refused readapi.ErrorAnswer
				require.Equal(t, http.StatusBadRequest, getJSON(t, f.API, http.MethodGet, readapi.Root+path, &refused))
				assert.Contains(t, refused.Error, readapi.ChooseClustersMessage)
				return
			}
			var m readapi.Matrix
			f.read(t, path, &m)
			assert.Equal(t, []readapi.MatrixRow{{Source: "http debian"}, {Source: "http ubuntu"}}, m.Rows)
			require.NoError(t, m.Check())
			assert.Equal(t, readapi.CellQueued, m.At(0, 0).State())
		})
	}
}

// A matrix of many clusters is bounded by its cells. The refusal names that bound, not the larger
// one of a matrix of few clusters.
func TestMatrixOfSourcesIsBoundedByCells(t *testing.T) {
	const columns = 400
	names := make([]string, columns-1) // one member never reported
	for i := range names {
		names[i] = fmt.Sprintf("edge-%03d", i)
	}
	f := newTestFleet(t, names...)
	const limit = readapi.MaxMatrixCells / columns
	require.Less(t, limit, readapi.MaxMatrixRows)
	f.reportSources(names[0], 2, limit-2) // the others report two
	var m readapi.Matrix
	f.read(t, "matrix?rows=source", &m)
	assert.Len(t, m.Rows, limit)
	assert.Len(t, m.Cols, columns)

	f.reportSources(names[0], 3, limit-1)
	f.passTime()
	var refused readapi.ErrorAnswer
	require.Equal(t, http.StatusBadRequest, getJSON(t, f.API, http.MethodGet, readapi.Root+"matrix?rows=source", &refused))
	assert.Equal(t, fmt.Sprintf("the chosen clusters report more than %d sources, the most for %d columns: choose clusters with cols or selector", limit, columns), refused.Error)
	f.read(t, "matrix?rows=source&cols="+names[0], &m)
	assert.Len(t, m.Rows, limit-1)
}
