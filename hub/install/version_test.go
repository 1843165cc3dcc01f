package install

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCompareVersions(t *testing.T) {
	// Each version is older than those after it.
	versions := []string{
		"v0.1.0", "v0.1.0-1-gabcdef0", "v0.1.0-2-gabcdef0-dirty", "v0.1.0-10-gabcdef0", "v0.1.1", "v0.2.0-rc.1", "v0.2.0-rc.1-3-gabcdef0",
		"v0.2.0-rc.2", "v0.2.0", "v0.10.0", "1.0.0", "v1.0.1",
	}
	for i, a := range versions {
		for j, b := range versions {
			older, known := compareVersions(a, b)
			assert.True(t, known, "%s, %s", a, b)
			assert.Equal(t, sign(i-j), older, "%s, %s", a, b)
		}
	}
	for _, a := range []string{"dev", "unknown", "abcdef0", "abcdef0-dirty", "latest", ""} {
		assert.False(t, IsRelease(a), a)
		_, known := compareVersions(a, "v0.1.0")
		assert.False(t, known, a)
		_, known = compareVersions(a, a)
		assert.True(t, known, a)
	}
	older, known := compareVersions("v0.1.0", "0.1.0")
	assert.True(t, known && older == 0, "with a v or without")
}

func sign(n int) int { return min(1, max(-1, n)) }
