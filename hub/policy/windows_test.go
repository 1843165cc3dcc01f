package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/hub/policy"
)

const (
	nightly = `[{cron: "0 22 * * *", duration: 8h, timeZone: Europe/Berlin, concurrency: 8, fleetConcurrency: 40}]`
	// twoOfTheFleet overlap from 3 to 4.
	twoOfTheFleet = `[{cron: "0 1 * * *", duration: 3h, fleetConcurrency: 40}, {cron: "0 3 * * *", duration: 3h, fleetConcurrency: 5}]`
)

func mustTime(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return at
}

func TestWindowErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		data data
		want string
	}{
		"at the top":                  {data{"windows": `[{cron: "0 25 * * *", duration: 8h, concurrency: 1}]`}, "windows[0].cron: "},
		"in an override":              {data{"overrides": `[{cluster: a, retryLimit: 1}, {cluster: b, windows: [{cron: "0 25 * * *", duration: 8h, concurrency: 1}]}]`}, "overrides[1].windows[0].cron: "},
		"as text in an override":      {data{"overrides": "- cluster: b\n  windows: |\n    - {cron: '0 1 * * *', duration: x, concurrency: 1}"}, "overrides[0].windows[0].duration: "},
		"fleetConcurrency of one":     {data{"fleetConcurrency": "3", "overrides": `[{cluster: b, windows: [{cron: "0 1 * * *", duration: 8h, concurrency: 1, fleetConcurrency: 2}]}]`}, "overrides[0].windows[0].fleetConcurrency: it is for the whole fleet: set it in windows at the top of the ConfigMap"},
		"fleetConcurrency in windows": {data{"windows": nightly}, "windows[0].fleetConcurrency: there is no fleet-wide budget: set key fleetConcurrency too"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, errs := policy.ParsePolicy(tt.data)
			assert.Nil(t, p)
			require.NotEmpty(t, errs)
			assert.Contains(t, policy.FormatErrors(errs), tt.want)
		})
	}
}

// A list replaces the one before, as any other key does.
func TestWindowsOfOverrides(t *testing.T) {
	p := mustParse(t, data{"fleetConcurrency": "10", "windows": nightly, "overrides": `
- {cluster: none, windows: []}
- {selector: {matchLabels: {edge: "true"}}, windows: [{cron: "0 1 * * *", duration: 1h, concurrency: 1}]}
- {cluster: other, windows: [{cron: "0 2 * * *", duration: 2h, concurrency: 2}]}`})
	edge := map[string]string{"edge": "true"}
	for name, tt := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"plain": {nil, `[{"cron":"0 22 * * *","duration":"8h0m0s","timeZone":"Europe/Berlin","concurrency":8}]`},
		"edge":  {edge, `[{"cron":"0 1 * * *","duration":"1h0m0s","concurrency":1}]`},
		"other": {edge, `[{"cron":"0 2 * * *","duration":"2h0m0s","concurrency":2}]`},
		"none":  {nil, ""},
	} {
		got, _, errs := p.ForMember(name, tt.labels)
		require.Empty(t, errs)
		assert.Equal(t, tt.want, got["windows"], name)
	}
	// Members are never told of windows that only the hub judges.
	got, _, _ := mustParse(t, data{"fleetConcurrency": "10", "windows": twoOfTheFleet}).ForMember("a", nil)
	assert.NotContains(t, got, "windows")
}

// An override of concurrency holds at all times, unless it is for as many members as the windows.
func TestOverrideIsNotReplacedByWindowsForMore(t *testing.T) {
	p := mustParse(t, data{"concurrency": "0", "windows": `[{cron: "0 0 * * *", duration: 24h, concurrency: 9}]`, "overrides": `
- {selector: {matchLabels: {edge: "true"}}, windows: [{cron: "0 0 * * *", duration: 24h, concurrency: 2}]}
- {selector: {matchLabels: {slow: "true"}}, concurrency: 1}
- {cluster: paused, concurrency: 0}
- {cluster: both, concurrency: 0, windows: [{cron: "0 0 * * *", duration: 24h, concurrency: 3}]}
- {cluster: other, retryLimit: 1}`})
	edge, slow := map[string]string{"edge": "true"}, map[string]string{"slow": "true"}
	for name, tt := range map[string]struct {
		member string
		labels map[string]string
		want   int64
	}{
		"the fleet's":                     {"a", nil, 9},
		"another key":                     {"other", nil, 9},
		"a limit by selector":             {"a", slow, 1},
		"windows by selector":             {"a", edge, 2},
		"both by selector":                {"a", map[string]string{"edge": "true", "slow": "true"}, 2},
		"a pause by name":                 {"paused", nil, 0},
		"a pause by name over a selector": {"paused", edge, 0},
		"with windows of its own":         {"both", slow, 3},
	} {
		got, _, errs := p.ForMember(tt.member, tt.labels)
		require.Empty(t, errs)
		assert.Equal(t, tt.want, policy.ConcurrencyAt(got, mustTime(t, "2026-06-01T12:00:00Z")), name)
	}
	assert.NotContains(t, p.KeySources(policy.Member{Name: "paused"}), "windows")
}

func TestBudgetInForce(t *testing.T) {
	for name, tt := range map[string]struct {
		plain, windows, at  string
		want                int32
		wantFalls, wantRise string
	}{
		"no windows":                     {"10", "", "2026-06-01T00:00:00Z", 10, "", ""},
		"windows without it":             {"10", `[{cron: "0 1 * * *", duration: 3h, concurrency: 4}]`, "2026-06-01T01:00:00Z", 10, "", ""},
		"before":                         {"0", twoOfTheFleet, "2026-06-01T00:00:00Z", 0, "", "2026-06-01T01:00:00Z"},
		"at the opening":                 {"0", twoOfTheFleet, "2026-06-01T01:00:00Z", 40, "2026-06-01T03:00:00Z", ""},
		"in both the last wins":          {"0", twoOfTheFleet, "2026-06-01T03:30:00Z", 5, "2026-06-01T06:00:00Z", "2026-06-02T01:00:00Z"},
		"an edge at which nothing falls": {"2", twoOfTheFleet, "2026-06-01T04:30:00Z", 5, "2026-06-01T06:00:00Z", "2026-06-02T01:00:00Z"},
		"at the end":                     {"2", twoOfTheFleet, "2026-06-01T06:00:00Z", 2, "", "2026-06-02T01:00:00Z"},
		"a pause by day":                 {"40", `[{cron: "0 6 * * *", duration: 10h, fleetConcurrency: 0}]`, "2026-06-01T12:00:00Z", 0, "", "2026-06-01T16:00:00Z"},
		"the clock goes forward":         {"0", nightly, "2026-03-28T23:00:00Z", 40, "2026-03-29T05:00:00Z", ""},
		"the clock goes back":            {"0", nightly, "2026-10-24T22:00:00Z", 40, "2026-10-25T04:00:00Z", ""},
		"before it has gone forward":     {"0", nightly, "2026-03-28T20:59:59Z", 0, "", "2026-03-28T21:00:00Z"},
		"after it has gone back":         {"0", nightly, "2026-10-25T12:00:00Z", 0, "", "2026-10-25T21:00:00Z"},
		"a fall that no grant can reach": {"1", `[{cron: "0 0 1 1 *", duration: 1h, fleetConcurrency: 0}]`, "2026-06-01T00:00:00Z", 1, "", ""},
		"a rise that is far away":        {"1", `[{cron: "0 0 1 1 *", duration: 1h, fleetConcurrency: 9}]`, "2026-06-01T00:00:00Z", 1, "", "2027-01-01T00:00:00Z"},
		"many edges at which nothing is": {"1", `[{cron: "*/10 * * * *", duration: 5m, fleetConcurrency: 1}, {cron: "0 0 * * *", duration: 1h, fleetConcurrency: 7}]`, "2026-06-01T02:00:00Z", 1, "", "2026-06-02T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			b := mustParse(t, data{"fleetConcurrency": tt.plain, "windows": tt.windows}).Budget(mustTime(t, tt.at))
			format := func(at time.Time) string {
				if at.IsZero() {
					return ""
				}
				return at.UTC().Format(time.RFC3339)
			}
			assert.Equal(t, tt.want, b.Concurrency)
			assert.Equal(t, tt.wantFalls, format(b.FallsAt), "falls")
			assert.Equal(t, tt.wantRise, format(b.RisesAt), "rises")
		})
	}
}

// A grant of a day must not outlast a fall in it, however many openings come before.
func TestFallBehindManyOpeningsIsFound(t *testing.T) {
	p := mustParse(t, data{"fleetConcurrency": "10", "fleetGrantDuration": "24h", "windows": `[
{cron: "*/10 * * * *", duration: 5m, fleetConcurrency: 20}, {cron: "2-59/10 * * * *", duration: 5m, fleetConcurrency: 30}, {cron: "0 11 * * *", duration: 1h, fleetConcurrency: 0}]`})
	b := p.Budget(mustTime(t, "2026-03-01T12:08:00Z"))
	assert.EqualValues(t, 10, b.Concurrency)
	assert.Equal(t, mustTime(t, "2026-03-01T12:10:00Z"), b.RisesAt)
	assert.Equal(t, mustTime(t, "2026-03-02T11:00:00Z"), b.FallsAt)
}

// Until FallsAt, the budget is never lower.
func TestBudgetHoldsUntilItFalls(t *testing.T) {
	p := mustParse(t, data{"fleetConcurrency": "3", "windows": `
- {cron: "30 * * * *", duration: 45m, fleetConcurrency: 5}
- {cron: "0 2,3 * * *", duration: 90m, timeZone: Europe/Berlin, fleetConcurrency: 1}
- {cron: "15 */4 * * *", duration: 20m, timeZone: America/New_York, fleetConcurrency: 8}`})
	starts := []time.Time{mustTime(t, "2026-03-28T12:00:00Z"), mustTime(t, "2026-10-24T12:00:00Z"), mustTime(t, "2026-06-01T00:00:00Z")}
	rapid.Check(t, func(t *rapid.T) {
		now := rapid.SampledFrom(starts).Draw(t, "day").Add(time.Duration(rapid.IntRange(0, 2*24*3600).Draw(t, "seconds")) * time.Second)
		b := p.Budget(now)
		end := now.Add(24 * time.Hour)
		if !b.FallsAt.IsZero() {
			require.True(t, b.FallsAt.After(now))
			require.Less(t, p.Budget(b.FallsAt).Concurrency, b.Concurrency)
			end = b.FallsAt
		}
		for at := now; at.Before(end); at = at.Add(7 * time.Minute) {
			require.GreaterOrEqual(t, p.Budget(at).Concurrency, b.Concurrency, "%s", at)
		}
	})
}

// From LowerFrom on, and not before, a lower budget may be in force: also further ahead than grants reach, and
// while it is closed a lower one than it opens with.
func TestBudgetIsNotLowerUntil(t *testing.T) {
	for name, tt := range map[string]struct {
		plain, windows string
		want           string
		wantLeast      int32
	}{
		"never":                  {"10", "", "", 10},
		"it only rises":          {"1", `[{cron: "0 22 * * *", duration: 8h, fleetConcurrency: 9}]`, "", 1},
		"today":                  {"10", `[{cron: "0 22 * * *", duration: 8h, fleetConcurrency: 2}]`, "2026-06-01T22:00:00Z", 2},
		"further than grants":    {"10", `[{cron: "0 0 * * 6", duration: 24h, fleetConcurrency: 2}]`, "2026-06-06T00:00:00Z", 2},
		"in months":              {"10", `[{cron: "0 0 1 1 *", duration: 1h, fleetConcurrency: 2}]`, "2027-01-01T00:00:00Z", 2},
		"after the next opening": {"0", `[{cron: "0 22 * * *", duration: 8h, fleetConcurrency: 9}]`, "2026-06-02T06:00:00Z", 0},
		"it stays open":          {"0", `[{cron: "0 22 * * *", duration: 24h, fleetConcurrency: 9}]`, "2026-07-18T22:00:00Z", 0},
		"behind too many others": {"1", `[{cron: "5-55/10 * * * *", duration: 5m, fleetConcurrency: 3}, {cron: "0 0 1 1 *", duration: 1h, fleetConcurrency: 0}]`, "2026-06-03T12:05:00Z", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustParse(t, data{"fleetConcurrency": tt.plain, "windows": tt.windows})
			now := mustTime(t, "2026-06-01T12:02:00Z")
			b, want := p.Budget(now), time.Time{}
			if tt.want != "" {
				want = mustTime(t, tt.want)
			}
			assert.True(t, want.Equal(b.LowerFrom), b.LowerFrom)
			assert.Equal(t, tt.wantLeast, b.Least)
			from, slots := now, b.Concurrency
			if b.IsClosed() {
				from, slots = b.RisesAt, b.RisesTo
			}
			for at := from; at.Before(want); at = at.Add(17 * time.Minute) {
				require.GreaterOrEqual(t, p.Budget(at).Concurrency, slots, at)
			}
		})
	}
}

// Members use their safe shares at all times.
func TestSafeSharesFitTheLowestBudget(t *testing.T) {
	members := []policy.Member{{Name: "a"}, {Name: "b"}}
	for name, tt := range map[string]struct{ plain, window, want string }{
		"room":         {"4", "2", ""},
		"less in one":  {"4", "1", "which is more than fleetConcurrency, 1 in a window: members use their safe shares at all times"},
		"less outside": {"0", "4", "which is more than fleetConcurrency, 0 outside the windows: members use their safe shares at all times"},
	} {
		errs := mustParse(t, data{"fleetConcurrency": tt.plain, "safeConcurrency": "1", "windows": `[{cron: "0 1 * * *", duration: 1h, fleetConcurrency: ` + tt.window + `}]`}).ValidateMembers(members)
		if tt.want == "" {
			assert.Empty(t, errs, name)
		} else {
			assert.Contains(t, policy.FormatErrors(errs), tt.want, name)
		}
	}
}

func TestInForce(t *testing.T) {
	written, _, errs := mustParse(t, data{"concurrency": "0", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 6}]`}).ForMember("a", nil)
	require.Empty(t, errs)
	before, open := mustTime(t, "2026-06-01T00:30:00Z"), mustTime(t, "2026-06-01T01:00:00Z")

	got, until := policy.InForce(written, true, before)
	assert.Equal(t, written, got, "the agent judges windows itself")
	assert.Zero(t, until)

	got, until = policy.InForce(written, false, before)
	assert.NotContains(t, got, "windows")
	assert.Equal(t, "0", got["concurrency"])
	assert.True(t, until.Equal(open), until)
	now, until := policy.InForce(written, false, open)
	assert.Equal(t, "6", now["concurrency"])
	assert.True(t, until.Equal(open.Add(time.Hour)), until)
	assert.Equal(t, int64(6), policy.ConcurrencyAt(written, open))

	for _, planned := range []map[string]string{got, now, written} {
		assert.True(t, policy.IsInForceSometime(planned, written), planned)
	}
	now["concurrency"] = "5"
	assert.False(t, policy.IsInForceSometime(now, written), "no window has it")
	now["concurrency"], now["retryLimit"] = "6", "9"
	assert.False(t, policy.IsInForceSometime(now, written), "another key differs")

	none, until := policy.InForce(nil, false, open)
	assert.Nil(t, none)
	assert.Zero(t, until)
}

func TestPreviewOfWindows(t *testing.T) {
	now, then := mustParse(t, data{"concurrency": "3"}), mustParse(t, data{"concurrency": "1", "fleetConcurrency": "0", "windows": nightly})
	members := []policy.Member{{Name: "a"}, {Name: "b"}}
	at := mustTime(t, "2026-06-01T21:00:00Z") // 23:00 in Berlin
	assert.Equal(t, `2 of 2 members would change. Concurrency: 2 gain, 0 lose, the fleet's sum goes from 6 to 16 (+10).
The budget of the fleet: fleetConcurrency none→0, windows of fleetConcurrency none→40 at "0 22 * * *" Europe/Berlin for 8h.
2 of 2 members would have windows: concurrency is that in force now, and the next window opens or closes at 2026-06-02T04:00:00Z. fleetConcurrency would be 40 now, and 0 from 2026-06-02T04:00:00Z.
MEMBER  NOW  THEN  CHANGE  OTHER KEYS                        FROM
a       3    8     +5      safeConcurrency -→0, windows 0→1  fleet default
b       3    8     +5      safeConcurrency -→0, windows 0→1  fleet default
`, policy.Preview(now, then, members, at))
	assert.Contains(t, policy.Preview(then, mustParse(t, data{"concurrency": "1", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 9}]`}), members, at), "windows changed")
	assert.Equal(t, int32(0), then.Budget(mustTime(t, "2026-06-01T12:00:00Z")).Concurrency)
	assert.NotContains(t, policy.Preview(nil, now, members, at), "window")
}

func TestOpensAt(t *testing.T) {
	at := func(text string) time.Time { return mustTime(t, text) }
	for name, tt := range map[string]struct {
		data data
		now  string
		want string
	}{
		"no windows":              {data{"concurrency": "0"}, "2026-06-01T00:00:00Z", ""},
		"concurrency is closed":   {data{"concurrency": "0", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 4}]`}, "2026-06-01T00:00:00Z", "2026-06-01T01:00:00Z"},
		"concurrency is open":     {data{"concurrency": "0", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 4}]`}, "2026-06-01T01:00:00Z", ""},
		"it is lower, not closed": {data{"concurrency": "1", "windows": `[{cron: "0 1 * * *", duration: 1h, concurrency: 4}]`}, "2026-06-01T00:00:00Z", ""},
		"the budget is closed":    {data{"fleetConcurrency": "0", "windows": `[{cron: "0 2 * * *", duration: 1h, fleetConcurrency: 4}]`}, "2026-06-01T00:00:00Z", "2026-06-01T02:00:00Z"},
		"both are":                {data{"concurrency": "0", "fleetConcurrency": "0", "windows": `[{cron: "0 1 * * *", duration: 3h, concurrency: 4}, {cron: "0 2 * * *", duration: 1h, fleetConcurrency: 4}]`}, "2026-06-01T00:00:00Z", "2026-06-01T02:00:00Z"},
	} {
		p := mustParse(t, tt.data)
		written, _, errs := p.ForMember("a", nil)
		require.Empty(t, errs)
		want := time.Time{}
		if tt.want != "" {
			want = at(tt.want)
		}
		assert.True(t, want.Equal(p.OpensAt(written, at(tt.now))), name)
	}
}

// What is remembered of the budget is what one finds anew, in whatever order one asks.
func TestBudgetIsRemembered(t *testing.T) {
	written := data{"fleetConcurrency": "3", "windows": `
- {cron: "30 * * * *", duration: 45m, fleetConcurrency: 5}
- {cron: "0 2,3 * * *", duration: 90m, timeZone: Europe/Berlin, fleetConcurrency: 1}
- {cron: "0 0 29 2 *", duration: 1h, fleetConcurrency: 8}`}
	p, begin := mustParse(t, written), mustTime(t, "2026-03-28T12:00:00Z")
	rapid.Check(t, func(t *rapid.T) {
		now := begin.Add(time.Duration(rapid.IntRange(0, 24*3600).Draw(t, "seconds")) * time.Second)
		fresh, _, errs := policy.ParsePolicy(written)
		require.Empty(t, errs)
		want, got := fresh.Budget(now), p.Budget(now)
		require.Equal(t, want.Concurrency, got.Concurrency)
		require.Equal(t, want.RisesAt, got.RisesAt)
		if want.FallsAt.Sub(now) <= 24*time.Hour {
			require.Equal(t, want.FallsAt, got.FallsAt)
		}
		got.Concurrency = 100 // it is the caller's own
		require.Equal(t, want.Concurrency, p.Budget(now).Concurrency)
	})
	now := begin.Add(time.Minute)
	p.Budget(now)
	require.Less(t, testing.AllocsPerRun(10, func() { p.Budget(now.Add(time.Second)) }), 10.0, "each member asks")
}
