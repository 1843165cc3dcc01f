package startup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// TestShutdownLeavesTimeToRelease: a process that is killed releases no Lease, and the next one waits
// until it expires.
func TestShutdownLeavesTimeToRelease(t *testing.T) {
	for renewDeadline, want := range map[time.Duration]time.Duration{
		2 * time.Second:  23 * time.Second,
		10 * time.Second: 15 * time.Second,
		20 * time.Second: minShutdownTimeout,
		24 * time.Hour:   minShutdownTimeout,
	} {
		o := Options{RenewDeadline: renewDeadline}
		assert.Equal(t, want, *o.ManagerOptions(&APIServer{}, nil, cache.Options{}, "lease").GracefulShutdownTimeout, "%s", renewDeadline)
	}
}
