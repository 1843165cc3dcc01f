package dashboard

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFindSocketUser(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 100 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 101 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 102 1 0000000000000000 20 4 30 10 -1
   3: 0000000000000000FFFF00000100007F:9C41 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002 0 103 1
   4: 0100007F:9C43 0100007F:1F90 06 00000000:00000000 03:00000F20 00000000     0        0 0 3 0000000000000000
   5: 0100007F:9C44 0100007F:1F90 05 00000000:00000000 03:00000F20 00000000     0        0 0 3 0000000000000000
   6: 0100007F:9C45 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0000000000000000
   4: garbage
`
	server := netip.MustParseAddrPort("127.0.0.1:8080")
	for from, want := range map[string]uint64{"127.0.0.1:40000": 1001, "127.0.0.1:40001": 1002} {
		user, found := findSocketUser(strings.NewReader(table), netip.MustParseAddrPort(from), server)
		assert.True(t, found, from)
		assert.Equal(t, want, user, from)
	}
	// Nobody's, or closed already: then the kernel says root.
	for _, from := range []string{"127.0.0.1:40002", "127.0.0.2:40000", "127.0.0.1:40003", "127.0.0.1:40004", "127.0.0.1:40005"} {
		_, found := findSocketUser(strings.NewReader(table), netip.MustParseAddrPort(from), server)
		assert.False(t, found, from)
	}
}

func TestOwnConnections(t *testing.T) {
	sameUser := FindSameUser()
	require.NotNil(t, sameUser)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	client, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	conn, err := listener.Accept()
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	assert.True(t, sameUser(conn), "uid %d", os.Getuid())
	require.NoError(t, client.Close())
	assert.False(t, sameUser(conn), "who has closed it cannot be known any more")
}
