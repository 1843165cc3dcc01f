//go:build linux

package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// Ports are handed out below the range from which Linux takes the local ends of
// outgoing connections, so that a server that is down for a while, and comes
// back on its port, does not find it taken by somebody's connection.
const (
	firstPort = 20000
	lastPort  = 32000
)

// reservedPorts are the locked files of the ports that this program was given. The
// kernel drops the locks when it ends.
var reservedPorts struct {
	sync.Mutex
	files []*os.File
}

// FreePort returns a port of 127.0.0.1 that was free just now, and that nobody
// else who asks here is given as long as this program lives: a server may take
// seconds until it binds its port, and another program's tests start theirs
// meanwhile. Whoever does not ask may bind it first: who starts a server on it
// retries with another one.
func FreePort() (int, error) {
	// Of each user's own: nobody else's files can be opened.
	locks := filepath.Join(os.TempDir(), fmt.Sprintf("ot-fleet-ports-%d", os.Getuid()))
	if err := os.MkdirAll(locks, 0o755); err != nil {
		return 0, fmt.Errorf("making the directory that ports are reserved in: %w", err)
	}
	var last error
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		lock, err := lockPortFile(filepath.Join(locks, strconv.Itoa(port)))
		if errors.Is(err, syscall.EWOULDBLOCK) {
			last = err
			continue
		}
		if err != nil {
			return 0, err
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			lock.Close()
			last = err
			continue
		}
		listener.Close()
		reservedPorts.Lock()
		defer reservedPorts.Unlock()
		reservedPorts.files = append(reservedPorts.files, lock)
		return port, nil
	}
	return 0, fmt.Errorf("finding a free port of 127.0.0.1 between %d and %d: %w", firstPort, lastPort, last)
}

// lockPortFile locks a file, against this program too.
func lockPortFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("reserving a port: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("reserving a port by %s: %w", path, err)
	}
	return file, nil
}
