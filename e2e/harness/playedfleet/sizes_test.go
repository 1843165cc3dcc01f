package playedfleet_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
)

const kB = 1000

// page asks the dashboard's server as a browser does.
type page struct {
	handler http.Handler
	etags   map[string]string
}

func (p *page) get(t *testing.T, path string) (status, bytesOnWire int, body []byte) {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:8089"+path, nil)
	request.Header.Set("Accept-Encoding", "gzip, deflate, br")
	if etag := p.etags[path]; etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	response := httptest.NewRecorder()
	p.handler.ServeHTTP(response, request)
	if response.Code == http.StatusOK {
		p.etags[path] = response.Header().Get("ETag")
	}
	bytesOnWire = response.Body.Len()
	body = response.Body.Bytes()
	if response.Header().Get("Content-Encoding") == "gzip" {
		reader, err := gzip.NewReader(bytes.NewReader(body))
		require.NoError(t, err)
		body, err = io.ReadAll(reader)
		require.NoError(t, err)
	}
	return response.Code, bytesOnWire, body
}

// newPage is of 1,000 clusters and 200 images, whose clock stands still until it is moved.
func newPage(t *testing.T) (p *page, fleet *playedfleet.Fleet, move func(time.Duration)) {
	t.Helper()
	now := playedfleet.Epoch
	fleet, err := playedfleet.New(playedfleet.Options{Scenario: playedfleet.Large, Seed: 1, Now: func() time.Time { return now }})
	require.NoError(t, err)
	p = &page{handler: fleet.Handler(playedfleet.HandlerOptions{Origin: "http://127.0.0.1:8089"}), etags: map[string]string{}}
	return p, fleet, func(d time.Duration) {
		now = now.Add(d)
		fleet.Play()
	}
}

// TestAnswersAreSmall: with 1,000 clusters and 200 images, what pages ask for stays within a
// few kB, what has not changed costs nothing, and an open page less than 2 kB a second.
func TestAnswersAreSmall(t *testing.T) {
	p, fleet, move := newPage(t)
	var members readapi.MemberList
	_, _, body := p.get(t, "/fleet/v1/members?limit=1")
	require.NoError(t, json.Unmarshal(body, &members))
	require.Equal(t, 1000, members.Total)
	cluster := members.Members[0].Member
	var moving readapi.Transfers
	_, _, body = p.get(t, "/fleet/v1/transfers?limit=1")
	require.NoError(t, json.Unmarshal(body, &moving))
	require.NotEmpty(t, moving.Running)
	running := moving.Running[0]
	why := url.Values{"cluster": {running.Cluster}, "namespace": {running.Namespace}, "name": {running.Name}}
	var rollouts readapi.RolloutList
	_, _, body = p.get(t, "/fleet/v1/rollouts?limit=1")
	require.NoError(t, json.Unmarshal(body, &rollouts))
	image := rollouts.Rollouts[0].Name
	for path, most := range map[string]int{
		"summary":                                4 * kB,
		"matrix":                                 50 * kB, // most of it are flags that chance has set
		"history?by=fleet&window=24h&points=144": 12 * kB,
		"history?by=source&window=24h&points=144":            12 * kB,
		"history?by=cluster&series=bytes&window=6h&limit=20": 12 * kB,
		"why?" + why.Encode():                                3 * kB,
		"transfers?limit=50":                                 8 * kB,
		"members?limit=50":                                   10 * kB,
		"members?limit=50&sort=state":                        10 * kB,
		"members/detail?member=" + cluster:                   4 * kB,
		"members/quarantine?member=" + cluster:               1 * kB,
		"rollouts?limit=50":                                  10 * kB,
		"rollouts/detail?name=" + image:                      10 * kB,
		"rollouts/clusters?limit=50&name=" + image:           4 * kB,
		"images?limit=50":                                    25 * kB,
		"images?limit=25&sort=bytes&order=desc":              15 * kB,
		"images/versions?limit=25":                           10 * kB,
		"images/versions?name=image-007":                     2 * kB,
		"images/clusters?name=image-007&limit=25":            10 * kB,
		"rollouts?limit=50&sort=phase":                       10 * kB,
		"rollouts/detail?name=image-007":                     4 * kB,
		"rollouts/clusters?name=image-007&limit=50":          5 * kB,
		"policy":                            4 * kB,
		"prunereports?sort=newest&limit=50": 10 * kB,
		"imageprunes?sort=newest&limit=50":  10 * kB,
	} {
		status, size, body := p.get(t, "/fleet/v1/"+path)
		require.Equal(t, http.StatusOK, status, path)
		assert.LessOrEqual(t, size, most, "%s: %d bytes compressed", path, size)
		t.Logf("%-55s %7d bytes, %7d compressed", path, len(body), size)
		assert.NotContains(t, withoutValues(t, body), ":null", "%s: a list without entries is [], and what is unknown is absent", path)

		status, size, _ = p.get(t, "/fleet/v1/"+path)
		assert.Equal(t, http.StatusNotModified, status, path)
		assert.Zero(t, size, path)
	}
	var matrix readapi.Matrix
	_, _, body = p.get(t, "/fleet/v1/matrix?rows=fdi")
	require.NoError(t, json.Unmarshal(body, &matrix))
	assert.GreaterOrEqual(t, len(matrix.Cells), 200_000, "no fleet of this size is asked about")
	p.etags = map[string]string{}
	_, summary, _ := p.get(t, "/fleet/v1/summary")
	const seconds = 30
	total, seq := 0, fleet.Changes.Current().Seq
	for range seconds {
		move(time.Second)
		event := fleet.Changes.Since(seq)
		seq = event.Seq
		line, err := json.Marshal(event)
		require.NoError(t, err)
		total += len(line) + summary // at most: it may be the same
		status, size, body := p.get(t, "/fleet/v1/matrix?rows=fdi&since="+matrix.Seq)
		if status == http.StatusNotModified {
			continue
		}
		before := matrix.Seq
		require.NoError(t, json.Unmarshal(body, &matrix))
		require.Equal(t, before, matrix.Since, "changes only")
		assert.LessOrEqual(t, size, 2*kB, "what changes within a second")
		total += size
	}
	assert.Less(t, total/seconds, 2*kB, "bytes a second of an open page")
	t.Logf("an open page: %d bytes a second", total/seconds)

	still := fleet.Changes.Current().Seq
	move(0)
	assert.Empty(t, fleet.Changes.Since(still).Topics, "nothing happens, and nothing is told")
}

// withoutValues returns an answer without the points of series, where unknown is null.
func withoutValues(t *testing.T, body []byte) string {
	t.Helper()
	var answer any
	require.NoError(t, json.Unmarshal(body, &answer))
	text, err := json.Marshal(answer)
	require.NoError(t, err)
	return strings.ReplaceAll(string(text), "[null", "[0")
}

// TestAnswersHaveNoNull: pages iterate over lists without asking whether there is one.
func TestAnswersHaveNoNull(t *testing.T) {
	for _, scenario := range []string{playedfleet.Empty, playedfleet.Burning} {
		fleet, err := playedfleet.New(playedfleet.Options{Scenario: scenario, Seed: 1, Now: func() time.Time { return playedfleet.Epoch }})
		require.NoError(t, err)
		p := &page{handler: fleet.Handler(playedfleet.HandlerOptions{Origin: "http://127.0.0.1:8089"}), etags: map[string]string{}}
		paths := []string{"summary", "matrix", "matrix?rows=source", "history?by=fleet", "history?by=source", "history?by=cluster", "transfers", "members", "images", "rollouts", "prunereports", "imageprunes", "policy", "blastradius?policy={}"}
		var members readapi.MemberList
		_, _, body := p.get(t, "/fleet/v1/members?limit=1000")
		require.NoError(t, json.Unmarshal(body, &members))
		for _, m := range members.Members {
			paths = append(paths, "members/detail?member="+m.Member, "members/images?member="+m.Member, "members/quarantine?member="+m.Member)
		}
		var rollouts readapi.RolloutList
		_, _, body = p.get(t, "/fleet/v1/rollouts")
		require.NoError(t, json.Unmarshal(body, &rollouts))
		for _, r := range rollouts.Rollouts {
			paths = append(paths, "rollouts/clusters?name="+r.Name, "rollouts/detail?name="+r.Name, "rollouts/owners?name="+r.Name)
			for _, wave := range r.Waves {
				paths = append(paths, "rollouts/reach?name="+r.Name+"&wave="+wave.Name)
			}
		}
		var reports readapi.PruneReportList
		_, _, body = p.get(t, "/fleet/v1/prunereports")
		require.NoError(t, json.Unmarshal(body, &reports))
		for _, r := range reports.Reports {
			if r.Phase == v1alpha1.PruneReportComplete {
				paths = append(paths, "prunereports/groups?report="+r.Name, "prunereports/groups?by=cluster&clusters=none&report="+r.Name, "prunereports/rows?report="+r.Name)
			}
		}
		p.etags = map[string]string{}
		for _, path := range paths {
			status, _, body := p.get(t, "/fleet/v1/"+path)
			require.Equal(t, http.StatusOK, status, "%s: %s: %s", scenario, path, body)
			assert.NotContains(t, withoutValues(t, body), ":null", "%s: %s", scenario, path)
		}
	}
}
