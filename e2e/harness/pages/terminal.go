//go:build linux

package pages

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
)

// Terminal is a shell in a folder of its own, with scripts/ and charts/ in it, a kubectl and helm
// with a context for each cluster, and the plugin kubectl ot.
type Terminal struct {
	// Directory is where commands run.
	Directory string
	path      string
}

// OpenTerminal opens a terminal. contexts are the paths of kubeconfigs by the name of the context
// that each becomes; current is the current one.
func OpenTerminal(t *testing.T, current string, contexts map[string]string) *Terminal {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), binaries.Kubectl, binaries.Helm)
	require.NoError(t, err)
	ot, err := plugin.Build()
	require.NoError(t, err)
	path := strings.TrimPrefix(programs.PathVariable(), "PATH=")
	term := &Terminal{Directory: t.TempDir(), path: "PATH=" + filepath.Dir(ot) + string(filepath.ListSeparator) + path}
	for _, folder := range []string{"scripts", "charts"} {
		target, err := filepath.Abs(filepath.Join(Root, folder))
		require.NoError(t, err)
		require.NoError(t, os.Symlink(target, filepath.Join(term.Directory, folder)))
	}
	merged := clientcmdapi.NewConfig()
	for name, path := range contexts {
		one, err := clientcmd.LoadFromFile(path)
		require.NoError(t, err)
		context := one.Contexts[one.CurrentContext]
		merged.Clusters[name], merged.AuthInfos[name] = one.Clusters[context.Cluster], one.AuthInfos[context.AuthInfo]
		merged.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	merged.CurrentContext = current
	require.NoError(t, clientcmd.WriteToFile(*merged, filepath.Join(term.Directory, "kubeconfig")))
	return term
}

// Run runs a command and returns its output.
func (term *Terminal) Run(t *testing.T, command string) (string, error) {
	t.Helper()
	out, err := term.command(t.Context(), command).CombinedOutput()
	return string(out), err
}

func (term *Terminal) command(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", command)
	cmd.Dir = term.Directory
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a command may wait for hours
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(term.Directory, "kubeconfig"), term.path)
	return cmd
}

// Start runs a command until the test ends, and returns the first match of a pattern in its output,
// with its submatches.
func (term *Terminal) Start(t *testing.T, command string, wanted *regexp.Regexp) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := term.command(ctx, "exec "+command)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	var said strings.Builder
	for lines := bufio.NewScanner(output); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if found := wanted.FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, output) }() // a full pipe would stop it
			return found
		}
	}
	require.Failf(t, "the command has ended", "%s does not say %s:\n%s", command, wanted, said.String())
	return nil
}

// MustRun runs a command that must succeed and returns its output.
func (term *Terminal) MustRun(t *testing.T, command string) string {
	t.Helper()
	output, err := term.Run(t, command)
	require.NoError(t, err, "%s\n%s", command, output)
	return output
}

// WriteFile writes a file that a command names.
func (term *Terminal) WriteFile(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(term.Directory, name), []byte(strings.TrimLeft(content, "\n")), 0o600))
}
