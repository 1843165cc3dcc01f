//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// startMarked starts a process with the mark of a fleet, as a crash may leave it.
func startMarked(t *testing.T, b backgroundFleet) *exec.Cmd {
	cmd := exec.Command("sleep", "1000")
	cmd.Env = append(os.Environ(), markVariable+"="+string(b))
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestLockIsHeldOnce(t *testing.T) {
	b := backgroundFleet(filepath.Join(t.TempDir(), "up"))
	lock, err := b.lock()
	require.NoError(t, err)
	require.NotNil(t, lock, "nobody has it")
	second, err := b.lock()
	require.NoError(t, err)
	require.Nil(t, second, "it is held")

	// Whoever removes the directory has ended the fleet: another one may begin.
	require.NoError(t, os.RemoveAll(string(b)))
	require.False(t, b.isLockFile(lock), "its file was removed")
	next, err := b.lock()
	require.NoError(t, err)
	require.NotNil(t, next)
	require.False(t, b.isLockFile(lock), "another file has its name")
	require.NoError(t, b.removeFiles(lock))
	require.True(t, b.isLockFile(next), "the fleet before removes nothing of the next one")
	require.NoError(t, b.remove(next))
	require.NoDirExists(t, string(b))
}

// A fleet that ends by itself leaves nothing, also of what others put into its directory.
func TestRemoveFiles(t *testing.T) {
	b := backgroundFleet(filepath.Join(t.TempDir(), "up"))
	lock, err := b.lock()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(b.path("kubeconfig.lock"), nil, 0o600))
	require.NoError(t, os.MkdirAll(b.logs(), 0o700))
	require.NoError(t, b.removeFiles(lock))
	require.NoDirExists(t, string(b))
	next, err := b.lock()
	require.NoError(t, err)
	require.NotNil(t, next, "the next fleet may begin")
	require.NoError(t, b.remove(next))
}

// A fleet that was killed leaves processes and files; those of another fleet stay.
func TestCleanEndsWhatIsLeft(t *testing.T) {
	b, other := backgroundFleet(filepath.Join(t.TempDir(), "up")), backgroundFleet(filepath.Join(t.TempDir(), "up"))
	lock, err := b.lock()
	require.NoError(t, err)
	leftovers, err := b.clean(t.Context())
	require.NoError(t, err)
	require.False(t, leftovers, "there was none")

	left, foreign := startMarked(t, b), startMarked(t, other)
	require.NoError(t, os.MkdirAll(filepath.Join(b.temporary(), "etcd"), 0o700))
	require.NoError(t, os.WriteFile(b.stateFile(), []byte(`{}`), 0o600))
	require.Len(t, b.listProcesses(), 1)
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()
	leftovers, err = b.clean(t.Context())
	require.NoError(t, err)
	require.True(t, leftovers)
	require.Error(t, <-ended, "it was killed")
	require.Empty(t, b.listProcesses())
	entries, err := os.ReadDir(string(b))
	require.NoError(t, err)
	require.Len(t, entries, 1, "the lock alone")
	require.NoError(t, b.remove(lock))
	require.Equal(t, []fleetProcess{{pid: foreign.Process.Pid, arguments: []string{"sleep", "1000", ""}}}, other.listProcesses())
}

// A fleet whose process ended without removing anything is ended by down.
func TestDownAfterACrash(t *testing.T) {
	b := backgroundFleet(filepath.Join(t.TempDir(), "up"))
	require.NoError(t, b.down(t.Context()), "there is none")
	require.NoDirExists(t, string(b))

	left := startMarked(t, b)
	ended := make(chan error, 1)
	go func() { ended <- left.Wait() }()
	require.NoError(t, os.MkdirAll(b.logs(), 0o700))
	require.ErrorContains(t, b.down(t.Context()), "files that are no fleet's")
	require.DirExists(t, b.logs(), "nothing is removed that may be somebody else's")
	require.NoError(t, os.WriteFile(b.lockFile(), nil, 0o600))
	require.NoError(t, b.down(t.Context()))
	require.Error(t, <-ended)
	require.NoDirExists(t, string(b))
}

func TestServeNeedsTheLock(t *testing.T) {
	b := backgroundFleet(filepath.Join(t.TempDir(), "up"))
	cmd := exec.Command(os.Args[0], serveVerb, string(b))
	cmd.Env = append(os.Environ(), "OT_FLEET_TEST_SERVE=1")
	output, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "was not handed over")
}

func TestMain(m *testing.M) {
	if os.Getenv("OT_FLEET_TEST_SERVE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The dashboard of a fleet is ended, and nothing else: neither the rest of it, nor another fleet's.
func TestEndDashboard(t *testing.T) {
	b, other := backgroundFleet(filepath.Join(t.TempDir(), "up")), backgroundFleet(filepath.Join(t.TempDir(), "up"))
	startDashboard := func(b backgroundFleet) *exec.Cmd {
		cmd := exec.Command("sh", "-c", "read until", dashboardVerb)
		cmd.Args[0] = "/checkout/bin/kubectl-ot"
		cmd.Env = append(os.Environ(), markVariable+"="+string(b))
		_, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	rest, ended, foreign := startMarked(t, b), startDashboard(b), startDashboard(other)
	require.Len(t, b.listProcesses(), 2)
	b.endDashboard()
	require.Error(t, ended.Wait())
	require.Equal(t, rest.Process.Pid, b.listProcesses()[0].pid)
	require.Equal(t, foreign.Process.Pid, other.listProcesses()[0].pid)
}
