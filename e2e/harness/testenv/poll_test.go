//go:build linux

package testenv

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestComputePollInterval(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{
		0: minPollInterval, time.Second: 50 * time.Millisecond, 2 * time.Second: 100 * time.Millisecond, time.Minute: maxPollInterval,
	} {
		assert.Equal(t, want, computePollInterval(waited), "after %s", waited)
	}
}
