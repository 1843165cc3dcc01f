//go:build linux

// Package mirror_test shows that a site downloads an image once from its origin: three sites, each
// with an nginx that runs the configuration of docs/operate/mirrors.md, and four clusters. One
// cluster of each site has an agent; the others are fake members. The hub and its overrides are
// real, and so are all requests: importers ask what CDI's importer was seen to ask.
package mirror_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"

	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// sites by the address of their mirror, which is the value of the clusters' label.
var sites = []string{"127.0.0.11", "127.0.0.12", "127.0.0.13"}

// slice is that of the page's configuration.
const slice = 4 << 20

// requireNginx skips a test where there is no nginx with slices.
func requireNginx(t *testing.T) {
	t.Helper()
	if err := findNginx(); err != nil {
		t.Skip(err)
	}
}

func findNginx() error {
	path, err := exec.LookPath("nginx")
	if err != nil {
		return fmt.Errorf("nginx is not installed, as by apt-get install nginx-light: %w", err)
	}
	built, err := exec.Command(path, "-V").CombinedOutput()
	if err != nil || !bytes.Contains(built, []byte("http_slice_module")) {
		return fmt.Errorf("%s has no module slice (%v): %s", path, err, built)
	}
	return nil
}

// keyFiles are the certificate and key of origin and mirrors. The certificate is its own authority.
type keyFiles struct {
	certificate, key string
	authority        []byte
	pair             tls.Certificate
}

func newKeyFiles(directory string) (files keyFiles, err error) {
	var addresses []net.IP
	for _, site := range sites {
		addresses = append(addresses, net.ParseIP(site))
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", addresses, nil)
	if err != nil {
		return files, err
	}
	files = keyFiles{certificate: filepath.Join(directory, "mirror.crt"), key: filepath.Join(directory, "mirror.key"), authority: certificate}
	if files.pair, err = tls.X509KeyPair(certificate, key); err != nil {
		return files, err
	}
	return files, errors.Join(os.WriteFile(files.certificate, certificate, 0o600), os.WriteFile(files.key, key, 0o600))
}

// newContent is an image of some slices and a part of one, unlike any other.
func newContent(slices int) []byte {
	content := make([]byte, slices*slice+12345)
	_, _ = rand.Read(content) // never fails
	return content
}

// newPort is a port that is free at all sites.
func newPort(t *testing.T) string {
	t.Helper()
	port, err := process.FreePort()
	require.NoError(t, err)
	return fmt.Sprint(port)
}

// newOrigin starts an origin until the test ends.
func newOrigin(t *testing.T) (*origin, keyFiles) {
	t.Helper()
	requireNginx(t)
	keys, err := newKeyFiles(t.TempDir())
	require.NoError(t, err)
	source := startOrigin(keys.pair)
	t.Cleanup(source.Close)
	return source, keys
}
