package fairqueue_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/preflight/fairqueue"
)

// start starts all requests whose turn it is and returns their IDs.
func start(q *fairqueue.Queue) (ids []uint64) {
	for r, ok := q.Start(); ok; r, ok = q.Start() {
		ids = append(ids, r.ID)
	}
	return ids
}

func TestTurns(t *testing.T) {
	for name, tt := range map[string]struct {
		limits   fairqueue.Limits
		requests []fairqueue.Request
		// want are the rounds: what starts, after all that ran has ended.
		want [][]uint64
	}{
		"a namespace with one request is second": {
			fairqueue.Limits{Total: 1, PerNamespace: 1, PerHost: 1},
			[]fairqueue.Request{{1, "many", "h"}, {2, "many", "h"}, {3, "many", "h"}, {4, "one", "h"}},
			[][]uint64{{1}, {4}, {2}, {3}},
		},
		"so is a host": {
			fairqueue.Limits{Total: 1, PerNamespace: 1, PerHost: 1},
			[]fairqueue.Request{{1, "ns", "many"}, {2, "ns", "many"}, {3, "ns", "many"}, {4, "ns", "one"}},
			[][]uint64{{1}, {4}, {2}, {3}},
		},
		"a host at its limit does not hold up its namespace": {
			fairqueue.Limits{Total: 8, PerNamespace: 8, PerHost: 2},
			[]fairqueue.Request{{1, "ns", "slow"}, {2, "ns", "slow"}, {3, "ns", "slow"}, {4, "ns", "fast"}, {5, "other", "slow"}},
			[][]uint64{{1, 5, 4}, {2, 3}},
		},
		"a namespace at its limit does not hold up others": {
			fairqueue.Limits{Total: 8, PerNamespace: 2, PerHost: 8},
			[]fairqueue.Request{{1, "a", "h1"}, {2, "a", "h2"}, {3, "a", "h3"}, {4, "b", "h1"}},
			[][]uint64{{1, 4, 2}, {3}},
		},
		"one host, in order": {
			fairqueue.Limits{Total: 2, PerNamespace: 2, PerHost: 2},
			[]fairqueue.Request{{3, "a", "h"}, {1, "a", "h"}, {2, "a", "h"}},
			[][]uint64{{3, 1}, {2}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := fairqueue.New(tt.limits)
			for _, r := range tt.requests {
				q.Add(r)
			}
			var got [][]uint64
			for ids := start(q); len(ids) > 0; ids = start(q) {
				got = append(got, ids)
				for _, id := range ids {
					q.Finish(id)
				}
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// model knows what waits and runs, in the order of arrival, and what started since.
type model struct {
	limits  fairqueue.Limits
	waiting []fairqueue.Request
	running []fairqueue.Request
	// startedSince counts, for each turn that is waited for, the requests that others
	// started although one of its own could have.
	startedSince map[turn]map[string]int
}

// turn of a namespace, or of a host in it.
type turn struct{ namespace, host string }

func (m *model) canStart(r fairqueue.Request) bool {
	byNamespace, byHost := 0, 0
	for _, o := range m.running {
		if o.Namespace == r.Namespace {
			byNamespace++
		}
		if o.Host == r.Host {
			byHost++
		}
	}
	return len(m.running) < m.limits.Total && byNamespace < m.limits.PerNamespace && byHost < m.limits.PerHost
}

// takeAny takes one of the requests out.
func takeAny(t *rapid.T, requests *[]fairqueue.Request) fairqueue.Request {
	if len(*requests) == 0 {
		t.Skip()
	}
	i := rapid.IntRange(0, len(*requests)-1).Draw(t, "which")
	taken := (*requests)[i]
	*requests = slices.Delete(*requests, i, i+1)
	return taken
}

// TestNoBacklogDelaysAnother compares the queue with a model, over any sequence of
// arrivals, ends and removals.
func TestNoBacklogDelaysAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := fairqueue.Limits{
			Total: rapid.IntRange(1, 6).Draw(t, "total"), PerNamespace: rapid.IntRange(1, 4).Draw(t, "per namespace"), PerHost: rapid.IntRange(1, 4).Draw(t, "per host"),
		}
		q := fairqueue.New(limits)
		m := &model{limits: limits, startedSince: map[turn]map[string]int{}}
		nextID := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				nextID++
				r := fairqueue.Request{ID: nextID, Namespace: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace"), Host: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "host")}
				q.Add(r)
				m.waiting = append(m.waiting, r)
			},
			"start": func(t *rapid.T) { m.start(t, q) },
			"finish": func(t *rapid.T) {
				q.Finish(takeAny(t, &m.running).ID)
			},
			"remove": func(t *rapid.T) {
				q.Remove(takeAny(t, &m.waiting).ID)
				m.forgetIdle()
			},
			"finish what does not run": func(*rapid.T) { q.Finish(nextID + 1); q.Remove(nextID + 1) },
			"": func(t *rapid.T) {
				waiting, running := q.Len()
				require.Equal(t, len(m.waiting), waiting)
				require.Equal(t, len(m.running), running)
				for _, r := range m.waiting {
					require.True(t, q.IsWaiting(r.ID))
					require.Equal(t, !m.canStart(r), q.WouldWait(r.Namespace, r.Host))
				}
			},
		})
	})
}

func (m *model) start(t *rapid.T, q *fairqueue.Queue) {
	var startable []fairqueue.Request
	for _, r := range m.waiting {
		if m.canStart(r) {
			startable = append(startable, r)
		}
	}
	got, ok := q.Start()
	require.Equal(t, len(startable) > 0, ok, "a request starts if, and only if, one may")
	if !ok {
		return
	}
	require.Contains(t, startable, got)
	first := slices.IndexFunc(m.waiting, func(r fairqueue.Request) bool { return r.Namespace == got.Namespace && r.Host == got.Host })
	require.Equal(t, m.waiting[first], got, "first in, first out for each host of a namespace")
	m.waiting = slices.Delete(m.waiting, first, first+1)
	m.running = append(m.running, got)

	m.countStarts(t, startable, got)
	m.forgetIdle()
}

// countStarts counts a start against the namespaces, and the hosts of its namespace, that
// could have started instead.
func (m *model) countStarts(t *rapid.T, startable []fairqueue.Request, got fairqueue.Request) {
	delete(m.startedSince, turn{namespace: got.Namespace})
	delete(m.startedSince, turn{got.Namespace, got.Host})
	passedOver := map[turn]string{}
	for _, r := range startable {
		switch {
		case r.Namespace != got.Namespace:
			passedOver[turn{namespace: r.Namespace}] = got.Namespace
		case r.Host != got.Host:
			passedOver[turn{r.Namespace, r.Host}] = got.Host
		}
	}
	for key, by := range passedOver {
		if m.startedSince[key] == nil {
			m.startedSince[key] = map[string]int{}
		}
		m.startedSince[key][by]++
		require.LessOrEqual(t, m.startedSince[key][by], 1, "%s started again although it was the turn of %v", by, key)
	}
}

// forgetIdle drops the counts of those that no longer wait.
func (m *model) forgetIdle() {
	for key := range m.startedSince {
		if !slices.ContainsFunc(m.waiting, func(r fairqueue.Request) bool {
			return r.Namespace == key.namespace && (key.host == "" || r.Host == key.host)
		}) {
			delete(m.startedSince, key)
		}
	}
}
