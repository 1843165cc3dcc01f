//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// lockDirectory returns the directory of locks between programs. Each user has one: files of other
// users cannot be opened.
func lockDirectory(of string) (string, error) {
	directory := filepath.Join(os.TempDir(), fmt.Sprintf("ot-fleet-%s-%d", of, os.Getuid()))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", fmt.Errorf("creating the directory of locks: %w", err)
	}
	return directory, nil
}

// lockFile locks a file, also against other calls in this program. The kernel releases the locks of a
// program that ends.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return file, nil
}

// turnInterval is how often a turn is looked for. A control plane takes seconds to start.
const turnInterval = 100 * time.Millisecond

// TakeTurn waits until another thing may start on this machine: as many start at once, in all programs
// together, as there are CPUs. What starts beside many others may not be ready within its time. Call
// end once it is.
func TakeTurn(ctx context.Context) (end func(), err error) {
	locks, err := lockDirectory("turns")
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(turnInterval)
	defer ticker.Stop()
	for {
		for n := range runtime.NumCPU() {
			lock, err := lockFile(filepath.Join(locks, strconv.Itoa(n)))
			if err == nil {
				return func() { _ = lock.Close() }, nil
			}
			if !errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting until others have started: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}
