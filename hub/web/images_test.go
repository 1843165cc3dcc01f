package web

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
)

func TestImagesOfTheFleet(t *testing.T) {
	f := newTestFleet(t, "aarhus", "bergen")
	var list readapi.FleetImageList
	require.Equal(t, http.StatusOK, getJSON(t, f.API, http.MethodGet, "/fleet/v1/images/versions", &list))
	require.NotEmpty(t, list.Images)
	name := list.Images[0].Name
	for _, v := range list.Images[0].Versions {
		n := 0
		for _, clusters := range v.States {
			n += clusters
		}
		assert.Equal(t, list.Clusters, n, "each cluster counts once")
	}
	assert.Equal(t, 1, list.UnknownClusters, "dark has never reported")
	var clusters readapi.ImageClusters
	require.Equal(t, http.StatusOK, getJSON(t, f.API, http.MethodGet, "/fleet/v1/images/clusters?limit=1&name="+name, &clusters))
	assert.Len(t, clusters.Clusters, 1)
	assert.Greater(t, clusters.Total, 1)

	var images readapi.ImageList
	require.Equal(t, http.StatusOK, getJSON(t, f.API, http.MethodGet, "/fleet/v1/images?limit=1", &images))
	assert.NotEmpty(t, images.Next)
	total := images.Total
	require.Equal(t, http.StatusOK, getJSON(t, f.API, http.MethodGet, "/fleet/v1/images?sort=bytes", &images))
	assert.Equal(t, total, images.Total)
	require.Equal(t, http.StatusOK, getJSON(t, f.API, http.MethodGet, "/fleet/v1/images?search=debian", &images))
	assert.Equal(t, 1, images.Total)
}

func TestClustersOfASourceArePaged(t *testing.T) {
	f := newTestFleet(t, "aarhus", "bergen")
	for query, want := range map[string][]string{"": {"aarhus", "bergen"}, "&limit=1": {"aarhus"}, "&limit=1&offset=1": {"bergen"}, "&offset=5": {}} {
		var d readapi.ImageDetail
		require.Equal(t, http.StatusOK, getJSON(t, f.API, http.MethodGet, "/fleet/v1/images/detail?source=http+debian"+query, &d), query)
		names := []string{}
		for _, in := range d.PerMember {
			names = append(names, in.Member)
		}
		assert.Equal(t, want, names, query)
		assert.Equal(t, 2, d.Members, query)
	}
}
