package web

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
)

func TestMembersAreFound(t *testing.T) {
	f := newTestFleet(t, "a", "b")
	var list readapi.MemberList
	f.read(t, "members?state=unknown", &list)
	require.Len(t, list.Members, 1)
	assert.Equal(t, "dark", list.Members[0].Member)
	assert.Equal(t, 3, list.States.Total)
	list = readapi.MemberList{}
	f.read(t, "members?sort=queued&order=desc&selector=name!=a&offset=1&limit=1", &list)
	require.Len(t, list.Members, 1)
	assert.Equal(t, "dark", list.Members[0].Member)
	assert.Equal(t, 2, list.Total)
}

func TestMemberDetail(t *testing.T) {
	f := newTestFleet(t, "a")
	var d readapi.MemberDetail
	f.read(t, "members/detail?member=a", &d)
	assert.Equal(t, "a", d.Member.Member)
	assert.Equal(t, readapi.MemberReady, d.State)
	assert.Equal(t, 2, d.Images)
	assert.Equal(t, policy.SourceDefault, d.BudgetChain.PolicySource)
	assert.Equal(t, int64(20), *d.BudgetChain.FleetConcurrency)
	require.Len(t, d.Activity.Head, 1)
	assert.NotNil(t, d.Activity.Head[0].Expected)
	require.Len(t, d.Conditions, 1)
	d = readapi.MemberDetail{}
	f.read(t, "members/detail?member=dark", &d)
	assert.Equal(t, v1alpha1.ReasonNeverReported, d.Unknown)
	assert.Nil(t, d.Activity)
}

func TestRefusalsSayWhatIsWrong(t *testing.T) {
	f := newTestFleet(t, "a")
	for query, want := range map[string]string{
		"members?state=fine":          "must be one of unknown, Quarantined",
		"members?sort=age":            "must be one of name, state",
		"members?order=up":            "must be one of asc, desc",
		"members?selector=(":          "is no label selector",
		"members?offset=-1":           "must be a number from 0",
		"members?limit=1001":          "must be a number from 1 to 1000",
		"members?after=a&sort=state":  "page through others by offset",
		"members?after=a&offset=1":    "page through others by offset",
		"members/detail":              "member is required",
		"members/detail?member=other": "there is no MemberCluster other",
		"members?search=" + url.QueryEscape(strings.Repeat("x", maxSearchBytes+1)): "may have 128",
		"transfers?state=both":     "must be one of running, queued",
		"transfers?sort=name":      "must be one of expected, oldest, rate, cluster, image",
		"transfers?cluster=nobody": "there is no MemberCluster nobody",
		"transfers?limit=0":        "must be a number from 1 to 1000",
		"transfers?page=2":         "takes no parameter page",
		"transfers?search=" + url.QueryEscape(strings.Repeat("x", maxSearchBytes+1)): "may have 128",
	} {
		response := f.get(t, query, nil)
		assert.NotEqual(t, http.StatusOK, response.Code, query)
		assert.Contains(t, response.Body.String(), want, query)
	}
}
