//go:build linux

package mirror_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// mirrorPage has the configuration that the mirrors run.
const mirrorPage = "docs/operate/mirrors.md"

// mirror is an nginx with the configuration of the page and a cache of its own.
type mirror struct {
	address   string // host and port
	directory string
	process   *process.Process
}

// mainConfig is what a distribution's nginx.conf has around a file of conf.d.
const mainConfig = `daemon off;
worker_processes 1;
error_log %[1]s/error.log warn;
pid %[1]s/nginx.pid;
%[2]s
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path %[1]s/body;
    proxy_temp_path %[1]s/proxy;
    fastcgi_temp_path %[1]s/fastcgi;
    uwsgi_temp_path %[1]s/uwsgi;
    scgi_temp_path %[1]s/scgi;
    include %[1]s/mirror.conf;
}
`

// newMirror writes the configuration of a mirror of the origin. Only addresses and files differ from
// the page's; change is for what a test needs beyond that, in pairs of old and new text.
func newMirror(t *testing.T, address, origin string, keys keyFiles, change ...string) *mirror {
	t.Helper()
	m := &mirror{address: address, directory: t.TempDir()}
	block := pages.Read(t, mirrorPage).Block(t, "nginx", "slice")
	for replaced := append([]string{
		"/var/cache/nginx/images", filepath.Join(m.directory, "cache"),
		"listen 443 ssl;", "listen " + address + " ssl;",
		"/etc/nginx/mirror.crt", keys.certificate,
		"/etc/nginx/mirror.key", keys.key,
		"https://images.example.com", "https://" + origin,
		"/etc/ssl/certs/ca-certificates.crt", keys.certificate,
	}, change...); len(replaced) > 0; replaced = replaced[2:] {
		require.Equal(t, 1, strings.Count(block, replaced[0]), "%s: %q in the configuration", mirrorPage, replaced[0])
		block = strings.Replace(block, replaced[0], replaced[1], 1)
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user root;" // workers have to reach the directory
	}
	require.NoError(t, os.WriteFile(filepath.Join(m.directory, "mirror.conf"), []byte(block), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(m.directory, "nginx.conf"), fmt.Appendf(nil, mainConfig, m.directory, user), 0o600))
	t.Cleanup(func() {
		if m.process != nil {
			m.kill()
		}
		if t.Failed() {
			t.Logf("nginx at %s:\n%s", address, m.errors())
		}
	})
	return m
}

// start starts nginx and waits until it listens.
func (m *mirror) start(t *testing.T) {
	t.Helper()
	path, err := exec.LookPath("nginx")
	require.NoError(t, err)
	m.process, err = process.Start(process.Options{
		Path: path, Args: []string{"-p", m.directory, "-c", filepath.Join(m.directory, "nginx.conf")}, LogFile: filepath.Join(m.directory, "output.log"),
	})
	require.NoError(t, err)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.False(t, m.process.HasEnded(), "nginx at %s has ended: %s", m.address, m.errors())
		connection, err := net.DialTimeout("tcp", m.address, time.Second)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	}), "nginx at %s does not listen", m.address)
}

// kill kills nginx with its workers and waits for its end.
func (m *mirror) kill() {
	m.process.Kill()
	_ = m.process.Wait() // it was killed
}

// errors returns nginx's log of errors.
func (m *mirror) errors() string {
	var text strings.Builder
	for _, name := range []string{"error.log", "output.log"} {
		content, err := os.ReadFile(filepath.Join(m.directory, name))
		if err == nil {
			text.Write(content)
		}
	}
	return text.String()
}

// url returns that of a path at the mirror.
func (m *mirror) url(path string) string { return "https://" + m.address + path }
