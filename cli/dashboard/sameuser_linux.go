package dashboard

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// socketTables list all TCP sockets with the users that they are of. A client may reach 127.0.0.1
// by a socket of IPv6.
var socketTables = []string{"/proc/net/tcp", "/proc/net/tcp6"}

// established is the state of a connection that neither end has closed.
const established = "01"

// FindSameUser returns a function that reports whether a connection is from a process of this
// process's user, or of root; nil where the kernel does not say.
func FindSameUser() func(net.Conn) bool {
	// In WSL, connections of Windows have no socket at their other end.
	if _, err := os.ReadFile(socketTables[0]); err != nil || isWSL() {
		return nil
	}
	own := uint64(os.Getuid()) //nolint:gosec // it is not negative on Linux
	return func(conn net.Conn) bool {
		from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		to, toErr := netip.ParseAddrPort(conn.LocalAddr().String())
		if err != nil || toErr != nil {
			return false
		}
		for _, table := range socketTables {
			file, err := os.Open(table)
			if err != nil {
				continue
			}
			user, found := findSocketUser(file, from, to)
			_ = file.Close()
			if found {
				return user == own || user == 0
			}
		}
		return false // it is closed already
	}
}

// findSocketUser returns the user of the socket at the other end of a connection.
func findSocketUser(table io.Reader, from, to netip.AddrPort) (user uint64, found bool) {
	local, remote := formatSocket(from), formatSocket(to)
	for lines := bufio.NewScanner(table); lines.Scan(); {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !matchesSocket(fields[1], local) || !matchesSocket(fields[2], remote) {
			continue
		}
		// A socket that its process has closed is listed as root's.
		isOpen := fields[3] == established && fields[9] != "0"
		user, err := strconv.ParseUint(fields[7], 10, 32)
		return user, err == nil && isOpen
	}
	return 0, false
}

// formatSocket formats an address of IPv4 as the kernel does: as it has it in memory.
func formatSocket(a netip.AddrPort) string {
	address := a.Addr().Unmap().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(address[:]), a.Port())
}

// mappedPrefix begins an address of IPv4 in the table of IPv6.
var mappedPrefix = fmt.Sprintf("%016X%08X", 0, binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff}))

func matchesSocket(listed, wanted string) bool {
	return listed == wanted || listed == mappedPrefix+wanted
}
