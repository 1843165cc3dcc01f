package preflight

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/policy"
)

func TestAddresses(t *testing.T) {
	public := []string{"1.1.1.1", "93.184.216.34", "2606:2800:220:1::1", "64:ff9b::1.1.1.1", "2002:101:101::1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "198.20.0.1"}
	private := []string{
		"10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255",
		"fc00::1", "fdff::1", "fec0::1", "::ffff:10.0.0.1",
		"34.118.224.1", "2600:2d00::1", // the cluster's
		"64:ff9b::10.0.0.1", "2002:a00:1::1", "2606:2800:220:1:0:5efe:10.0.0.1",
	}
	never := []string{
		"127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1", "0.0.0.0", "0.1.2.3", "::", "169.254.1.1", "fe80::1", "fe80::1%eth0",
		"224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "ff02::1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1",
		"192.0.0.8", "192.88.99.1", "2001:db8::1", "3fff::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "64:ff9b:1::1.1.1.1", "100::1", "::1.1.1.1", "4000::1",
		"64:ff9b::127.0.0.1", "64:ff9b::169.254.1.1", "2002:7f00:1::1", "2606:2800:220:1:200:5efe:127.0.0.1",
	}
	metadata := []string{
		"169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1", "169.254.170.2", "168.63.129.16",
		"100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe%eth0", "64:ff9b::100.100.100.200",
	}
	cluster := parsePrefixes("34.118.224.0/20", "2600:2d00::/64", "10.1.2.0/24", "127.0.0.0/8")
	all := policy.PreflightAllow{"0.0.0.0/0", "::/0"}
	for _, tt := range []struct {
		name      string
		addresses []string
		// want: with no list, with the host in the list, with all addresses in the list.
		want, wantByName, wantByCIDR bool
	}{
		{"public", public, true, true, true},
		{"private", private, false, true, true},
		{"never", never, false, false, true},
		{"metadata", metadata, false, false, false},
	} {
		for _, text := range tt.addresses {
			t.Run(tt.name+"/"+text, func(t *testing.T) {
				addr := netip.MustParseAddr(text)
				judge := addressJudge{clusterNetworks: cluster}
				assert.Equal(t, tt.want, judge.permits("a.example.com", addr))
				judge.allow = policy.PreflightAllow{"*.example.com"}
				assert.Equal(t, tt.wantByName, judge.permits("a.example.com", addr))
				assert.Equal(t, tt.want, judge.permits("a.example.org", addr), "the name of another host")
				judge.allow = all
				assert.Equal(t, tt.wantByCIDR, judge.permits("a.example.com", addr))
			})
		}
	}
}

func TestNames(t *testing.T) {
	judge := addressJudge{allow: policy.PreflightAllow{"images.default.svc", "*.corp.internal", "registry"}}
	for host, want := range map[string]bool{
		"images.example.com": true, "IMAGES.example.com.": true, "1.1.1.1": true, "fd00::1": true, "svc.example.com": true,
		"localhost": false, "kubernetes": false, "kubernetes.default.svc": false, "kubernetes.default.svc.": false,
		"images.svc.example.com": false, "a.b.svc.cluster.local": false, "printer.local": false, "metadata.google.internal": false, "x.LOCALHOST": false, "": false, ".": false,
		"images.default.svc": true, "a.corp.internal": true, "registry": true,
	} {
		assert.Equal(t, want, judge.permitsName(host), host)
	}
}

// TestNoEmbeddingIsAWayIn: an internal IPv4 address is internal in every IPv6 address that
// leads to it.
func TestNoEmbeddingIsAWayIn(t *testing.T) {
	internal := []netip.Prefix{}
	internal = append(append(internal, specialIPv4...), privateNetworks[:4]...)
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SampledFrom(internal).Draw(t, "network")
		b := prefix.Addr().As4()
		random := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "rest")
		for i := range b {
			if left := prefix.Bits() - 8*i; left <= 0 {
				b[i] = random[i]
			} else if left < 8 {
				b[i] |= random[i] >> left
			}
		}
		v4 := netip.AddrFrom4(b)
		require.True(t, prefix.Contains(v4))
		for _, text := range []string{
			v4.String(), "::ffff:" + v4.String(), "64:ff9b::" + v4.String(), "64:ff9b:1::" + v4.String(), "::" + v4.String(),
			fmt.Sprintf("2002:%02x%02x:%02x%02x::1", b[0], b[1], b[2], b[3]), "2606:2800::5efe:" + v4.String(),
		} {
			addr, err := netip.ParseAddr(text)
			require.NoError(t, err)
			require.False(t, addressJudge{}.permits("a.example.com", addr), text)
		}
	})
}

func TestSilentServersAreBounded(t *testing.T) {
	s, now := silentServers{}, time.Unix(0, 0)
	for i := range 3 * maxSilentServers {
		now = now.Add(time.Millisecond)
		s.record(server{host: fmt.Sprint(i)}, now)
		require.LessOrEqual(t, len(s), maxSilentServers)
	}
	last, first := server{host: fmt.Sprint(3*maxSilentServers - 1)}, server{host: "0"}
	assert.True(t, s.contains(last, now))
	assert.False(t, s.contains(first, now), "those that are over first are dropped")
	assert.True(t, s.contains(last, now.Add(silenceDuration-1)))
	assert.False(t, s.contains(last, now.Add(silenceDuration)))
	s.forget(last)
	assert.False(t, s.contains(last, now))
	s.record(last, now)
	s.record(server{host: "later"}, now.Add(time.Hour))
	assert.Len(t, s, 1, "what is over is dropped before a full map grows")
}
