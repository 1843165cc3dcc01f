package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/policy"
)

func TestParseWindows(t *testing.T) {
	const fields = "these are cron, duration, timeZone, concurrency, fleetConcurrency"
	for name, tt := range map[string]struct {
		text    string
		want    policy.Windows
		wantErr string
	}{
		"none":      {text: ""},
		"an empty":  {text: "[]"},
		"a comment": {text: "# none yet"},
		"two": {text: `
- cron: "0 22 * * 1-5"
  duration: 8h
  timeZone: Europe/Berlin
  concurrency: 4
- {cron: "@daily", duration: 5m, concurrency: "0", fleetConcurrency: 100000}
`, want: policy.Windows{
			{Cron: "0 22 * * 1-5", Duration: 8 * time.Hour, TimeZone: "Europe/Berlin", Concurrency: ptr.To[int32](4)},
			{Cron: "@daily", Duration: 5 * time.Minute, Concurrency: ptr.To[int32](0), FleetConcurrency: ptr.To[int32](100000)},
		}},
		"the longest":             {text: `[{cron: "@weekly", duration: 168h, fleetConcurrency: 0}]`, want: policy.Windows{{Cron: "@weekly", Duration: 7 * 24 * time.Hour, FleetConcurrency: ptr.To[int32](0)}}},
		"a cron without quotes":   {text: "- cron: * * * * *", wantErr: `it is not a YAML list of windows: put each cron in quotes, as in cron: "0 22 * * *"`},
		"a word":                  {text: "nights", wantErr: `it is not a list of windows, as in - {cron: "0 22 * * *", duration: 8h, timeZone: Europe/Berlin, concurrency: 4}`},
		"a map":                   {text: `cron: "@daily"`, wantErr: "it is not a list of windows"},
		"a list of words":         {text: "[a]", wantErr: "it is not a list of windows"},
		"nothing in the list":     {text: "- ", wantErr: "[0].cron: it is missing"},
		"a field twice":           {text: `[{cron: "@daily", cron: "@weekly"}]`, wantErr: "it is not a YAML list of windows"},
		"two documents":           {text: "- {cron: \"@daily\", duration: 5m, concurrency: 1}\n---\n- {}", wantErr: "it is more than one YAML document"},
		"a field that is none":    {text: `[{cron: "@daily", duration: 5m, timezone: UTC, concurrency: 1}]`, wantErr: `[0]: "timezone" is not a field of a window: ` + fields},
		"no cron":                 {text: `[{duration: 5m, concurrency: 1}]`, wantErr: `[0].cron: it is missing: name times of the clock, as in "0 22 * * *"`},
		"six fields":              {text: `[{cron: "0 0 22 * * *"}]`, wantErr: `[0].cron: "0 0 22 * * *" is not in the Cron format, as in "0 22 * * 1-5" or @daily: expected exactly 5 fields`},
		"a zone in the cron":      {text: `[{cron: "TZ=UTC 0 22 * * *"}]`, wantErr: "[0].cron: it must not contain a time zone: set timeZone"},
		"a zone and nothing else": {text: `[{cron: "CRON_TZ="}]`, wantErr: "[0].cron: it must not contain a time zone"},
		"a period":                {text: `[{cron: "@every 1h"}]`, wantErr: "[0].cron: it must not use @every"},
		"no date":                 {text: `[{cron: "0 0 30 2 *"}]`, wantErr: `[0].cron: "0 0 30 2 *" matches no date: correct it`},
		"a cron that is a number": {text: `[{cron: 5}]`, wantErr: "[0].cron: it is no text: put it in quotes"},
		"a long cron":             {text: `[{cron: "` + strings.Repeat("1,", 64) + `1 * * * *"}]`, wantErr: "[0].cron: it has 137 characters: the maximum is 128"},
		"the second one":          {text: `[{cron: "@daily", duration: 5m, concurrency: 1}, {cron: "@daily"}]`, wantErr: `[1].duration: "" is not a duration`},
		"too short":               {text: `[{cron: "@daily", duration: 4m59s}]`, wantErr: "[0].duration: 4m59s is too short: the minimum is 5m0s"},
		"too long":                {text: `[{cron: "@daily", duration: 169h}]`, wantErr: "[0].duration: 169h0m0s is too long: the maximum is 168h0m0s"},
		"a duration of no unit":   {text: `[{cron: "@daily", duration: 90}]`, wantErr: "[0].duration: it is no text: put it in quotes"},
		"a zone that is none":     {text: `[{cron: "@daily", duration: 5m, timeZone: Europe/Atlantis}]`, wantErr: `[0].timeZone: "Europe/Atlantis" is unknown: use a name such as Europe/Berlin`},
		"the process's zone":      {text: `[{cron: "@daily", duration: 5m, timeZone: Local}]`, wantErr: "[0].timeZone: the zone Local is another one in each process"},
		"a path":                  {text: `[{cron: "@daily", duration: 5m, timeZone: ../../etc/passwd}]`, wantErr: "[0].timeZone: "},
		"no number":               {text: `[{cron: "@daily", duration: 5m}]`, wantErr: "[0].concurrency: it is missing: say how many imports may run while the window is open"},
		"a number that is none":   {text: `[{cron: "@daily", duration: 5m, concurrency: many}]`, wantErr: `[0].concurrency: "many" is not a whole number from 0 to 256`},
		"half an import":          {text: `[{cron: "@daily", duration: 5m, concurrency: 1.5}]`, wantErr: `[0].concurrency: "1.5" is not a whole number from 0 to 256`},
		"a negative number":       {text: `[{cron: "@daily", duration: 5m, concurrency: -1}]`, wantErr: "[0].concurrency: -1 is too small: the minimum is 0"},
		"too many":                {text: `[{cron: "@daily", duration: 5m, concurrency: 257}]`, wantErr: "[0].concurrency: 257 is too large: the maximum is 256"},
		"too many of the fleet":   {text: `[{cron: "@daily", duration: 5m, fleetConcurrency: 100001}]`, wantErr: "[0].fleetConcurrency: 100001 is too large: the maximum is 100000"},
		"33 windows":              {text: "[" + strings.Repeat("{},", 33) + "]", wantErr: "there are 33 windows: the maximum is 32"},
		"aliases":                 {text: `[{cron: "@daily", duration: &a 5m, concurrency: 1}, {cron: "@weekly", duration: *a, concurrency: 2}]`, want: policy.Windows{{Cron: "@daily", Duration: 5 * time.Minute, Concurrency: ptr.To[int32](1)}, {Cron: "@weekly", Duration: 5 * time.Minute, Concurrency: ptr.To[int32](2)}}},
		"aliases without end":     {text: "- &a [" + strings.Repeat("1,", 6000) + "1]\n- &b [" + strings.Repeat("*a,", 60) + "*a]\n", wantErr: "its YAML aliases (*) repeat too much: write the values out instead"},
		"a terminal escape":       {text: "- \"\\e[31m\": 1", wantErr: "is not a field of a window"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := policy.ParseWindows(tt.text)
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				assert.NotContains(t, err.Error(), "\x1b")
				assert.Less(t, len(err.Error()), 512)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			again, err := policy.ParseWindows(got.String())
			require.NoError(t, err)
			assert.Equal(t, got, again, "what is stored is read back")
		})
	}
}

const nightly = `[{cron: "0 22 * * *", duration: 8h, timeZone: Europe/Berlin, concurrency: 4}]`

// Only the hub judges fleetConcurrency. Its own cluster may have one ConfigMap for both, so
// that it is ignored there as the key of that name is; in a plan it is an error.
func TestFleetConcurrencyOfAWindowIsTheHubs(t *testing.T) {
	text := `[{cron: "@daily", duration: 5m, fleetConcurrency: 9}, {cron: "@daily", duration: 5m, concurrency: 1, fleetConcurrency: 9}]`
	_, _, errs := policy.Parse(map[string]string{"windows": text})
	require.Len(t, errs, 1)
	assert.Equal(t, "windows[0].fleetConcurrency: only the hub's own policy can set it: remove it here", errs[0].Error())

	p, ignored, errs := policy.ParseConfigMap(map[string]string{"windows": text, "fleetConcurrency": "7"})
	require.Empty(t, errs)
	assert.Equal(t, []string{"fleetConcurrency", "windows[0].fleetConcurrency", "windows[1].fleetConcurrency"}, ignored)
	assert.Equal(t, policy.Windows{{Cron: "@daily", Duration: 5 * time.Minute, Concurrency: ptr.To[int32](1)}}, p.Windows)
}

func TestWindowsAreAKeyOfPlanAndConfigMap(t *testing.T) {
	for _, parse := range []func(map[string]string) (policy.Policy, []string, []policy.KeyError){policy.Parse, policy.ParseConfigMap} {
		p, unknown, errs := parse(map[string]string{"concurrency": "0", "windows": nightly})
		require.Empty(t, errs)
		require.Empty(t, unknown)
		require.Len(t, p.Windows, 1)
		again, unknown, errs := parse(p.ToData())
		require.Empty(t, errs)
		require.Empty(t, unknown)
		assert.True(t, p.Equal(again))
		again.Windows[0].TimeZone = "UTC"
		assert.False(t, p.Equal(again))

		_, _, errs = parse(map[string]string{"windows": `[{cron: "@daily", duration: 1s, concurrency: 1}]`})
		require.Len(t, errs, 1)
		assert.Equal(t, "windows", errs[0].Key)
		assert.Equal(t, "windows[0].duration: 1s is too short: the minimum is 5m0s", errs[0].Error())
	}
	assert.NotContains(t, policy.Default().ToData(), "windows", "an older agent would report an unknown key")
}

func TestWindowsForMembers(t *testing.T) {
	both := policy.Windows{
		{Cron: "@daily", Duration: time.Hour, FleetConcurrency: ptr.To[int32](9)},
		{Cron: "@weekly", Duration: time.Hour, Concurrency: ptr.To[int32](1), FleetConcurrency: ptr.To[int32](9)},
	}
	assert.Equal(t, policy.Windows{{Cron: "@weekly", Duration: time.Hour, Concurrency: ptr.To[int32](1)}}, both.ForMembers())
	assert.NotNil(t, both[1].FleetConcurrency, "the list itself stays as it is")
	assert.Empty(t, policy.Windows(nil).ForMembers().String())
}
