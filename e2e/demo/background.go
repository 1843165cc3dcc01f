//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// backgroundFleet is the directory of a fleet that runs in the background. Everything that the
// fleet makes is in it, and whoever runs the fleet holds the lock in it.
type backgroundFleet string

const (
	// markVariable has the fleet's directory, in the environment of each of its processes.
	markVariable = "OT_FLEET_UP"
	// serveVerb is that of the process that runs the fleet.
	serveVerb = "serve"
	// stopPatience is how long the fleet has to end by itself.
	stopPatience = 3 * time.Minute
	// endPatience is how long a fleet that does not answer may take to let go of its lock.
	endPatience = 10 * time.Second
	// followInterval is how often a command looks how far the fleet is.
	followInterval = 100 * time.Millisecond
)

func (b backgroundFleet) path(name string) string { return filepath.Join(string(b), name) }
func (b backgroundFleet) lockFile() string        { return b.path("lock") }
func (b backgroundFleet) stateFile() string       { return b.path("state.json") }
func (b backgroundFleet) kubeconfig() string      { return b.path("kubeconfig") }
func (b backgroundFleet) logFile() string         { return b.path("fleet.log") }
func (b backgroundFleet) logs() string            { return b.path("logs") }
func (b backgroundFleet) temporary() string       { return b.path("tmp") }

// fleetState says that the fleet is ready.
type fleetState struct {
	Pid      int       `json:"pid"`
	Checkout string    `json:"checkout"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`
}

// readState returns the state, or nil of a fleet that is not ready.
func (b backgroundFleet) readState() (*fleetState, error) {
	text, err := os.ReadFile(b.stateFile())
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	state := &fleetState{}
	if err := json.Unmarshal(text, state); err != nil {
		return nil, fmt.Errorf("reading %s: %w", b.stateFile(), err)
	}
	return state, nil
}

// writeState says, at once, that the fleet is ready.
func (b backgroundFleet) writeState(state fleetState) error {
	text, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.stateFile()+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(b.stateFile()+".new", b.stateFile())
}

// lock takes the lock. It returns nil if the fleet runs, or another command starts or ends it.
// Invariant: a lock is of the file that has the name; whoever ends the fleet removes both.
func (b backgroundFleet) lock() (*os.File, error) {
	if entries, err := os.ReadDir(string(b)); err == nil && len(entries) > 0 && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return b.path(e.Name()) == b.lockFile() }) {
		return nil, fmt.Errorf("%s has files that are no fleet's: name a directory that does not exist", b)
	}
	for {
		if err := os.MkdirAll(string(b), 0o700); err != nil {
			return nil, err
		}
		file, err := os.OpenFile(b.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
		if os.IsNotExist(err) {
			continue // removed in between
		}
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && b.isLockFile(file) {
			return file, nil
		}
		_ = file.Close()
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("locking %s: %w", b.lockFile(), err)
		}
	}
}

// isLockFile reports whether an open file is the one that the directory has.
func (b backgroundFleet) isLockFile(file *os.File) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(b.lockFile())
	return err == nil && os.SameFile(opened, named)
}

// fleetProcess is a process with the fleet's mark.
type fleetProcess struct {
	pid int
	// arguments are those of its command line, the first one without its folder.
	arguments []string
	// serves is true for the one that runs the fleet.
	serves bool
}

// listProcesses returns the processes of the fleet, however they came to be left.
func (b backgroundFleet) listProcesses() (found []fleetProcess) {
	mark := []byte(markVariable + "=" + string(b))
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue // of another user, or ended
		}
		marked := false
		for variable := range bytes.SplitSeq(environ, []byte{0}) {
			marked = marked || bytes.Equal(variable, mark)
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if !marked || err != nil || pid == os.Getpid() {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		arguments := strings.Split(string(command), "\x00")
		arguments[0] = filepath.Base(arguments[0])
		found = append(found, fleetProcess{pid: pid, arguments: arguments, serves: len(arguments) > 2 && arguments[1] == serveVerb && arguments[2] == string(b)})
	}
	return found
}

// stop ends the fleet and returns with the lock. A fleet that does not end in time is killed.
func (b backgroundFleet) stop(ctx context.Context) (*os.File, error) {
	for _, p := range b.listProcesses() {
		if p.serves {
			_ = syscall.Kill(p.pid, syscall.SIGTERM) // fails for one that has ended
		}
	}
	patience, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	for {
		lock, err := b.lock()
		if err != nil || lock != nil {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-patience.Done():
			for _, p := range b.listProcesses() {
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
		case <-ticker.C:
		}
	}
}

// clean kills what is left of a fleet that has ended and removes all its files but the lock. The
// caller has the lock.
func (b backgroundFleet) clean(ctx context.Context) (leftovers bool, err error) {
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	for left := b.listProcesses(); len(left) > 0; left = b.listProcesses() {
		leftovers = true
		for _, p := range left {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return leftovers, ctx.Err()
		case <-ticker.C:
		}
	}
	entries, err := os.ReadDir(string(b))
	return leftovers || len(entries) > 1, errors.Join(err, b.removeAllButLock())
}

func (b backgroundFleet) removeAllButLock() error {
	entries, err := os.ReadDir(string(b))
	for _, entry := range entries {
		if b.path(entry.Name()) != b.lockFile() {
			err = errors.Join(err, os.RemoveAll(b.path(entry.Name())))
		}
	}
	return err
}

// remove removes the directory with the lock.
func (b backgroundFleet) remove(lock *os.File) error {
	defer func() { _ = lock.Close() }()
	if err := os.Remove(b.lockFile()); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.Remove(string(b)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
