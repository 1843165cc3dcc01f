package readapi

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "br, GZIP": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "gzip; q=0.0": false, "gzip;q=x": false, "identity": false, "x-gzip": false,
		"*": true, "br, *;q=0.1": true, "*;q=0": false, "*, gzip;q=0": false, "gzip;q=0, *": false, "*;q=0, gzip": true,
	} {
		assert.Equal(t, want, AcceptsGzip(header), header)
	}
}
