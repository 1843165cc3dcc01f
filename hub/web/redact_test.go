package web

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

type fixedPages []v1alpha1.ReportedImage

func (p fixedPages) Page(context.Context, string, string) ([]v1alpha1.ReportedImage, bool, error) {
	return p, true, nil
}

// An agent of an earlier version reports whole URLs.
func TestReadAPIRedactsSignedURLs(t *testing.T) {
	const source = "http https://h/p?sig=" + apitest.Secret
	images := []v1alpha1.ReportedImage{
		{Namespace: "images", Name: "a", UID: "uid", Source: source, Message: `Get "https://h/p?sig=` + apitest.Secret + `": EOF`},
		{Namespace: "images", Name: "b", UID: "uid-b", Source: "http https://h/p?sig=another"},
	}
	api := newTestAPI(true)
	api.Pages = fixedPages(images)
	api.Index.SetPage("a", "page", 2, images)
	for _, target := range []string{
		"/fleet/v1/images", "/fleet/v1/members/images?member=a", "/fleet/v1/images/detail?source=" + url.QueryEscape(source),
	} {
		recorder := httptest.NewRecorder()
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
		api.Handlers()[request.URL.Path].ServeHTTP(recorder, request)
		require.Equal(t, http.StatusOK, recorder.Code)
		assert.Contains(t, recorder.Body.String(), "https://h/p?…", target)
		assert.NotContains(t, recorder.Body.String(), apitest.Secret, target)
	}
	assert.Contains(t, images[0].Source, apitest.Secret, "what is stored stays")
	var list readapi.ImageList
	require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/images", &list))
	assert.Len(t, list.Images, 2, "two sources that differ in their query only stay two")
}
