package startup_test

import (
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
