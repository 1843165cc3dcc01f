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
	images := make([]v1alpha1.ReportedImage, readapi.MaxMatrixRows+1)
	for i := range images {
		name := fmt.Sprintf("%05d", i)
		images[i] = v1alpha1.ReportedImage{Namespace: "images", Name: name, UID: "u", Source: "http a/" + name, Phase: v1alpha1.PhaseSucceeded}
	}
	setReport(f.Index, "flood", 2, images)
	return f
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
				assert.Contains(t, refused.Error, "choose clusters with cols or selector")
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
