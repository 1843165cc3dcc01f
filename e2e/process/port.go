//go:build linux

package process

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are handed out below the range from which Linux takes the local ends of
// outgoing connections, so that a server that is down for a while, and comes
// back on its port, does not find it taken by somebody's connection.
const (
	firstPort = 20000
	lastPort  = 32000
)

// FreePort returns a port of 127.0.0.1 that was free just now. Somebody else
// may bind it first: whoever starts a server on it retries with another one.
func FreePort() (int, error) {
	var last error
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			last = err
			continue
		}
		listener.Close()
		return port, nil
	}
	return 0, fmt.Errorf("finding a free port of 127.0.0.1 between %d and %d: %w", firstPort, lastPort, last)
}
