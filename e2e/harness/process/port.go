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

// The ports lie below Linux's ephemeral range, so that no outgoing connection takes the port of a
// server that is down for a while.
const (
	firstPort = 20000
	lastPort  = 32000
)

// reservedPorts are the locked files of this program's ports. The kernel releases the locks when
// the program ends.
var reservedPorts struct {
	sync.Mutex
	files []*os.File
}

// FreePort returns a free port of 127.0.0.1. No other caller on this machine gets it while this
// program lives, since a server may take seconds to bind it. A program that does not use FreePort
// may still bind it first: retry with another port.
func FreePort() (int, error) {
	locks, err := lockDirectory("ports")
	if err != nil {
		return 0, err
	}
	var last error
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		lock, err := lockFile(filepath.Join(locks, strconv.Itoa(port)))
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
