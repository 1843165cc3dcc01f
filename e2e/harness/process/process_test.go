//go:build linux

package process_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

const (
	parentVariable = "OT_FLEET_TEST_PARENT"
	portsVariable  = "OT_FLEET_TEST_PORTS"
	// patience is for a machine that has much else to do.
	patience = 2 * time.Minute
)

// TestMain lets this binary play the parent that comes to a bad end, and another
// program that asks for ports.
func TestMain(m *testing.M) {
	if end := os.Getenv(parentVariable); end != "" {
		runParent(end)
	}
	if os.Getenv(portsVariable) != "" {
		runPortTaker()
	}
	os.Exit(m.Run())
}

func runParent(end string) {
	dir, _, err := process.TempDir("ot-fleet-process-")
	if err != nil {
		panic(err)
	}
	child, err := process.Start(process.Options{Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; sleep 1000 & wait; sleep 1000"}, Dir: dir})
	if err != nil {
		panic(err)
	}
	process.AtInterrupt(func() {
		_ = child.Stop(100 * time.Millisecond)
		_ = os.WriteFile(os.Getenv("STOPPED"), nil, 0o600)
	})
	fmt.Println(dir, child.Pid())
	switch end {
	case "panic":
		panic("as the test wants")
	case "exit":
		os.Exit(3)
	}
	select {}
}

// portsPerProgram that each of two programs asks for: of all there are so many that chance
// alone would have some handed out twice.
const portsPerProgram = 400

// runPortTaker has them until its input ends.
func runPortTaker() {
	for range portsPerProgram {
		port, err := process.FreePort()
		if err != nil {
			panic(err)
		}
		fmt.Println(port)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// Nothing listens on any of these ports yet.
func TestNoPortIsReservedTwice(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), portsVariable+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	taken := map[int]bool{}
	for lines := bufio.NewReader(out); len(taken) < portsPerProgram; {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		port, err := strconv.Atoi(strings.TrimSpace(line))
		require.NoError(t, err)
		require.False(t, taken[port], "port %d twice in one program", port)
		taken[port] = true
	}
	for range portsPerProgram {
		port, err := process.FreePort()
		require.NoError(t, err)
		require.False(t, taken[port], "port %d", port)
		taken[port] = true
	}
}

func TestNothingOutlivesTheParent(t *testing.T) {
	for _, test := range []struct {
		end    string
		signal syscall.Signal
		stops  bool
	}{
		{end: "killed", signal: syscall.SIGKILL},
		{end: "interrupted", signal: syscall.SIGINT, stops: true},
		{end: "terminated", signal: syscall.SIGTERM, stops: true},
		{end: "panic"},
		{end: "exit"},
	} {
		t.Run(test.end, func(t *testing.T) {
			t.Parallel()
			stopped := filepath.Join(t.TempDir(), "stopped")
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), parentVariable+"="+test.end, "STOPPED="+stopped)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			dir, number, _ := strings.Cut(strings.TrimSpace(line), " ")
			pid, err := strconv.Atoi(number)
			require.NoError(t, err)
			if test.signal != 0 {
				require.NoError(t, cmd.Process.Signal(test.signal))
			}
			require.Error(t, cmd.Wait())

			require.Eventually(t, func() bool { return !isAlive(pid) && groupIsEmpty(pid) }, patience, 10*time.Millisecond, "child %d lives on", pid)
			require.Eventually(t, func() bool {
				_, err := os.Stat(dir)
				return os.IsNotExist(err)
			}, patience, 10*time.Millisecond, "directory %s is still there", dir)
			_, err = os.Stat(stopped)
			require.Equal(t, test.stops, err == nil, "whether the registered stop ran")
		})
	}
}

// isAlive tells a process from the zombie that its init has not waited for.
func isAlive(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

func groupIsEmpty(group int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[0] != "Z" && fields[2] == strconv.Itoa(group) {
			return false
		}
	}
	return true
}

func TestStop(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	polite, err := process.Start(process.Options{Path: "/bin/sh", Args: []string{"-c", "echo ready; sleep 1000"}, LogFile: log})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(log)
		return string(text) == "ready\n"
	}, patience, 5*time.Millisecond)
	require.NoError(t, polite.ExitError())
	require.NoError(t, polite.Pause(t.Context()))
	require.NoError(t, polite.Stop(patience), "a paused process is stopped too")
	require.NoError(t, polite.Stop(time.Second), "stopping twice does no harm")

	stubborn, err := process.Start(process.Options{Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo trapped; while :; do sleep 1; done"}, LogFile: log})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(log)
		return strings.HasSuffix(string(text), "trapped\n")
	}, patience, 5*time.Millisecond)
	require.ErrorContains(t, stubborn.Stop(50*time.Millisecond), "killed")
	require.ErrorContains(t, stubborn.ExitError(), "it has exited (signal: killed), its log is "+log)
	require.ErrorContains(t, stubborn.Signal(syscall.SIGTERM), "it has exited")

	_, err = process.Start(process.Options{Path: "/no/such/program"})
	require.ErrorContains(t, err, "/no/such/program")
}

func TestTurnsAreTaken(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var ends []func()
	for range runtime.NumCPU() {
		end, err := process.TakeTurn(t.Context())
		require.NoError(t, err)
		ends = append(ends, end)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := process.TakeTurn(ctx)
	require.ErrorIs(t, err, context.Canceled, "one more than there are CPUs")
	ends[0]()
	end, err := process.TakeTurn(t.Context())
	require.NoError(t, err, "after another one has started")
	end()
}
