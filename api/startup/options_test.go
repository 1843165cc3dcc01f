package startup_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"

	"github.com/pelotech/ot-fleet/api/startup"
)

func TestMetricsOptions(t *testing.T) {
	dir := t.TempDir()
	o := startup.Options{MetricsSecure: true, MetricsCertDir: dir}
	certificate, key, err := cert.GenerateSelfSignedCertKey("ot-agent", nil, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600))
	require.ErrorContains(t, o.CheckCertificate(), "reading the certificate in --metrics-cert-dir", "otherwise the server silently signs its own")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	require.NoError(t, o.CheckCertificate())
	assert.Equal(t, dir, o.MetricsOptions().CertDir)
	assert.NotNil(t, o.MetricsOptions().FilterProvider)

	o.MetricsSecure = false
	require.NoError(t, o.CheckCertificate())
	assert.False(t, o.MetricsOptions().SecureServing)
	assert.Empty(t, o.MetricsOptions().CertDir)
}

// With these values client-go would not limit requests, or two replicas could lead.
func TestOptionsOutOfBoundsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string // empty for none
	}{
		"defaults":                        {},
		"bounds":                          {[]string{"--kube-api-qps=10000", "--leader-elect-lease-duration=2s", "--leader-elect-renew-deadline=1900ms", "--leader-elect-retry-period=100ms"}, ""},
		"no election":                     {[]string{"--leader-elect=false", "--leader-elect-lease-duration=0"}, ""},
		"no requests":                     {[]string{"--kube-api-qps=0"}, "--kube-api-qps=0 must be from 1 to 10000"},
		"requests without a limit":        {[]string{"--kube-api-qps=-1"}, "--kube-api-qps=-1 must be"},
		"no number of requests":           {[]string{"--kube-api-qps=NaN"}, "--kube-api-qps=NaN must be"},
		"endless requests":                {[]string{"--kube-api-qps=Inf"}, "--kube-api-qps=+Inf must be"},
		"others lead before the deadline": {[]string{"--leader-elect-lease-duration=10s"}, "two replicas can lead"},
		"Lease that is stored as shorter": {[]string{"--leader-elect-lease-duration=10500ms"}, "--leader-elect-lease-duration=10.5s must be in whole seconds"},
		"Lease that is stored as none":    {[]string{"--leader-elect-lease-duration=900ms", "--leader-elect-renew-deadline=800ms"}, "must be in whole seconds"},
		"attempts without a pause":        {[]string{"--leader-elect-retry-period=0"}, "--leader-elect-retry-period=0s must be at least 100ms"},
		"one attempt until the deadline":  {[]string{"--leader-elect-retry-period=9s"}, "--leader-elect-renew-deadline=10s must be more than 1.2 times"},
		"each of several is named":        {[]string{"--kube-api-qps=0", "--leader-elect-retry-period=0"}, "--leader-elect-retry-period=0s"},
	} {
		t.Run(name, func(t *testing.T) {
			var o startup.Options
			flags := flag.NewFlagSet("ot-agent", flag.ContinueOnError)
			o.BindFlags(flags, 200)
			require.NoError(t, flags.Parse(append([]string{"--namespace=ot-agent"}, tt.args...)))
			if err := o.Validate(); tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}
