//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options describe a child process. Both outputs are appended to LogFile, unless Stdout or Stderr
// is set.
type Options struct {
	Path string
	Args []string
	Env  []string // added to this program's environment
	// HeapMiB bounds the heap of a program in Go that trades memory for CPU time, in MiB on a
	// machine of 12 GiB and in proportion more on larger ones; 0 for Go's defaults.
	HeapMiB int64
	Dir     string
	LogFile string
	Stdout  io.Writer
	Stderr  io.Writer
}

// Process is a child that runs or has exited.
type Process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// Start runs a program as a child, which dies with this program.
func Start(o Options) (*Process, error) {
	name := filepath.Base(o.Path)
	reaper, err := sharedReaper()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Path, o.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = o.Dir, o.Stdout, o.Stderr
	cmd.Env = slices.Concat(os.Environ(), o.collectorEnv(), o.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var log *os.File
	if o.LogFile != "" {
		log, err = os.OpenFile(o.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("opening the log of %s: %w", name, err)
		}
		defer log.Close()
		if cmd.Stdout == nil {
			cmd.Stdout = log
		}
		if cmd.Stderr == nil {
			cmd.Stderr = log
		}
	}
	if err := startOnForkThread(cmd.Start); err != nil {
		return nil, fmt.Errorf("starting %s: %w", o.Path, err)
	}
	pid := cmd.Process.Pid
	p := &Process{name: name, cmd: cmd, log: o.LogFile, done: make(chan struct{})}
	watchErr := reaper.watchProcess(pid)
	go func() {
		p.err = cmd.Wait()
		close(p.done)
		reaper.forgetProcess(pid)
	}()
	if watchErr != nil {
		p.Kill()
		<-p.done
		return nil, fmt.Errorf("starting %s: %w", o.Path, watchErr)
	}
	return p, nil
}

// forkRequests is served by one goroutine that owns its thread and never returns: Linux sends the
// parent-death signal when the forking thread ends, and Go ends idle threads.
var forkRequests = sync.OnceValue(func() chan<- func() {
	requests := make(chan func())
	go func() {
		runtime.LockOSThread()
		for request := range requests {
			request()
		}
	}()
	return requests
})

func startOnForkThread(start func() error) error {
	result := make(chan error, 1)
	forkRequests() <- func() { result <- start() }
	return <-result
}

// Pid returns the process id, which is also that of its process group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// LogFile returns the path of the log.
func (p *Process) LogFile() string { return p.log }

// Done is closed when the process has exited and was waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the process to exit and returns nil for exit code 0.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// ListEnded returns the logs of those that have exited; nil ones never ran.
func ListEnded(some ...*Process) (logs []string) {
	for _, p := range some {
		if p != nil && p.HasEnded() {
			logs = append(logs, p.LogFile())
		}
	}
	return logs
}

// HasEnded reports whether the process has exited.
func (p *Process) HasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ExitError returns how the process exited; nil while it runs.
func (p *Process) ExitError() error {
	select {
	case <-p.done:
		return fmt.Errorf("it has exited (%v), its log is %s", p.Wait(), p.log)
	default:
		return nil
	}
}

// Signal sends a signal to the process and its descendants.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.ExitError(); err != nil {
		return fmt.Errorf("sending %s to %s: %w", s, p.name, err)
	}
	if err := syscall.Kill(-p.Pid(), s); err != nil {
		return fmt.Errorf("sending %s to %s (process %d): %w", s, p.name, p.Pid(), err)
	}
	return nil
}

// Pause stops the process with SIGSTOP and returns when it no longer runs: a busy machine may take
// long to tell it. Its descendants
// continue: a child stopped between fork and exec would keep its parent from stopping.
func (p *Process) Pause(ctx context.Context) error {
	if err := syscall.Kill(p.Pid(), syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pausing %s (process %d): %w", p.name, p.Pid(), err)
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
		if err != nil {
			return fmt.Errorf("pausing %s: %w", p.name, err)
		}
		if _, state, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(state, "T") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pausing %s: %w", p.name, ctx.Err())
		case <-ticker.C:
		}
	}
}

// Resume continues a paused process.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Kill kills the process and does not wait.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL) // fails only for a process that is gone already
}

// Stop sends SIGTERM, waits, and kills the process after the timeout. The exit code of a process
// that exits in time does not matter.
func (p *Process) Stop(timeout time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		select {
		case <-p.done:
			return nil
		default:
			if !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	_ = p.Signal(syscall.SIGCONT) // a paused process acts on no signal
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		p.Kill()
		<-p.done
		return fmt.Errorf("stopping %s: killed, it had not ended within %s of SIGTERM (its log is %s)", p.name, timeout, p.log)
	}
}
