package web

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// groupedPages has an image in two clusters, one image that people made, and one of unknown age.
func groupedPages() [][]v1alpha1.ReportedCluster {
	candidate := func(name string, origin v1alpha1.ImageOrigin, days int, bytes int64) v1alpha1.PruneCandidate {
		c := v1alpha1.PruneCandidate{Namespace: "images", Name: name, Origin: origin, Bytes: bytes}
		if days > 0 {
			since := metav1.NewTime(time.Now().Add(-time.Duration(days) * 24 * time.Hour))
			c.UnreferencedSince = &since
		}
		return c
	}
	return [][]v1alpha1.ReportedCluster{
		{{Cluster: "bergen", Candidates: []v1alpha1.PruneCandidate{candidate("ubuntu", v1alpha1.OriginPlan, 90, 10), candidate("scratch", "", 40, 100)}}},
		{{Cluster: "lund", Unknown: v1alpha1.ReasonOffline}, {Cluster: "oslo", Candidates: []v1alpha1.PruneCandidate{
			candidate("ubuntu", v1alpha1.OriginPlan, 3, 10), candidate("centos", v1alpha1.OriginPlan, 0, 7), candidate("rhel", v1alpha1.OriginPlan, 90, 5),
		}}},
	}
}

func TestPruneGroups(t *testing.T) {
	for query, want := range map[string]struct {
		groups                      string
		images, clusters            int
		leftOut, omitted, tooRecent int64
		warnings                    []string
	}{
		"":                                 {"images/ubuntu images/centos images/rhel", 4, 2, 100, 0, 0, nil},
		"includeOthers=true":               {"images/scratch images/ubuntu images/centos images/rhel", 5, 2, 0, 0, 0, nil},
		"by=cluster":                       {"oslo bergen", 4, 2, 100, 0, 0, nil},
		"limit=1":                          {"images/ubuntu", 4, 2, 100, 12, 0, nil},
		"unreferencedFor=720h":             {"images/rhel", 4, 2, 100, 0, 27, nil},
		"clusters=bergen":                  {"images/ubuntu", 1, 1, 100, 0, 0, nil},
		"clusters=bergen,lund":             {"images/ubuntu", 1, 1, 100, 0, 0, []string{"lund did not answer the report: Offline"}},
		"images=images/rhel,images/absent": {"images/rhel", 1, 1, 0, 0, 0, []string{"no candidate is named images/absent"}},
		"images=images/s*&includeOthers=1": {"images/scratch", 1, 1, 0, 0, 0, nil},
		"images=images/scratch":            {"", 0, 0, 100, 0, 0, []string{}},
		"by=age&clusters=bergen":           {"90d to 365d", 1, 1, 100, 0, 0, nil},
	} {
		t.Run(query, func(t *testing.T) {
			api, _ := newPruneAPI(t, newStoredReport("spring", groupedPages())...)
			var got readapi.PruneGroups
			require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports/groups?report=spring&"+query, &got))
			var names []string
			for _, g := range got.Groups {
				names = append(names, g.Name)
			}
			assert.Equal(t, want.groups, strings.Join(names, " "))
			assert.Equal(t, []int{want.images, want.clusters}, []int{got.Total.Images, got.Total.Clusters})
			assert.Equal(t, []int64{want.leftOut, want.omitted, want.tooRecent}, []int64{got.LeftOut.Bytes, got.Omitted.Bytes, got.TooRecent.Bytes})
			if want.warnings != nil {
				assert.ElementsMatch(t, want.warnings, got.Warnings)
			}
		})
	}
}

func TestPruneGroupsRefuse(t *testing.T) {
	report := newStoredReport("spring", groupedPages())
	for query, want := range map[string]string{
		"report=spring&by=size":     "by=size: must be one of",
		"report=spring&images=a":    "must be namespace/name",
		"report=spring&images=a/[":  "must be namespace/name",
		"report=spring&images=a/b,": "images has an empty name",
		"report=spring&clusters=" + strings.Repeat("a,", maxSelected) + "a": "takes at most 1000",
		"report=spring&includeOthers=some":                                  "must be true or false",
		"report=spring&unreferencedFor=7d":                                  "must be a duration",
		"report=spring&unreferencedFor=-1h":                                 "must be a duration",
		"report=autumn":                                                     "autumn",
		"":                                                                  "report is required",
	} {
		api, _ := newPruneAPI(t, report...)
		var got readapi.ErrorAnswer
		require.NotEqual(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports/groups?"+query, &got), query)
		assert.Contains(t, got.Error, want, query)
	}
}

// What differs from the digest that a person would approve is not summed up.
func TestPruneGroupsOfAChangedReport(t *testing.T) {
	api, l := newPruneAPI(t, newStoredReport("spring", groupedPages())...)
	l.during = func(n int64, page *v1alpha1.PruneReportPage) error {
		if n == 2 {
			page.Clusters[1].Candidates[0].Bytes++
		}
		return nil
	}
	var got readapi.ErrorAnswer
	require.Equal(t, http.StatusGone, getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports/groups?report=spring", &got))
	assert.Contains(t, got.Error, "do not match digest")
}

// Who has a whole report read again and again holds up who asks for the same alone.
func TestPruneGroupsAreReadOneAtATime(t *testing.T) {
	api, l := newPruneAPI(t, newStoredReport("spring", groupedPages())...)
	l.during = func(n int64, _ *v1alpha1.PruneReportPage) error {
		if n > 1 {
			return nil
		}
		assert.Empty(t, api.rendered.reading, "others can be answered")
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 { // they wait until the client is gone
			recorder := httptest.NewRecorder()
			api.handle(api.endpoints()[pruneGroupsPath]).ServeHTTP(recorder, httptest.NewRequestWithContext(gone, http.MethodGet, pruneGroupsPath+"?report=spring", nil))
			assert.NotEqual(t, http.StatusOK, recorder.Code)
		}
		assert.Equal(t, int64(1), l.asked.Load(), "none of them has read a page")
		assert.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports/rows?report=spring", nil))
		return nil
	}
	require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, pruneGroupsPath+"?report=spring", nil))
	require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, pruneGroupsPath+"?report=spring", nil), "the next one gets its turn")
}

func TestPrunesAreListed(t *testing.T) {
	prune := func(name, report string, day int) client.Object {
		p := &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(moonLanding.AddDate(2, 0, day))}}
		p.Spec = v1alpha1.ImagePruneSpec{ReportRef: v1alpha1.PruneReportRef{Name: report, Digest: "d"}, ApprovedBy: "anna", Images: make([]string, maxNamed+1)}
		p.Status.Phase = v1alpha1.ImagePruneRunning
		return p
	}
	objects := []client.Object{prune("b", "spring", 3), prune("a", "spring", 1), prune("c", "autumn", 2)}
	objects[0].(*v1alpha1.ImagePrune).Status.Phase, objects[2].(*v1alpha1.ImagePrune).Status.Phase = v1alpha1.ImagePruneUndone, ""
	for query, want := range map[string]string{
		"": "a b c", "sort=newest": "b c a", "report=spring": "a b", "name=c": "c", "report=none": "",
		"active=true": "a c", "active=false": "b", "active=true&sort=newest": "c a", "active=true&report=spring": "a", "active=false&report=autumn": "",
	} {
		for limit := 1; limit <= 3; limit++ {
			api, _ := newPruneAPI(t, objects...)
			var names []string
			for after := ""; ; {
				var list readapi.PruneProgressList
				values := url.Values{"after": {after}, "limit": {string(rune('0' + limit))}}
				require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/imageprunes?"+query+"&"+values.Encode(), &list), query)
				for _, p := range list.Prunes {
					names = append(names, p.Name)
					assert.Len(t, p.Images, maxNamed)
					assert.Equal(t, maxNamed+1, p.ImagesTotal)
					assert.Equal(t, int64(24*3600), p.UndoWindowSeconds)
				}
				if after = list.Next; after == "" {
					break
				}
			}
			assert.Equal(t, want, strings.Join(names, " "), query)
		}
	}
	api, _ := newPruneAPI(t, objects...)
	var got readapi.ErrorAnswer
	assert.Equal(t, http.StatusNotFound, getJSON(t, api, http.MethodGet, "/fleet/v1/imageprunes?name=x", &got))
	assert.Equal(t, http.StatusBadRequest, getJSON(t, api, http.MethodGet, "/fleet/v1/imageprunes?sort=x", &got))
	assert.Equal(t, http.StatusBadRequest, getJSON(t, api, http.MethodGet, "/fleet/v1/imageprunes?active=yes", &got))
}

func TestPruneReportsNewestFirst(t *testing.T) {
	report := func(name string, day int) client.Object {
		return &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(moonLanding.AddDate(2, 0, day))}}
	}
	api, _ := newPruneAPI(t, report("a", 1), report("b", 9), report("c", 5))
	for query, want := range map[string]string{"sort=newest": "b c a", "sort=name": "a b c", "name=b": "b"} {
		var list readapi.PruneReportList
		require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports?"+query, &list))
		var names []string
		for _, r := range list.Reports {
			names = append(names, r.Name)
		}
		assert.Equal(t, want, strings.Join(names, " "))
	}
}

// One that is grouped for a client that left holds up the others.
func TestPruneGroupsEndWithTheirRequest(t *testing.T) {
	api, _ := newPruneAPI(t, newStoredReport("spring", groupedPages())...)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := api.groupPruneRows(httptest.NewRequestWithContext(ctx, http.MethodGet, "/fleet/v1/prunereports/groups?report=spring", nil))
	require.ErrorIs(t, err, context.Canceled)
}
