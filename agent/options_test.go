package main

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

// A value that breaks a promise is refused when the agent starts.
func TestFlagsOutOfBoundsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string // empty for none
	}{
		"defaults":                         {},
		"bounds":                           {[]string{"--report-interval=5m", "--report-heartbeat=5m", "--hub-renew-after=1s"}, ""},
		"events beyond what the hub reads": {[]string{"--report-interval=199ms"}, "--report-interval=199ms must be from 200ms to 20s: otherwise the hub cuts the member off"},
		"report after the heartbeat":       {[]string{"--report-interval=3s", "--report-heartbeat=2s"}, "--report-interval=3s must be from 200ms to 2s"},
		"heartbeats without a pause":       {[]string{"--report-heartbeat=999ms"}, "--report-heartbeat=999ms must be from 1s to 5m0s"},
		"heartbeats that hide a loss":      {[]string{"--report-heartbeat=1h"}, "--report-heartbeat=1h0m0s must be from 1s to 5m0s"},
		"renewal before the token":         {[]string{"--hub-renew-after=-1s"}, "--hub-renew-after=-1s must be from 0s"},
		"of both programs":                 {[]string{"--kube-api-qps=0"}, "--kube-api-qps=0 must be from 1 to 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			var o options
			flags := flag.NewFlagSet("ot-agent", flag.ContinueOnError)
			o.bindFlags(flags)
			require.NoError(t, flags.Parse(append([]string{"--namespace=ot-agent"}, tt.args...)))
			if err := o.validate(); tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}
