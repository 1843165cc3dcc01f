package web

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

var moonLanding = metav1.NewTime(time.Date(1969, 7, 20, 20, 17, 40, 0, time.UTC))

// newReportedPages has four clusters, one of them on two pages.
func newReportedPages() [][]v1alpha1.ReportedCluster {
	candidate := func(name string, bytes int64) v1alpha1.PruneCandidate {
		return v1alpha1.PruneCandidate{Namespace: "images", Name: name, UID: "uid", Revision: "r1", Phase: v1alpha1.PhaseSucceeded, Origin: v1alpha1.OriginPlan, Bytes: bytes}
	}
	spelled := candidate("debian", 7)
	spelled.UnreferencedSince, spelled.DeclaredBy = &moonLanding, "debian-lts"
	return [][]v1alpha1.ReportedCluster{
		{
			{Cluster: "aarhus", Unknown: v1alpha1.ReasonOffline, Message: "its agent does not report"},
			{Cluster: "bergen", ClusterUID: "b", ObservedAt: &moonLanding, Candidates: []v1alpha1.PruneCandidate{spelled}, Orphans: []v1alpha1.OrphanedObject{
				{Kind: "DataVolume", Namespace: "images", Name: "dv", Image: "debian", ImageUID: "gone"},
			}, OmittedOrphans: 3, OmittedOrphanBytes: 12},
		},
		{
			{Cluster: "bergen", ClusterUID: "b", ObservedAt: &moonLanding, Kept: []v1alpha1.KeptImages{
				{Reason: v1alpha1.KeptReferenced, Detail: "2 VirtualMachines", Bytes: 9, Images: []string{"images/ubuntu-1", "images/ubuntu-2"}},
			}},
			{Cluster: "lund", ClusterUID: "l"},
			{Cluster: "oslo", ClusterUID: "o", Candidates: []v1alpha1.PruneCandidate{candidate("ubuntu", 1<<40)}},
		},
	}
}

// newStoredReport returns a PruneReport and its pages.
func newStoredReport(name string, pages [][]v1alpha1.ReportedCluster) []client.Object {
	report := &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "report-uid"},
		Status: v1alpha1.PruneReportStatus{
			Phase: v1alpha1.PruneReportComplete, Reason: v1alpha1.ReasonReported, Pages: int32(len(pages)), Digest: prune.Digest("report-uid", pages),
			Candidates: v1alpha1.PruneTotal{Count: 2, Bytes: 7 + 1<<40}, Clusters: v1alpha1.AnswerCounts{Total: 4, Answered: 3, Unknown: 1},
		},
	}
	objects := []client.Object{report}
	for n, clusters := range pages {
		objects = append(objects, &v1alpha1.PruneReportPage{ObjectMeta: metav1.ObjectMeta{Name: prune.PageName(name, report.Status.Digest, n)}, Clusters: clusters})
	}
	return objects
}

// liveReader counts the reads of pages.
type liveReader struct {
	client.WithWatch
	asked atomic.Int64
	// during changes the page of the nth read.
	during func(n int64, page *v1alpha1.PruneReportPage) error
}

func newPruneAPI(t *testing.T, objects ...client.Object) (*API, *liveReader) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	api, l := newTestAPI(true), &liveReader{}
	l.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
			page, ok := into.(*v1alpha1.PruneReportPage)
			if err := c.Get(ctx, key, into, options...); err != nil || !ok {
				return err
			}
			if n := l.asked.Add(1); l.during != nil {
				return l.during(n, page)
			}
			return nil
		},
	}).Build()
	api.Members, api.Live = l, l
	return api, l
}

func formatRows(rows []readapi.PruneRow) (all []string) {
	for _, r := range rows {
		all = append(all, strings.TrimRight(fmt.Sprintf("%s %s %s/%s %s", r.Cluster, r.Verdict, r.Namespace, r.Name, r.Reason), " "))
	}
	return all
}

var allRows = []string{
	"aarhus unknown / Offline", "bergen candidate images/debian", "bergen orphan images/dv", "bergen orphan / Omitted",
	"bergen kept images/ubuntu-1 Referenced", "bergen kept images/ubuntu-2 Referenced", "oslo candidate images/ubuntu",
}

func TestPruneReportsArePaged(t *testing.T) {
	schedule := &v1alpha1.PruneReport{
		ObjectMeta: metav1.ObjectMeta{Name: "a-schedule"}, Spec: v1alpha1.PruneReportSpec{Schedule: "0 6 * * 1"},
		Status: v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportScheduled, LastReport: "weekly", NextScheduleTime: &moonLanding},
	}
	objects := append(newStoredReport("weekly", newReportedPages()), schedule, &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
	api, l := newPruneAPI(t, objects...)
	var all []readapi.PruneReport
	for after := ""; ; {
		var list readapi.PruneReportList
		require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports?limit=2&after="+after, &list))
		all = append(all, list.Reports...)
		if after = list.Next; after == "" {
			break
		}
	}
	require.Len(t, all, 3)
	assert.Equal(t, "a-schedule", all[0].Name)
	assert.Equal(t, "weekly", all[0].LastReport)
	assert.Equal(t, readapi.PruneReport{Name: "new"}, all[1])
	assert.Equal(t, readapi.PruneReport{
		Name: "weekly", Phase: v1alpha1.PruneReportComplete, Reason: v1alpha1.ReasonReported, Digest: prune.Digest("report-uid", newReportedPages()),
		Candidates: v1alpha1.PruneTotal{Count: 2, Bytes: 7 + 1<<40}, Clusters: v1alpha1.AnswerCounts{Total: 4, Answered: 3, Unknown: 1},
	}, all[2])
	assert.Zero(t, l.asked.Load(), "no page is read")
}

func TestReportRowsArePaged(t *testing.T) {
	for limit := 1; limit <= 8; limit++ {
		api, l := newPruneAPI(t, newStoredReport("weekly", newReportedPages())...)
		var all []readapi.PruneRow
		for after := ""; ; {
			var list readapi.PruneRows
			require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, fmt.Sprintf("/fleet/v1/prunereports/rows?report=weekly&limit=%d&after=%s", limit, after), &list))
			assert.Equal(t, prune.Digest("report-uid", newReportedPages()), list.Digest)
			assert.LessOrEqual(t, len(list.Rows), limit)
			all = append(all, list.Rows...)
			if after = list.Next; after == "" {
				break
			}
		}
		assert.Equal(t, allRows, formatRows(all), "%d at a time", limit)
		assert.Equal(t, readapi.PruneRow{
			Cluster: "bergen", ClusterUID: "b", Verdict: readapi.VerdictCandidate, Kind: "VMDiskImage", Namespace: "images", Name: "debian", UID: "uid", Revision: "r1",
			Phase: v1alpha1.PhaseSucceeded, Origin: v1alpha1.OriginPlan, DeclaredBy: "debian-lts", Bytes: ptr.To[int64](7), UnreferencedSince: all[1].UnreferencedSince, ObservedAt: all[1].ObservedAt,
		}, all[1])
		assert.True(t, moonLanding.Equal(all[1].UnreferencedSince))
		assert.Nil(t, all[4].Bytes, "bytes of single kept images are unknown")
		assert.Equal(t, "3 more are not listed", all[3].Detail)
		assert.LessOrEqual(t, l.asked.Load(), int64(2+len(all)+2), "the whole report is read only once")
	}
}

func TestReportRowsAreFiltered(t *testing.T) {
	for query, want := range map[string][]string{
		"":                                {"aarhus", "bergen", "bergen", "bergen", "bergen", "bergen", "oslo"},
		"&cluster=oslo":                   {"oslo"},
		"&cluster=lund":                   {},
		"&verdict=unknown":                {"aarhus"},
		"&verdict=candidate":              {"bergen", "oslo"},
		"&verdict=kept":                   {"bergen", "bergen"},
		"&verdict=orphan":                 {"bergen", "bergen"},
		"&verdict=kept&cluster=oslo":      {},
		"&verdict=candidate&cluster=oslo": {"oslo"},
	} {
		api, _ := newPruneAPI(t, newStoredReport("weekly", newReportedPages())...)
		var list readapi.PruneRows
		require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports/rows?report=weekly"+query, &list), query)
		clusters := []string{}
		for _, r := range list.Rows {
			clusters = append(clusters, r.Cluster)
		}
		assert.Equal(t, want, clusters, query)
		assert.Empty(t, list.Next, query)

		lines := parseCSV(t, api, query)
		require.Len(t, lines, len(want)+1, query)
		for i, cluster := range want {
			assert.Equal(t, cluster, lines[i+1][0], query)
		}
	}
	api, _ := newPruneAPI(t, newStoredReport("weekly", newReportedPages())...)
	var list readapi.PruneRows
	getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports/rows?report=weekly&verdict=candidate&limit=1", &list)
	require.NotEmpty(t, list.Next)
	getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports/rows?report=weekly&verdict=candidate&limit=1&after="+list.Next, &list)
	assert.Equal(t, []string{"oslo candidate images/ubuntu"}, formatRows(list.Rows))
}

func getRaw(t *testing.T, api *API, method, target string) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	recorder := httptest.NewRecorder()
	api.Handlers()[request.URL.Path].ServeHTTP(recorder, request)
	return recorder
}

func parseCSV(t *testing.T, api *API, query string) [][]string {
	t.Helper()
	answer := getRaw(t, api, http.MethodGet, "/fleet/v1/prunereports/rows?report=weekly&format=csv"+query)
	require.Equal(t, http.StatusOK, answer.Code, "%s", answer.Body)
	lines, err := csv.NewReader(answer.Body).ReadAll()
	require.NoError(t, err)
	return lines
}

func TestReportRowsAsCSV(t *testing.T) {
	api, _ := newPruneAPI(t, newStoredReport("weekly", newReportedPages())...)
	answer := getRaw(t, api, http.MethodGet, "/fleet/v1/prunereports/rows?report=weekly&format=csv")
	assert.Equal(t, "text/csv; charset=utf-8", answer.Header().Get("Content-Type"))
	assert.Equal(t, `attachment; filename="weekly-`+prune.Digest("report-uid", newReportedPages())+`.csv"`, answer.Header().Get("Content-Disposition"))
	assert.Equal(t, strings.Join([]string{
		"cluster,clusterUID,verdict,reason,detail,kind,namespace,name,uid,revision,phase,origin,declaredBy,image,imageUID,bytes,unreferencedSince,observedAt",
		"aarhus,,unknown,Offline,its agent does not report,,,,,,,,,,,,,",
		"bergen,b,candidate,,,VMDiskImage,images,debian,uid,r1,Succeeded,Plan,debian-lts,,,7,1969-07-20T20:17:40Z,1969-07-20T20:17:40Z",
		"bergen,b,orphan,,,DataVolume,images,dv,,,,,,debian,gone,0,,1969-07-20T20:17:40Z",
		"bergen,b,orphan,Omitted,3 more are not listed,,,,,,,,,,,12,,1969-07-20T20:17:40Z",
		"bergen,b,kept,Referenced,2 VirtualMachines,VMDiskImage,images,ubuntu-1,,,,,,,,,,1969-07-20T20:17:40Z",
		"bergen,b,kept,Referenced,2 VirtualMachines,VMDiskImage,images,ubuntu-2,,,,,,,,,,1969-07-20T20:17:40Z",
		"oslo,o,candidate,,,VMDiskImage,images,ubuntu,uid,r1,Succeeded,Plan,,,,1099511627776,,",
		"",
	}, "\n"), answer.Body.String())

	head := getRaw(t, api, http.MethodHead, "/fleet/v1/prunereports/rows?report=weekly&format=csv")
	assert.Equal(t, http.StatusOK, head.Code)
	assert.Empty(t, head.Body)
}

// Users of a member choose image names.
func TestCSVCellsAreNoFormulas(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "ubuntu": "ubuntu", "1-2": "1-2", "a=b": "a=b", "'quoted": "'quoted",
		"=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)", "\t=1": "'\t=1", "\r=1": "'\r=1", "\n=1": "'\n=1", "＝1": "'＝1",
		"=HYPERLINK(\"https://example.com\")": "'=HYPERLINK(\"https://example.com\")",
	} {
		assert.Equal(t, want, escapeCell(text))
	}
	pages := [][]v1alpha1.ReportedCluster{{{
		Cluster: "=a", ClusterUID: "=b", Candidates: []v1alpha1.PruneCandidate{{Namespace: "=c", Name: "=d", UID: "=e", Revision: "=f", Phase: "=g", Origin: "=h", DeclaredBy: "=i"}},
		Kept: []v1alpha1.KeptImages{{Reason: "=j", Detail: "=k", Images: []string{"=l/=m"}}}, Orphans: []v1alpha1.OrphanedObject{{Kind: "=n", Namespace: "=o", Name: "=p", Image: "=q", ImageUID: "=r"}},
	}, {Cluster: "=s", Unknown: "=t", Message: "=u\n=v,\"=w"}}}
	api, _ := newPruneAPI(t, newStoredReport("weekly", pages)...)
	seen := 0
	for _, line := range parseCSV(t, api, "") {
		for _, text := range line {
			assert.False(t, strings.HasPrefix(text, "="), "%q", text)
			if strings.HasPrefix(text, "'=") {
				seen++
			}
		}
	}
	assert.Equal(t, 9+6+7+3, seen)
}

func TestIncompleteReportsHaveNoRows(t *testing.T) {
	of := func(name string, spec v1alpha1.PruneReportSpec, status v1alpha1.PruneReportStatus) client.Object {
		return &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec, Status: status}
	}
	weekly := v1alpha1.PruneReportSpec{Schedule: "0 6 * * 1"}
	objects := append(newStoredReport("weekly", newReportedPages()),
		of("new", v1alpha1.PruneReportSpec{}, v1alpha1.PruneReportStatus{}),
		of("collecting", v1alpha1.PruneReportSpec{}, v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportCollecting, Clusters: v1alpha1.AnswerCounts{Total: 4, Answered: 1}}),
		of("failed", v1alpha1.PruneReportSpec{}, v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportFailed, Message: "it is too large"}),
		of("schedule", weekly, v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportScheduled, LastReport: "schedule-29"}),
		of("first", weekly, v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportScheduled}),
	)
	api, _ := newPruneAPI(t, objects...)
	digest := prune.Digest("report-uid", newReportedPages())
	for query, want := range map[string]struct {
		code int
		says string
	}{
		"":                                        {http.StatusBadRequest, "report is required"},
		"?report=nothing":                         {http.StatusNotFound, "there is no PruneReport nothing"},
		"?report=new":                             {http.StatusConflict, "0 of 0 clusters have answered"},
		"?report=collecting":                      {http.StatusConflict, "1 of 4 clusters have answered. Try again, or wait: kubectl wait prunereport/collecting --for=condition=Ready"},
		"?report=failed":                          {http.StatusConflict, "it is too large"},
		"?report=schedule":                        {http.StatusConflict, "its last report is schedule-29"},
		"?report=first":                           {http.StatusConflict, "a schedule without a report yet"},
		"?report=weekly&verdict=gone":             {http.StatusBadRequest, "must be one of candidate, kept, orphan, unknown"},
		"?report=weekly&cluster=nowhere":          {http.StatusNotFound, "PruneReport weekly does not cover a cluster nowhere"},
		"?report=weekly&cluster=bergen-2":         {http.StatusNotFound, "PruneReport weekly does not cover a cluster bergen-2"},
		"?report=weekly&cluster=a&format=csv":     {http.StatusNotFound, "PruneReport weekly does not cover a cluster a"},
		"?report=weekly&format=xml":               {http.StatusBadRequest, "must be json or csv"},
		"?report=weekly&format=csv&limit=5":       {http.StatusBadRequest, "format=csv returns all rows"},
		"?report=weekly&format=csv&after=a":       {http.StatusBadRequest, "format=csv returns all rows"},
		"?report=weekly&limit=0":                  {http.StatusBadRequest, "must be a number from 1 to 1000"},
		"?report=weekly&after=bergen":             {http.StatusBadRequest, "must be the next of the former response"},
		"?report=weekly&after=" + digest + "-a-1": {http.StatusBadRequest, "must be the next of the former response"},
		"?report=weekly&after=another-0-1":        {http.StatusConflict, "the report has changed since"},
	} {
		var answer map[string]string
		assert.Equal(t, want.code, getJSON(t, api, http.MethodGet, "/fleet/v1/prunereports/rows"+query, &answer), query)
		assert.Contains(t, answer["error"], want.says, query)
	}
}

// A report that changed after its review is never returned.
func TestChangedReportsAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, l *liveReader, page *v1alpha1.PruneReportPage)
		says   string
	}{
		"a page is missing": {func(t *testing.T, l *liveReader, page *v1alpha1.PruneReportPage) {
			require.NoError(t, l.Delete(t.Context(), page))
		}, "is missing. Create another PruneReport"},
		"a page was changed": {func(t *testing.T, l *liveReader, page *v1alpha1.PruneReportPage) {
			page.Clusters[0].Kept = nil
			require.NoError(t, l.Update(t.Context(), page))
		}, "its pages do not match digest"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, format := range []string{"json", "csv"} {
				for _, before := range []bool{false, true} {
					api, l := newPruneAPI(t, newStoredReport("weekly", newReportedPages())...)
					target := "/fleet/v1/prunereports/rows?report=weekly&format=" + format
					if before {
						require.Equal(t, http.StatusOK, getRaw(t, api, http.MethodGet, target).Code)
					}
					page := &v1alpha1.PruneReportPage{}
					require.NoError(t, l.Get(t.Context(), client.ObjectKey{Name: prune.PageName("weekly", prune.Digest("report-uid", newReportedPages()), 1)}, page))
					test.change(t, l, page)
					for range 2 {
						var answer map[string]string
						assert.Equal(t, http.StatusGone, getJSON(t, api, http.MethodGet, target, &answer), "%s, read before: %t", format, before)
						assert.Contains(t, answer["error"], test.says)
					}
				}
			}
		})
	}
}

// An aborted download must not look complete.
func TestBrokenDownloadIsAborted(t *testing.T) {
	const sent = int64(4) // verification reads each page once, sending again: this is the second page
	for name, during := range map[string]func(n int64, page *v1alpha1.PruneReportPage) error{
		"a page is deleted during the download": func(n int64, page *v1alpha1.PruneReportPage) error {
			if n == sent {
				return apierrors.NewNotFound(schema.GroupResource{Resource: "prunereportpages"}, page.Name)
			}
			return nil
		},
		"a page changes while it is sent": func(n int64, page *v1alpha1.PruneReportPage) error {
			if n == sent {
				page.Clusters[0].Kept = nil
			}
			return nil
		},
		"the API server fails during the download": func(n int64, _ *v1alpha1.PruneReportPage) error {
			if n == sent {
				return errors.New("gone")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, l := newPruneAPI(t, newStoredReport("weekly", newReportedPages())...)
			l.during = during
			server := httptest.NewServer(api.Handlers()["/fleet/v1/prunereports/rows"])
			defer server.Close()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/fleet/v1/prunereports/rows?report=weekly&format=csv", nil)
			require.NoError(t, err)
			answer, err := server.Client().Do(request)
			if err == nil {
				_, err = io.ReadAll(answer.Body)
				require.NoError(t, answer.Body.Close())
			}
			require.Error(t, err)
			assert.Equal(t, sent, l.asked.Load())
		})
	}
}

func TestVerifiedReportsAreBounded(t *testing.T) {
	var p verifiedReports
	of := func(n int) *v1alpha1.PruneReport {
		return &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Status: v1alpha1.PruneReportStatus{Digest: fmt.Sprint(n)}}
	}
	for n := range 3 * maxVerifiedReports {
		p.add(of(n), nil)
		p.add(of(n), nil)
	}
	assert.Len(t, p.known, maxVerifiedReports)
	assert.Len(t, p.order, maxVerifiedReports)
	_, known := p.get(of(3*maxVerifiedReports - 1))
	assert.True(t, known)
	p.forget(of(3*maxVerifiedReports - 1))
	_, known = p.get(of(3*maxVerifiedReports - 1))
	assert.False(t, known)
	assert.Len(t, p.order, maxVerifiedReports-1)
}

func TestPruneTargetsAreListed(t *testing.T) {
	api := newTestAPI(true)
	api.PruneTargets = func(_ context.Context, name string) ([]readapi.PruneTarget, bool, error) {
		return []readapi.PruneTarget{
			{Cluster: "oslo", Namespace: "images", Name: "ubuntu", State: v1alpha1.PrunePending, Until: &moonLanding},
			{Cluster: "bergen", Namespace: "images", Name: "ubuntu", State: v1alpha1.PrunePruned},
			{Cluster: "bergen", Namespace: "images", Name: "debian", State: v1alpha1.PruneSkipped, Reason: v1alpha1.PruneReferenced},
		}, name == "weekly", nil
	}
	for query, want := range map[string]struct {
		names []string
		next  string
	}{
		"":                                      {names: []string{"bergen/images/debian", "bergen/images/ubuntu", "oslo/images/ubuntu"}},
		"&limit=2":                              {names: []string{"bergen/images/debian", "bergen/images/ubuntu"}, next: "bergen/images/ubuntu"},
		"&limit=2&after=bergen/images/ubuntu":   {names: []string{"oslo/images/ubuntu"}},
		"&state=Skipped":                        {names: []string{"bergen/images/debian"}},
		"&state=Unknown":                        {names: []string{}},
		"&state=Pending&after=zz/images/debian": {names: []string{}},
	} {
		var list readapi.PruneTargets
		require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/imageprunes/targets?prune=weekly"+query, &list), query)
		names := []string{}
		for _, target := range list.Targets {
			names = append(names, targetKey(target))
		}
		assert.Equal(t, want.names, names, query)
		assert.Equal(t, want.next, list.Next, query)
		assert.NotNil(t, list.Targets, query)
	}
	for target, want := range map[string]int{
		"/fleet/v1/imageprunes/targets":                         http.StatusBadRequest,
		"/fleet/v1/imageprunes/targets?prune=weekly&state=Lost": http.StatusBadRequest,
		"/fleet/v1/imageprunes/targets?prune=weekly&limit=0":    http.StatusBadRequest,
		"/fleet/v1/imageprunes/targets?prune=nothing":           http.StatusNotFound,
	} {
		var answer map[string]string
		assert.Equal(t, want, getJSON(t, api, http.MethodGet, target, &answer), target)
		assert.NotEmpty(t, answer["error"], target)
	}
}
