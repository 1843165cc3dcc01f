//go:build linux

package chart_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"
)

// writeCertificate makes a certificate where a program looks for one, and returns it.
func writeCertificate(t *testing.T, directory string) string {
	t.Helper()
	shown, key, err := cert.GenerateSelfSignedCertKey("ot-agent.ot-agent.svc", nil, nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(directory, "tls.key"), key, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(directory, "tls.crt"), shown, 0o600))
	parsed, err := cert.ParseCertsPEM(shown)
	require.NoError(t, err)
	return parsed[0].SerialNumber.String()
}

// servedCertificate is the certificate that is shown where a URL leads; none while nobody listens.
func servedCertificate(t *testing.T, url string) string {
	t.Helper()
	connection, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(url, "https://"), "/metrics"))
	if err != nil {
		return ""
	}
	defer func() { _ = connection.Close() }()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// A certificate of one's own is a Secret that both the program and its Pod are told of.
func TestMetricsCertificate(t *testing.T) {
	for name := range chartPaths {
		_, deployment := renderWorkload(t, name, `{}`)
		for _, arg := range deployment("spec", "template", "spec", "containers", "0", "args").([]any) {
			assert.NotContains(t, arg, "--metrics-cert-dir")
		}
		_, deployment = renderWorkload(t, name, `{metrics: {certificate: {secretName: ot-metrics}}, extraVolumes: [{name: tmp, emptyDir: {}}], extraVolumeMounts: [{name: tmp, mountPath: /tmp}]}`)
		assert.Contains(t, deployment("spec", "template", "spec", "containers", "0", "args"), "--metrics-cert-dir=/etc/"+name+"/metrics-certificate")
		assert.Equal(t, parseYAML(t, `[{name: metrics-certificate, mountPath: /etc/`+name+`/metrics-certificate, readOnly: true}, {name: tmp, mountPath: /tmp}]`), deployment("spec", "template", "spec", "containers", "0", "volumeMounts"))
		assert.Equal(t, parseYAML(t, `[{name: metrics-certificate, secret: {secretName: ot-metrics}}, {name: tmp, emptyDir: {}}]`), deployment("spec", "template", "spec", "volumes"))
	}
}
