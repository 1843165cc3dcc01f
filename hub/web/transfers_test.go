package web

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
)

func TestTransfers(t *testing.T) {
	f := newTestFleet(t, "a", "b")
	var got readapi.Transfers
	f.read(t, "transfers?cluster=a", &got)
	require.Len(t, got.Running, 1)
	require.Len(t, got.Queued, 1)
	assert.Equal(t, "ubuntu-1.0.0", got.Running[0].Name)
	assert.Equal(t, int32(1), *got.Running[0].References)
	assert.Equal(t, int32(0), *got.Queued[0].References)
	got = readapi.Transfers{}
	f.read(t, "transfers?state=queued&limit=1", &got)
	assert.Empty(t, got.Running)
	assert.Len(t, got.Queued, 1)
	assert.Equal(t, 2, got.QueuedTotal)
	assert.Equal(t, 1, got.UnknownMembersTotal, "the dark one")
}

func TestRequestsForTransfersAreChecked(t *testing.T) {
	f := newTestFleet(t, "a")
	for query, want := range map[string]string{
		"state=both":     "must be one of running, queued",
		"sort=name":      "must be one of expected, oldest, rate, cluster, image",
		"cluster=nobody": "there is no MemberCluster nobody",
		"limit=0":        "must be a number from 1 to 1000",
		"page=2":         "takes no parameter page",
		"search=" + url.QueryEscape(strings.Repeat("x", maxSearchBytes+1)): "may have 128",
	} {
		response := f.get(t, "transfers?"+query, nil)
		assert.NotEqual(t, http.StatusOK, response.Code, query)
		assert.Contains(t, response.Body.String(), want, query)
	}
}
