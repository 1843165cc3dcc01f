package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"
)

func TestMetricsServingOptions(t *testing.T) {
	given := t.TempDir()
	shown, key, err := cert.GenerateSelfSignedCertKey("ot-agent", nil, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(given, "tls.crt"), shown, 0o600))
	_, err = metricsOptions(options{metricsSecure: true, metricsCertDir: given})
	require.ErrorContains(t, err, "reading the certificate in --metrics-cert-dir", "a certificate of its own would be told to nobody")

	require.NoError(t, os.WriteFile(filepath.Join(given, "tls.key"), key, 0o600))
	served, err := metricsOptions(options{metricsSecure: true, metricsCertDir: given})
	require.NoError(t, err)
	assert.Equal(t, given, served.CertDir)
	assert.NotNil(t, served.FilterProvider)

	served, err = metricsOptions(options{metricsCertDir: given})
	require.NoError(t, err)
	assert.False(t, served.SecureServing)
	assert.Empty(t, served.CertDir)
}
