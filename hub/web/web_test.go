package web

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

// fakePages has one image on each page, named like the page.
type fakePages struct{}

func (fakePages) Page(_ context.Context, _, page string) ([]v1alpha1.ReportedImage, bool, error) {
	return []v1alpha1.ReportedImage{{Namespace: "images", Name: page}}, true, nil
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

func getJSON(t *testing.T, api *API, method, target string, into any) int {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	handler := api.Handlers()[request.URL.Path]
	require.NotNil(t, handler, target)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	if into != nil {
		require.NoError(t, json.Unmarshal(recorder.Body.Bytes(), into), "%s", recorder.Body)
	}
	return recorder.Code
}

func TestImagesArePaged(t *testing.T) {
	var sources []string
	for after := ""; ; {
		var list ImageList
		require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/images?limit=2&after="+after, &list))
		assert.Equal(t, []inventory.UnknownMember{{Member: "dark", Reason: v1alpha1.ReasonNeverReported}}, list.UnknownMembers)
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

// Members that have not reported may have any image.
func TestUnknownImageListsUnknownMembers(t *testing.T) {
	var detail inventory.ImageDetail
	require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/images/detail?source=elsewhere", &detail))
	assert.Empty(t, detail.PerMember)
	assert.Equal(t, 1, detail.Unknown)
	require.Len(t, detail.UnknownMembers, 1)
}

func TestMemberImagesArePaged(t *testing.T) {
	var first, second MemberImages
	require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/members/images?member=a", &first))
	require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/members/images?member=a&page="+first.Next, &second))
	assert.Equal(t, []string{"page-0", "page-1"}, []string{first.Images[0].Name, second.Images[0].Name})
	assert.Empty(t, second.Next)
	var none MemberImages
	require.Equal(t, http.StatusOK, getJSON(t, newTestAPI(true), http.MethodGet, "/fleet/v1/members/images?member=dark", &none))
	assert.Empty(t, none.Images)
}

func TestRequestsAreValidated(t *testing.T) {
	for target, want := range map[string]int{
		"/fleet/v1/images?limit=0":                http.StatusBadRequest,
		"/fleet/v1/images?limit=1001":             http.StatusBadRequest,
		"/fleet/v1/images/detail":                 http.StatusBadRequest,
		"/fleet/v1/members/images":                http.StatusBadRequest,
		"/fleet/v1/members/images?member=nowhere": http.StatusNotFound,
	} {
		var answer map[string]string
		assert.Equal(t, want, getJSON(t, newTestAPI(true), http.MethodGet, target, &answer), target)
		assert.NotEmpty(t, answer["error"], target)
	}
	assert.Equal(t, http.StatusMethodNotAllowed, getJSON(t, newTestAPI(true), http.MethodPost, "/fleet/v1/images", nil))
	assert.Equal(t, http.StatusServiceUnavailable, getJSON(t, newTestAPI(false), http.MethodGet, "/fleet/v1/images", nil))
}
