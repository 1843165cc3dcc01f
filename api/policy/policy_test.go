package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/policy"
)

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		data        map[string]string
		want        func(*policy.Policy)
		wantUnknown []string
		wantErrs    []string
	}{
		"empty is the default":         {want: func(*policy.Policy) {}},
		"the proposal's keys":          {data: map[string]string{"concurrency": "5", "retryLimit": "2", "retryBackoffDuration": "5m"}, want: func(p *policy.Policy) { p.Concurrency, p.RetryLimit, p.RetryBackoff = 5, 2, 5*time.Minute }},
		"white space is no error":      {data: map[string]string{"concurrency": " 7\n"}, want: func(p *policy.Policy) { p.Concurrency = 7 }},
		"zero pauses":                  {data: map[string]string{"concurrency": "0"}, want: func(p *policy.Policy) { p.Concurrency = 0 }},
		"the most":                     {data: map[string]string{"concurrency": "256"}, want: func(p *policy.Policy) { p.Concurrency = 256 }},
		"a long backoff lifts its cap": {data: map[string]string{"retryBackoffDuration": "3h"}, want: func(p *policy.Policy) { p.RetryBackoff, p.MaxRetryBackoff = 3*time.Hour, 3*time.Hour }},
		"preflight off":                {data: map[string]string{"preflight": "false"}, want: func(p *policy.Policy) { p.Preflight = false }},
		"internal sources":             {data: map[string]string{"preflightAllow": "10.0.0.0/8,\n *.Example.com"}, want: func(p *policy.Policy) { p.PreflightAllow = policy.PreflightAllow{"10.0.0.0/8", "*.example.com"} }},
		"an entry that is neither":     {data: map[string]string{"preflightAllow": "10.0.0.0/8 http://a"}, wantErrs: []string{`preflightAllow: "http://a" is neither a CIDR such as 10.20.0.0/16 nor a host such as images.example.com or *.example.com, without scheme, port and path`}},
		"huge":                         {data: map[string]string{"concurrency": "1000"}, wantErrs: []string{"concurrency: 1000 is too large: the maximum is 256"}},
		"beyond any number":            {data: map[string]string{"concurrency": "99999999999999999999"}, wantErrs: []string{"concurrency: \"99999999999999999999\" is not a whole number from 0 to 256"}},
		"negative":                     {data: map[string]string{"concurrency": "-1"}, wantErrs: []string{"concurrency: -1 is too small: the minimum is 0"}},
		"a word":                       {data: map[string]string{"concurrency": "three"}, wantErrs: []string{"concurrency: \"three\" is not a whole number from 0 to 256"}},
		"a number without a unit":      {data: map[string]string{"retryBackoffDuration": "5"}, wantErrs: []string{"retryBackoffDuration: \"5\" is not a duration such as 30s, 5m or 1h30m"}},
		"negative duration":            {data: map[string]string{"stallTimeout": "-5m"}, wantErrs: []string{"stallTimeout: -5m0s is too short: the minimum is 1s"}},
		"a cap below what it caps":     {data: map[string]string{"retryBackoffDuration": "5m", "maxRetryBackoff": "1m"}, wantErrs: []string{"maxRetryBackoff: 1m0s is less than retryBackoffDuration, 5m0s"}},
		"all of it at once":            {data: map[string]string{"maxRetryBackoff": "59s", "preflightAllow": "0"}, wantErrs: []string{"maxRetryBackoff: 59s is less than retryBackoffDuration, 1m0s", "preflightAllow: \"0\" is neither a CIDR such as 10.20.0.0/16 nor a host such as images.example.com or *.example.com, without scheme, port and path"}},
		"neither true nor false":       {data: map[string]string{"preflight": "maybe"}, wantErrs: []string{"preflight: \"maybe\" is neither true nor false"}},
		"an unknown key":               {data: map[string]string{"concurency": "5", "retryLimit": "1"}, want: func(p *policy.Policy) { p.RetryLimit = 1 }, wantUnknown: []string{"concurency"}},
		"every wrong key is named":     {data: map[string]string{"retryLimit": "x", "concurrency": ""}, wantErrs: []string{"concurrency: \"\" is not a whole number from 0 to 256", "retryLimit: \"x\" is not a whole number from 0 to 100"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, unknown, errs := policy.Parse(tt.data)
			assert.Equal(t, tt.wantUnknown, unknown)
			var texts []string
			for _, e := range errs {
				texts = append(texts, e.Error())
			}
			require.Equal(t, tt.wantErrs, texts)
			if tt.want != nil {
				want := policy.Default()
				tt.want(&want)
				assert.Equal(t, want, got)
			} else {
				assert.Zero(t, got, "nothing of a policy with errors is to be used")
			}
		})
	}
}

func TestParseRoundTripsToData(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := policy.Policy{
			Concurrency:     rapid.Int32Range(0, 256).Draw(t, "concurrency"),
			RetryLimit:      rapid.Int32Range(0, 100).Draw(t, "retryLimit"),
			RetryBackoff:    time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "backoff")),
			MaxRetryBackoff: time.Duration(rapid.Int64Range(int64(time.Hour), int64(48*time.Hour)).Draw(t, "most")),
			AttemptTimeout:  time.Duration(rapid.Int64Range(int64(time.Second), int64(48*time.Hour)).Draw(t, "attempt")),
			StallTimeout:    time.Duration(rapid.Int64Range(int64(time.Second), int64(48*time.Hour)).Draw(t, "stall")),
			MaxPriority:     rapid.Int32Range(0, 1000).Draw(t, "priority"),
			ResyncLimit:     rapid.Int32Range(0, 100).Draw(t, "resync"),
			Preflight:       rapid.Bool().Draw(t, "preflight"),
			PreflightAllow:  generatePreflightAllow().Draw(t, "preflightAllow"),
		}
		got, unknown, errs := policy.Parse(p.ToData())
		require.Empty(t, unknown)
		require.Empty(t, errs)
		require.Equal(t, p, got)
	})
}

func TestParseNeverAcceptsMoreThanTheLedgerHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`-?[0-9]{1,25}`)).Draw(t, "concurrency")
		p, _, errs := policy.Parse(map[string]string{"concurrency": text})
		if len(errs) == 0 {
			require.LessOrEqual(t, p.Concurrency, int32(256))
			require.GreaterOrEqual(t, p.Concurrency, int32(0))
		} else {
			require.True(t, strings.HasPrefix(errs[0].Error(), "concurrency: "))
		}
	})
}
