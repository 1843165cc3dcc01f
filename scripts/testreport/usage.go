//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// measureCommand has this program run a test binary, as go test's -exec.
const measureCommand = "measure"

// orphanTimeout bounds the wait for processes that outlive the test that started them.
const orphanTimeout = 10 * time.Second

// measure runs a test binary, notes in usageDir how much CPU time it and its descendants
// used, and returns its exit code.
func measure(usageDir string, command []string) int {
	// Linux ends the test when the thread that started it ends.
	runtime.LockOSThread()
	// Descendants whose parent ends become children of this process: their CPU time counts.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "testreport: CPU time of orphans is not counted:", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGTERM, os.Interrupt)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = slices.DeleteFunc(os.Environ(), isCollectorSetting)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		return 1
	}
	go func() {
		for s := range signals {
			if s != os.Interrupt { // which the terminal sends to the test as well
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	code := waitForAll(cmd.Process.Pid)
	if err := writeUsage(usageDir); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	return code
}

// isCollectorSetting reports whether a variable is one that `make test` sets for the compiler and the
// linker. Programs under test collect garbage as in a cluster.
func isCollectorSetting(variable string) bool {
	return strings.HasPrefix(variable, "GOGC=") || strings.HasPrefix(variable, "GOMEMLIMIT=")
}

// waitForAll waits for every child, orphans that it inherited included, and returns the
// exit code of one of them. It gives up on orphans after orphanTimeout.
func waitForAll(pid int) (code int) {
	codes, all := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(all)
		for {
			var status syscall.WaitStatus
			ended, err := syscall.Wait4(-1, &status, 0, nil)
			switch {
			case errors.Is(err, syscall.EINTR):
			case err != nil:
				return
			case ended == pid && status.Signaled():
				codes <- 128 + int(status.Signal())
			case ended == pid:
				codes <- status.ExitStatus()
			}
		}
	}()
	code = <-codes
	select {
	case <-all:
	case <-time.After(orphanTimeout):
		fmt.Fprintln(os.Stderr, "testreport: a process that the test started still runs; its CPU time is not counted")
	}
	return code
}

// writeUsage notes the CPU time of all children that were waited for, by the working
// directory, which is the package's.
func writeUsage(usageDir string) error {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		return fmt.Errorf("reading the CPU time of a test: %w", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	spent := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	name := filepath.Join(usageDir, strconv.Itoa(os.Getpid()))
	return os.WriteFile(name, []byte(fmt.Sprintf("%d %s", spent, dir)), 0o600)
}

// readUsage returns the CPU time of each package, by import path.
func readUsage(usageDir string, m module) (map[string]time.Duration, error) {
	files, err := os.ReadDir(usageDir)
	if err != nil {
		return nil, err
	}
	all := map[string]time.Duration{}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(usageDir, file.Name()))
		if err != nil {
			return nil, err
		}
		spent, dir, _ := strings.Cut(string(text), " ")
		nanoseconds, err := strconv.ParseInt(spent, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading the CPU time of %s: %w", dir, err)
		}
		all[m.importPath(dir)] += time.Duration(nanoseconds)
	}
	return all, nil
}
