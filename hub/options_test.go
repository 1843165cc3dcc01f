package main

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/startup"
)

// A hub that installs no agents starts without the permissions for that, for instance
// those of an older chart.
func TestInstallRightsAreNeededOnlyWithInstalls(t *testing.T) {
	looks := func(verb string) health.Permission {
		return health.Permission{Namespace: "ot-hub", Resource: "configmaps", Verb: verb}
	}
	o := options{Options: startup.Options{Namespace: "ot-hub", Policy: types.NamespacedName{Namespace: "sync-operator", Name: "policy"}}}
	off, err := o.requiredPermissions()
	require.NoError(t, err)
	o.installAgents = true
	on, err := o.requiredPermissions()
	require.NoError(t, err)
	for _, verb := range []string{"list", "watch"} {
		assert.NotContains(t, off, looks(verb))
		assert.Contains(t, on, looks(verb))
	}
	assert.Contains(t, off, looks("get"), "the policy in force is kept there")
	assert.Len(t, on, len(off)+2, "and nothing else")
	policy := looks("watch")
	policy.Namespace = "sync-operator"
	assert.Contains(t, off, policy)

	o = options{Options: startup.Options{Namespace: "ot-hub", Policy: types.NamespacedName{Namespace: "ot-hub", Name: "policy"}}}
	off, err = o.requiredPermissions()
	require.NoError(t, err)
	assert.Contains(t, off, looks("watch"), "the policy is watched in the hub's own namespace")
}

// A value that breaks a promise is refused when the hub starts.
func TestFlagsOutOfBoundsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string // empty for none
	}{
		"defaults":                    {},
		"bounds":                      {[]string{"--member-timeout=1s", "--probe-interval=5m", "--install-backoff=30m", "--join-token-life=10m", "--agent-token-life=10m"}, ""},
		"no time to answer":           {[]string{"--member-timeout=0"}, "--member-timeout=0s must be from 1s to 10m0s"},
		"silence of hours":            {[]string{"--member-timeout=1h"}, "--member-timeout=1h0m0s must be from 1s to 10m0s"},
		"probes without a pause":      {[]string{"--probe-interval=1ms"}, "--probe-interval=1ms must be from 1s to 5m0s"},
		"loss that nobody notices":    {[]string{"--probe-interval=1h"}, "--probe-interval=1h0m0s must be from 1s to 5m0s"},
		"attempts without a pause":    {[]string{"--install-backoff=0"}, "--install-backoff=0s must be from 100ms to 30m0s"},
		"first wait over the longest": {[]string{"--install-backoff=31m"}, "--install-backoff=31m0s must be from 100ms to 30m0s"},
		"tokens that nobody issues":   {[]string{"--join-token-life=9m"}, "--join-token-life=9m0s must be from 10m0s"},
		"tokens without end":          {[]string{"--agent-token-life=438000h"}, "--agent-token-life=438000h0m0s must be from 10m0s to 8760h0m0s"},
		"names of the dashboard":      {[]string{"--ui-hosts=fleet.example.com, FLEET,10.0.0.1,::1"}, ""},
		"an address as a name of it":  {[]string{"--ui-hosts=fleet.example.com,https://fleet.example.com"}, "--ui-hosts has \"https://fleet.example.com\", which is no host name"},
		"a name of it with its port":  {[]string{"--ui-hosts=fleet.example.com:8443"}, "without https:// and port"},
		"a Prometheus":                {[]string{"--prometheus-url=http://prometheus.monitoring:9090", `--prometheus-selector=namespace="ot-hub"`}, ""},
		"no Prometheus of that URL":   {[]string{"--prometheus-url=prometheus:9090"}, "--prometheus-url=prometheus:9090 is not the URL of a Prometheus"},
		"a selector of nothing":       {[]string{`--prometheus-selector=namespace="ot-hub"`}, "need --prometheus-url"},
		"of both programs":            {[]string{"--kube-api-qps=-1"}, "--kube-api-qps=-1 must be from 1 to 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			var o options
			flags := flag.NewFlagSet("ot-hub", flag.ContinueOnError)
			o.bindFlags(flags)
			require.NoError(t, flags.Parse(append([]string{"--namespace=ot-hub", "--replica-name=one"}, tt.args...)))
			if err := o.validate(); tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}
