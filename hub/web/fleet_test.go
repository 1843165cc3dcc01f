package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/history"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// testFleet has members with images, and one that never reported.
type testFleet struct {
	*API
	client client.Client
	policy string
}

// fleetSources are the groups of the policy in force.
const fleetSources = `[{name: bucket, hosts: ["b.example.com"], concurrency: 8}]`

// fleetImages are the images on the page of each member.
func fleetImages(phase v1alpha1.Phase) []v1alpha1.ReportedImage {
	return []v1alpha1.ReportedImage{
		{Namespace: "images", Name: "ubuntu-1.0.0", UID: "u", Source: "http ubuntu", Phase: phase, References: 1},
		{Namespace: "images", Name: "debian", UID: "u", Source: "http debian", Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonWaitingForSlot},
		{Namespace: "images", Name: "planned", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting}},
	}
}

func newTestFleet(t testing.TB, members ...string) *testFleet {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	builder := fake.NewClientBuilder().WithScheme(scheme)
	index := inventory.NewIndex()
	for _, name := range append(members, "dark") {
		m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
		if name != "dark" {
			queued := int32(1)
			m.Status.Images = &v1alpha1.MemberImages{Total: 2, Queued: queued}
			m.Status.SlotsUsed, m.Status.Budget = &queued, &queued
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(apitest.Epoch)}}
		}
		builder.WithObjects(m)
		index.AddMember(name)
	}
	for _, name := range members {
		setReport(index, name, 1, fleetImages(v1alpha1.PhaseSyncing))
		index.SetActivity(name, newActivity(), time.Now())
	}
	builder.WithObjects(apitest.FleetDiskImage("ubuntu").WithGeneration(1).WithStatus(v1alpha1.FleetDiskImageStatus{
		ObservedGeneration: 1,
		Phase:              v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval, Message: "approve it",
	}).Obj())
	f := &testFleet{client: builder.Build(), policy: "4"}
	changes := NewChanges("one")
	index.OnChange(func(inventory.Change) { changes.Mark(readapi.TopicImages) })
	remembered := history.New(apitest.Epoch)
	f.API = &API{
		Members: f.client, Index: index, Pages: fakePages{}, ReportsLoaded: func() bool { return true }, Changes: changes,
		Policy: func() answers.PolicyInForce {
			p, _, errs := policy.ParsePolicy(map[string]string{"concurrency": f.policy, "fleetConcurrency": "20", "fleetSources": fleetSources})
			require.Empty(t, errs)
			return answers.PolicyInForce{Policy: p, Accepted: true}
		},
		Root:         func(string) (*v1alpha1.ReportRoot, *time.Time) { return nil, nil },
		HeldBySource: func() map[string]int64 { return map[string]int64{"": 5, "bucket": 2} },
		History:      func() *history.History { return remembered },
		Stopping:     make(chan struct{}),
	}
	return f
}

func setReport(index *inventory.Index, member string, sequence int64, images []v1alpha1.ReportedImage) {
	index.SetPage(member, "page", sequence, images)
	index.SetRoot(member, &v1alpha1.ReportRoot{BootID: "boot", HeartbeatSeconds: 20, ObservedAt: metav1.NewTime(apitest.Epoch), Slots: 1, Pages: []v1alpha1.PageRef{{Name: "page", Sequence: sequence}}})
}

func newActivity() *v1alpha1.ReportedActivity {
	return &v1alpha1.ReportedActivity{
		ObservedAt: metav1.NewTime(time.Now()), BootID: "boot", Budget: 1, Slots: 1, Queued: 1,
		Active: []v1alpha1.ActiveImport{{Namespace: "images", Name: "ubuntu-1.0.0", Source: "bucket", BytesPerSecond: 100, BytesTotal: 1000, StartedAt: metav1.NewTime(time.Now().Add(-time.Minute))}},
		Head:   []v1alpha1.QueuedImport{{Namespace: "images", Name: "debian", Source: "bucket", Bytes: 1000, QueuedAt: metav1.NewTime(time.Now().Add(-time.Minute))}},
		Rates:  []v1alpha1.SourceRate{{Name: "bucket", P20: 90, P50: 100, P80: 110, Samples: 5, TransferredBytes: 5000}},
	}
}

// passTime makes what is remembered too old to be sent whatever changed.
func (f *testFleet) passTime() {
	f.rendered.mu.Lock()
	defer f.rendered.mu.Unlock()
	for key, answer := range f.rendered.answers {
		answer.at = answer.at.Add(-freshFor)
		f.rendered.answers[key] = answer
	}
}

func (f *testFleet) get(t testing.TB, path string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, readapi.Root+path, nil)
	for key, values := range header {
		request.Header[key] = values
	}
	mux := http.NewServeMux()
	for path, handler := range f.Handlers() {
		mux.Handle(path, handler)
	}
	recorder := httptest.NewRecorder()
	mux.ServeHTTP(recorder, request)
	return recorder
}

func (f *testFleet) read(t testing.TB, path string, into any) {
	t.Helper()
	status := getJSON(t, f.API, http.MethodGet, readapi.Root+path, into)
	require.Equal(t, http.StatusOK, status, "%s: %v", path, into)
}

func TestSummary(t *testing.T) {
	f := newTestFleet(t, "a", "b")
	var s readapi.Summary
	f.read(t, "summary", &s)
	assert.Equal(t, 3, s.Members.Total)
	assert.Equal(t, 2, s.Members.Ready)
	assert.Equal(t, 1, s.Members.NeverReported)
	assert.Equal(t, 1, s.Members.Unknown)
	assert.Equal(t, 4, s.Images.Images)
	assert.Equal(t, int64(20), *s.Transfers.Fleet.Limit)
	assert.Equal(t, int64(5), *s.Transfers.Fleet.Held)
	assert.Equal(t, 2, s.Transfers.Fleet.Used)
	assert.Equal(t, int64(200), *s.Transfers.Fleet.BytesPerSecond)
	assert.Equal(t, 1, s.Transfers.Fleet.UnknownMembers, "what the dark one downloads is unknown")
	require.Len(t, s.Transfers.Sources, 2)
	assert.Equal(t, readapi.TransferBudget{Name: "bucket", Limit: s.Transfers.Sources[0].Limit, Held: s.Transfers.Sources[0].Held, Used: 2, Waiting: 2, WaitingMembers: 2,
		BytesPerSecond: s.Transfers.Sources[0].BytesPerSecond, UnknownMembers: 1, Trend: s.Transfers.Sources[0].Trend}, s.Transfers.Sources[0])
	assert.Equal(t, v1alpha1.SourceOther, s.Transfers.Sources[1].Name)
	require.Len(t, s.Attention.Items, 1)
	assert.Equal(t, "ubuntu", s.Attention.Items[0].Name)
}

func TestWhy(t *testing.T) {
	f := newTestFleet(t, "a")
	f.Pages = memberPages{"a": fleetImages(v1alpha1.PhaseSyncing)}
	received := time.Now()
	f.Root = func(string) (*v1alpha1.ReportRoot, *time.Time) {
		return &v1alpha1.ReportRoot{ObservedAt: metav1.NewTime(received)}, &received
	}
	var w readapi.Why
	f.read(t, "why?cluster=a&namespace=images&name=debian", &w)
	require.NotNil(t, w.Position)
	assert.Zero(t, *w.Position)
	require.NotNil(t, w.Expected)
	require.NotNil(t, w.Expected.At, w.Expected.Message)
	assert.WithinRange(t, w.Expected.At.Time, w.Expected.Earliest.Time, w.Expected.Latest.Time)
	assert.Equal(t, int32(4), *w.Budget.PolicyConcurrency)
	assert.Equal(t, policy.SourceDefault, w.Budget.PolicySource)
	assert.Equal(t, int64(8), *w.Budget.SourceConcurrency)
	assert.Equal(t, "debian", w.Image.Name)
	require.NotNil(t, w.Explanation)
	assert.Equal(t, readapi.WhyWaits, w.Explanation.Verdict)
	assert.Contains(t, w.Explanation.Text, "0 images go first.")
	assert.Contains(t, w.Explanation.Budget, "policy: concurrency 4 (fleet default)")
	f.read(t, "why?cluster=a&namespace=images&name=planned", &w)
	assert.True(t, w.Planned)

	f.Index.SetStaleReason("a", v1alpha1.ReasonSilent)
	f.passTime()
	w = readapi.Why{}
	f.read(t, "why?cluster=a&namespace=images&name=debian", &w)
	assert.Equal(t, v1alpha1.ReasonSilent, w.Unknown)
	assert.Nil(t, w.Expected.At, "what a silent member does is unknown")
	assert.Equal(t, readapi.WhyUnknown, w.Explanation.Verdict)
	w = readapi.Why{}
	f.read(t, "why?cluster=dark&namespace=images&name=debian", &w)
	assert.Equal(t, v1alpha1.ReasonNeverReported, w.Unknown)
	assert.Nil(t, w.Image)
}

// An image is pruned after the index was read, and before its page is.
func TestWhyOfAnImagePrunedMeanwhile(t *testing.T) {
	f := newTestFleet(t, "a")
	f.Pages = memberPages{"a": {{Namespace: "images", Name: "debian", Prune: &v1alpha1.ReportedPrune{ImageUID: "u"}}}}
	assert.Equal(t, http.StatusNotFound, f.get(t, "why?cluster=a&namespace=images&name=debian", nil).Code)
}

// memberPages has the page of each member.
type memberPages map[string][]v1alpha1.ReportedImage

func (p memberPages) Page(_ context.Context, member, _ string) ([]v1alpha1.ReportedImage, bool, error) {
	return p[member], true, nil
}

func TestMatrix(t *testing.T) {
	f := newTestFleet(t, "a", "b")
	var m readapi.Matrix
	f.read(t, "matrix", &m)
	require.NoError(t, m.Check())
	require.Len(t, m.Rows, 1)
	require.Len(t, m.Cols, 3)
	assert.Equal(t, readapi.CellSyncing, m.At(0, 0).State())
	assert.True(t, m.At(0, 0).Has(readapi.CellReferenced))
	assert.Equal(t, readapi.CellUnknown, m.At(0, 2), "the dark one may have it")
	assert.Equal(t, v1alpha1.ReasonNeverReported, m.Cols[2].Unknown)

	setReport(f.Index, "b", 2, fleetImages(v1alpha1.PhaseSucceeded))
	var changes readapi.Matrix
	f.passTime()
	f.read(t, "matrix?since="+m.Seq, &changes)
	assert.Equal(t, m.Seq, changes.Since)
	assert.Equal(t, []int{1}, changes.Changed)
	require.NoError(t, m.Apply(&changes))
	assert.Equal(t, readapi.CellReady, m.At(0, 1).State())

	f.Index.SetStaleReason("b", v1alpha1.ReasonSilent)
	changes = readapi.Matrix{}
	f.passTime()
	f.read(t, "matrix?since="+m.Seq, &changes)
	require.NoError(t, m.Apply(&changes))
	assert.True(t, m.At(0, 1).Has(readapi.CellStale))
	assert.Equal(t, v1alpha1.ReasonSilent, m.Cols[1].Unknown)
	var whole readapi.Matrix
	f.read(t, "matrix?since=unheard-of", &whole)
	assert.Empty(t, whole.Since)
	assert.Equal(t, whole.Cells, m.Cells)

	var sources readapi.Matrix
	f.read(t, "matrix?rows=source&cols=a,dark&selector=name%3Da", &sources)
	assert.Len(t, sources.Rows, 2)
	assert.Equal(t, []readapi.MatrixColumn{{Cluster: "a", State: readapi.MemberReady}}, sources.Cols)
	f.read(t, "matrix?since="+m.Seq+"&cols=a", &whole)
	assert.Empty(t, whole.Since, "the columns are others")
}

func TestSearchAnswer(t *testing.T) {
	f := newTestFleet(t, "bergen")
	var found readapi.SearchAnswer
	f.read(t, "search?q=berg", &found)
	assert.Equal(t, []readapi.Found{{Kind: readapi.FoundCluster, Name: "bergen", State: string(readapi.MemberReady)}}, found.Found)
	f.read(t, "search?q=ubuntu", &found)
	assert.Equal(t, readapi.FoundRollout, found.Found[0].Kind)
	assert.Equal(t, readapi.FoundSource, found.Found[1].Kind)
}

// A label that changes, and nothing else, is a change of the columns alone.
func TestMatrixGroups(t *testing.T) {
	f := newTestFleet(t, "a", "b")
	label := func(name, value string) {
		var m v1alpha1.MemberCluster
		require.NoError(t, f.client.Get(t.Context(), client.ObjectKey{Name: name}, &m))
		m.Labels["region"] = value
		require.NoError(t, f.client.Update(t.Context(), &m))
	}
	label("a", "nordics")
	label("b", "edge")
	label("dark", "edge")
	var m, changes readapi.Matrix
	f.read(t, "matrix?group=region", &m)
	assert.Equal(t, []string{"region"}, m.Labels, "each cluster has another name: that groups nothing")
	assert.Equal(t, "nordics", m.Cols[0].Group)
	assert.Equal(t, readapi.MemberNeverReported, m.Cols[2].State)

	label("b", "nordics")
	f.passTime()
	f.read(t, "matrix?group=region&since="+m.Seq, &changes)
	require.Equal(t, m.Seq, changes.Since)
	assert.Empty(t, changes.Changed)
	require.NoError(t, m.Apply(&changes))
	assert.Equal(t, "nordics", m.Cols[1].Group)
	assert.Equal(t, []string{"region"}, m.Labels)
}

func TestHistoryAnswer(t *testing.T) {
	f := newTestFleet(t, "a")
	now := time.Now()
	f.History().AddSample(now, []string{"bucket"}, []history.MemberSample{newSample("a", inventory.Activity{Reported: newActivity()}), newSample("dark", inventory.Activity{Unknown: "x"})})
	for by, lines := range map[string]int{"fleet": 1, "source": 2, "cluster": 2} {
		var h readapi.History
		f.read(t, "history?window=1h&by="+by, &h)
		require.Len(t, h.Lines, lines, by)
	}
	var h readapi.History
	f.read(t, "history?series=slots&window=1m", &h)
	require.Len(t, h.Lines[0].Values["slots"], 1)
	assert.InDelta(t, 1, h.Lines[0].Values["slots"][0], 0)
	assert.Equal(t, []int{2}, h.Lines[0].UnknownMembers, "the bytes before a first sample are unknown")
}

func TestBlastRadius(t *testing.T) {
	f := newTestFleet(t, "a", "b")
	var r readapi.BlastRadius
	f.read(t, "blastradius?policy="+url.QueryEscape(`{concurrency: "4", overrides: "[{cluster: a, concurrency: 1}]", fleetConcurrency: "20", fleetSources: '`+fleetSources+`'}`), &r)
	require.Len(t, r.Rows, 1)
	row := r.Rows[0]
	assert.Equal(t, "a", row.Member)
	assert.Equal(t, int64(4), *row.Now)
	assert.Equal(t, int64(1), row.Then)
	assert.Equal(t, int32(1), *row.Running)
	assert.Equal(t, int32(1), *row.Queued)
	assert.NotNil(t, row.OldestQueuedAt)
	assert.Equal(t, int64(20), *r.FleetThen)
	r = readapi.BlastRadius{}
	f.read(t, "blastradius?policy="+url.QueryEscape(`{concurrency: "x"}`), &r)
	assert.Contains(t, r.Refused[0], "concurrency")
	assert.Empty(t, r.Rows)
}

func TestFleetRequestsAreValidated(t *testing.T) {
	f := newTestFleet(t, "a")
	for target, want := range map[string]int{
		"why?cluster=a&namespace=images":                      http.StatusBadRequest,
		"why?cluster=x&namespace=images&name=debian":          http.StatusNotFound,
		"why?cluster=a&namespace=images&name=nothing":         http.StatusNotFound,
		"members?after=~~":                                    http.StatusBadRequest,
		"search":                                              http.StatusBadRequest,
		"search?q=":                                           http.StatusBadRequest,
		"matrix?rows=members":                                 http.StatusBadRequest,
		"matrix?rows=source&images=ubuntu":                    http.StatusBadRequest,
		"matrix?cols=nowhere":                                 http.StatusNotFound,
		"matrix?selector=%3D%3D":                              http.StatusBadRequest,
		"matrix?group=a/b/c":                                  http.StatusBadRequest,
		"history?by=image":                                    http.StatusBadRequest,
		"history?series=bytes,bytes":                          http.StatusBadRequest,
		"history?series=load":                                 http.StatusBadRequest,
		"history?window=1s":                                   http.StatusBadRequest,
		"history?window=48h":                                  http.StatusBadRequest,
		"history?points=0":                                    http.StatusBadRequest,
		"history?clusters=a":                                  http.StatusBadRequest,
		"history?by=cluster&clusters=nowhere":                 http.StatusNotFound,
		"history?by=cluster&limit=200&points=1440":            http.StatusBadRequest,
		"blastradius":                                         http.StatusBadRequest,
		"blastradius?policy=x":                                http.StatusBadRequest,
		"blastradius?policy=%7B%22concurrency%22%3A%5B%5D%7D": http.StatusBadRequest,
		"blastradius?policy=" + url.QueryEscape("{a: \""+string(make([]byte, readapi.MaxPolicyBytes))): http.StatusBadRequest,
		"search?q=" + strings.Repeat("x", maxSearchBytes+1):                                            http.StatusBadRequest,
		"images?sort=colour":                               http.StatusBadRequest,
		"images?order=up":                                  http.StatusBadRequest,
		"images?sort=bytes&after=a":                        http.StatusBadRequest,
		"images?offset=x":                                  http.StatusBadRequest,
		"images/versions?name=none":                        http.StatusNotFound,
		"images/clusters":                                  http.StatusBadRequest,
		"images/clusters?name=none":                        http.StatusNotFound,
		"images/clusters?name=ubuntu&state=Lost":           http.StatusBadRequest,
		"images/clusters?name=ubuntu&unreferenced=perhaps": http.StatusBadRequest,
		"images/clusters?name=ubuntu&version=none":         http.StatusNotFound,
		"summary?x=1":                                      http.StatusBadRequest,
		"events?x=1":                                       http.StatusBadRequest,
	} {
		var answer readapi.ErrorAnswer
		assert.Equal(t, want, getJSON(t, f.API, http.MethodGet, readapi.Root+target, &answer), target)
		assert.NotEmpty(t, answer.Error, target)
	}
}

// An answer that has not changed is not sent again, whatever else changed, and one that has
// is.
func TestETags(t *testing.T) {
	f := newTestFleet(t, "a", "b")
	f.Pages = memberPages{"a": fleetImages(v1alpha1.PhaseSyncing)}
	placed := f.endpoints()
	for path, query := range map[string]string{
		"summary": "", "matrix": "", "history": "?window=1h", "members": "", "images": "", "images/detail": "?source=http+ubuntu", "rollouts": "",
		"blastradius": "?policy=%7B%7D", "why": "?cluster=a&namespace=images&name=debian",
	} {
		require.Contains(t, placed, readapi.Root+path)
		first := f.get(t, path+query, nil)
		require.Equal(t, http.StatusOK, first.Code, first.Body)
		etag := first.Header().Get("ETag")
		require.NotEmpty(t, etag, path)
		for _, sent := range []string{etag, "W/" + etag, `"x", ` + etag} {
			again := f.get(t, path+query, http.Header{"If-None-Match": {sent}})
			assert.Equal(t, http.StatusNotModified, again.Code, path)
			assert.Zero(t, again.Body.Len(), path)
		}
		assert.Equal(t, http.StatusOK, f.get(t, path+query, http.Header{"If-None-Match": {`"other"`}}).Code, path)
	}
	before := f.get(t, "matrix", nil).Header().Get("ETag")
	f.Changes.Mark(readapi.TopicPolicy)
	f.passTime()
	assert.Equal(t, http.StatusNotModified, f.get(t, "matrix", http.Header{"If-None-Match": {before}}).Code, "something else changed")
	setReport(f.Index, "a", 2, fleetImages(v1alpha1.PhaseFailed))
	assert.Equal(t, before, f.get(t, "matrix", nil).Header().Get("ETag"), "events lag behind by as much")
	f.passTime()
	changed := f.get(t, "matrix", http.Header{"If-None-Match": {before}})
	assert.Equal(t, http.StatusOK, changed.Code)
	assert.NotEqual(t, before, changed.Header().Get("ETag"))
	assert.Empty(t, f.get(t, "why?cluster=nowhere&namespace=a&name=b", nil).Header().Get("ETag"), "an error is none")
}

// What is remembered is bounded, and is rendered once for all viewers.
func TestAnswersAreRemembered(t *testing.T) {
	f := newTestFleet(t, "a")
	rendered := 0
	e := endpoint{remembered: true, answer: func(*http.Request) (any, error) { rendered++; return rendered, nil }}
	ask := func(query string) {
		f.handle(e).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/x?"+query, nil))
	}
	for range 5 {
		ask("")
	}
	f.Changes.Mark()
	ask("")
	assert.Equal(t, 1, rendered, "it is fresh")
	f.passTime()
	ask("")
	assert.Equal(t, 2, rendered)
	f.passTime()
	ask("")
	assert.Equal(t, 2, rendered, "nothing changed")
	for i := range 3 * maxRemembered {
		ask(strconv.Itoa(i))
	}
	assert.Len(t, f.rendered.answers, maxRemembered)
	e.remembered = false
	rendered = 0
	ask("")
	ask("")
	assert.Equal(t, 2, rendered)
}

// Few answers are computed at a time, whatever is asked for, and a caller that is gone waits for
// none.
func TestRenderingIsBounded(t *testing.T) {
	for name, e := range map[string]endpoint{"remembered": {remembered: true}, "live": {reads: true}} {
		t.Run(name, func(t *testing.T) {
			f := newTestFleet(t, "a")
			var busy, most atomic.Int32
			release := make(chan struct{})
			e.answer = func(*http.Request) (any, error) {
				now := busy.Add(1)
				for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
				}
				<-release
				busy.Add(-1)
				return 1, nil
			}
			limit := int32(cap(f.rendered.limitOf(e, "/x")))
			var asked sync.WaitGroup
			for i := range 4 * int(limit) {
				asked.Go(func() {
					path := fmt.Sprintf("/x?%s%d", strings.Repeat("x", maxRememberedKey*(i%2)), i)
					f.handle(e).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
				})
			}
			require.Eventually(t, func() bool { return busy.Load() == limit }, time.Minute, time.Millisecond)
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			f.handle(e).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "/x?gone", nil))
			close(release)
			asked.Wait()
			assert.Equal(t, limit, most.Load())
		})
	}
}

// The names of a matrix count for what is kept of it.
func TestKeptMatricesAreBounded(t *testing.T) {
	var c matrixCache
	for i := range maxMatrices {
		m := &readapi.Matrix{Seq: strconv.Itoa(i), Rows: make([]readapi.MatrixRow, 20_000)}
		c.add(m)
	}
	assert.Len(t, c.known, maxMatrixBytes/2_000_000)
	assert.LessOrEqual(t, c.bytes, maxMatrixBytes)
}
