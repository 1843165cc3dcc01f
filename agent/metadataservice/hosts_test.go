package metadataservice_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/agent/metadataservice"
)

func TestMayBeHost(t *testing.T) {
	for host, want := range map[string]bool{
		"169.254.169.254":           true,
		"169.254.169.254.":          true,
		"169.254.0.1":               true,
		"168.63.129.16":             true,
		"100.100.100.200":           true,
		"192.0.0.192":               true,
		"2852039166":                true,
		"0xA9FEA9FE":                true,
		"0xa9.0xfe.0xa9.0xfe":       true,
		"0251.0376.0251.0376":       true,
		"169.254.43518":             true,
		"169.254.169.0254":          true,
		"１６９.254.169.254":           true,
		"169。254。169。254":           true,
		"metadata。google。internal":  true,
		"fd00:ec2::254":             true,
		"FD00:EC2:0::254":           true,
		"fe80::1%eth0":              true,
		"::ffff:169.254.169.254":    true,
		"64:ff9b::a9fe:a9fe":        true,
		"64:ff9b::a83f:8110":        true,
		"2002:a9fe:a9fe::1":         true,
		"2001:db8::5efe:a9fe:a9fe":  true,
		"metadata.google.internal":  true,
		"Metadata.Google.Internal.": true,
		"metadata.goog":             true,
		"metadata":                  true,
		"instance-data":             true,
		"":                          false,
		"images.example.com":        false,
		"metadata.example.com":      false,
		"3com.example":              false,
		"10.0.0.1":                  false,
		"127.0.0.1":                 false,
		"100.100.100.201":           false,
		"fd00::1":                   false,
		"2001:db8::1":               false,
		"64:ff9b::a00:1":            false,
		"h":                         false,
		"xn--bl-yiay.example":       false,
	} {
		assert.Equal(t, want, metadataservice.MayBeHost(host), host)
	}
}

func TestIsAddress(t *testing.T) {
	assert.True(t, metadataservice.IsAddress(netip.MustParseAddr("::ffff:169.254.169.254")))
	assert.True(t, metadataservice.IsAddress(netip.MustParseAddr("fe80::a9fe:a9fe%eth0")))
	assert.False(t, metadataservice.IsAddress(netip.MustParseAddr("169.254.1.1")), "link-local networks may have images")
}
