package web

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// fakePages has one image on each page, named like the page, and one that has been pruned.
type fakePages struct{}

func (fakePages) Page(_ context.Context, _, page string) ([]v1alpha1.ReportedImage, bool, error) {
	return []v1alpha1.ReportedImage{{Namespace: "images", Name: "pruned", Prune: &v1alpha1.ReportedPrune{ImageUID: "u"}}, {Namespace: "images", Name: page}}, true, nil
}

func newTestAPI(filled bool) *API {
	index := inventory.NewIndex()
	index.AddMember("dark")
	index.SetRoot("a", &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page", Sequence: 1}}})
	var images []v1alpha1.ReportedImage
	for n := range 5 {
		images = append(images, v1alpha1.ReportedImage{Namespace: "images", Name: strconv.Itoa(n), UID: "uid", Source: "s" + strconv.Itoa(n), Phase: v1alpha1.PhaseSucceeded})
	}
	index.SetPage("a", "page", 1, images)
	return &API{
		Index: index, Pages: fakePages{}, ReportsLoaded: func() bool { return filled },
		PageNames: func(member string) []string {
			if member == "a" {
				return []string{"page-0", "page-1"}
			}
			return nil
		},
	}
}

func getJSON(t testing.TB, api *API, method, target string, into any) int {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	mux := http.NewServeMux()
	for path, handler := range api.Handlers() {
		mux.Handle(path, handler)
	}
	recorder := httptest.NewRecorder()
	mux.ServeHTTP(recorder, request)
	if into != nil {
		require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), into), "%s", recorder.Body)
	}
	return recorder.Code
}

func TestImagesArePaged(t *testing.T) {
	var sources []string
	for after := ""; ; {
		var list readapi.ImageList
		require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/images?limit=2&after="+after, &list))
		assert.Equal(t, []readapi.UnknownMember{{Member: "dark", Reason: v1alpha1.ReasonNeverReported}}, list.UnknownMembers)
		for _, image := range list.Images {
			sources = append(sources, image.Source)
			assert.Equal(t, 1, image.Unknown)
		}
		if after = list.Next; after == "" {
			break
		}
	}
	assert.Equal(t, []string{"s0", "s1", "s2", "s3", "s4"}, sources)
}

// A source that no member reports is no image that is nowhere: it may be mistyped, and members
// that have not reported may have it.
func TestUnknownSourceIsNotFound(t *testing.T) {
	for _, source := range []string{"elsewhere", "http https://elsewhere/p", "https://elsewhere/p", "s"} {
		var answer map[string]string
		require.Equal(t, http.StatusNotFound, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/images/detail?source="+url.QueryEscape(source), &answer), source)
		assert.Contains(t, answer["error"], "1 of them are unknown, and may have it")
		assert.Contains(t, answer["error"], "or its URL", "the form that is expected")
	}
}

func TestImageIsFoundByItsURL(t *testing.T) {
	const checksum = " sha256:aaaa"
	api := newTestAPI(true)
	images := []v1alpha1.ReportedImage{}
	for i, source := range []string{
		"http https://h/plain.qcow2", "http https://h/sum.qcow2" + checksum, "http https://h/twice" + checksum, "registry https://h/twice",
		"http https://h/signed?sig=one" + checksum, "http https://h/signed?sig=two", "registry docker://h/image:v1",
	} {
		images = append(images, v1alpha1.ReportedImage{Namespace: "images", Name: strconv.Itoa(i), UID: "uid", Source: source})
	}
	api.Index.SetPage("a", "page", 2, images)
	for target, want := range map[string]string{
		"https://h/plain.qcow2": "http https://h/plain.qcow2", "https://h/sum.qcow2": "http https://h/sum.qcow2" + checksum,
		"docker://h/image:v1": "registry docker://h/image:v1", "https://h/signed?sig=two": v1alpha1.RedactSource("http https://h/signed?sig=two"),
		"https://h/signed?sig=one": v1alpha1.RedactSource("http https://h/signed?sig=one" + checksum),
	} {
		var detail readapi.ImageDetail
		require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/images/detail?source="+url.QueryEscape(target), &detail), target)
		assert.Equal(t, want, detail.Source)
		assert.Len(t, detail.PerMember, 1)
	}
	for target, want := range map[string]int{
		"https://h/twice": http.StatusBadRequest, "https://h/signed?…": http.StatusBadRequest,
		"https://h/signed?sig=three": http.StatusNotFound, "https://h/signed": http.StatusNotFound, "https://h/plain": http.StatusNotFound, "plain.qcow2": http.StatusNotFound,
	} {
		var answer map[string]string
		require.Equal(t, want, getJSON(t, api, http.MethodGet, "/fleet/v1/images/detail?source="+url.QueryEscape(target), &answer), target)
		assert.NotContains(t, answer["error"], "sig=")
	}
}

func TestMemberImagesArePaged(t *testing.T) {
	var first, second readapi.MemberImages
	require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/members/images?member=a", &first))
	require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/members/images?member=a&page="+first.Next, &second))
	assert.Equal(t, []string{"page-0", "page-1"}, []string{first.Images[0].Name, second.Images[0].Name})
	assert.Empty(t, second.Next)
	var none readapi.MemberImages
	require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/members/images?member=dark", &none))
	assert.Empty(t, none.Images)
	assert.Equal(t, v1alpha1.ReasonNeverReported, none.Unknown, "unknown is never zero")
	assert.Empty(t, first.Unknown)
}

func TestRequestsAreValidated(t *testing.T) {
	for target, want := range map[string]int{
		"/fleet/v1/images?limit=0":                http.StatusBadRequest,
		"/fleet/v1/images?limit=1001":             http.StatusBadRequest,
		"/fleet/v1/images/detail":                 http.StatusBadRequest,
		"/fleet/v1/members/images":                http.StatusBadRequest,
		"/fleet/v1/members/images?member=nowhere": http.StatusNotFound,

		"/fleet/v1/members/images?member=a&page=%2F": http.StatusBadRequest,
		"/fleet/v1/members/images?name=a":            http.StatusBadRequest,
		"/fleet/v1/members/images?member=a&member=b": http.StatusBadRequest,
		"/fleet/v1/members?member=a":                 http.StatusBadRequest,
		"/fleet/v1/members?limit=x":                  http.StatusBadRequest,
		"/fleet/v1/images?source=s1":                 http.StatusBadRequest,
		"/fleet/v1/images/detail?source=%zz":         http.StatusBadRequest,
		"/fleet/v1/images/detail?url=https://h/p":    http.StatusBadRequest,
		"/fleet/v1/rollouts?name=ubuntu":             http.StatusBadRequest,
		"/fleet/v1/rollouts/clusters":                http.StatusBadRequest,
		"/fleet/v1/rollouts/clusters?name=nowhere":   http.StatusNotFound,
		"/fleet/v1/prunereports?report=spring":       http.StatusBadRequest,
		"/fleet/v1/prunereports/rows":                http.StatusBadRequest,
		"/fleet/v1/prunereports/rows?report=nowhere": http.StatusNotFound,
		"/fleet/v1/imageprunes/targets":              http.StatusBadRequest,
		"/fleet/v1/imageprunes/targets?prune=nobody": http.StatusNotFound,
		"/fleet/v1/versions":                         http.StatusNotFound,
		"/fleet/v1/members/oslo":                     http.StatusNotFound,
	} {
		var answer map[string]string
		api, _ := newPruneAPI(t)
		api.RolloutView = func(string) (rollout.View, bool) { return rollout.View{}, false }
		api.PruneTargets = func(context.Context, string) ([]readapi.PruneTarget, bool, error) { return nil, false, nil }
		assert.Equal(t, want, getJSON(t, api, http.MethodGet, target, &answer), target)
		assert.NotEmpty(t, answer["error"], target)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, getJSON(t, newTestAPI(true), http.MethodPost, "/fleet/v1/images", nil))
	assert.Equal(t, http.StatusServiceUnavailable, getJSON(t, newTestAPI(false), http.MethodGet, "/fleet/v1/images", nil))
}

// Every endpoint that takes a key names what it takes, and refuses what it does not know.
func TestEndpointsNameTheirParameters(t *testing.T) {
	for path, e := range newTestAPI(true).endpoints() {
		require.NotNil(t, e.parameters, path)
		var answer map[string]string
		require.Equal(t, http.StatusBadRequest, getJSON(t, newTestAPI(true), http.MethodGet, path+"?nonsense=1", &answer), path)
		for _, parameter := range e.parameters {
			assert.Contains(t, answer["error"], parameter, path)
		}
	}
}
