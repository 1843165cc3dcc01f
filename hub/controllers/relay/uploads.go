package relay

import (
	"fmt"
	"time"
)

const (
	// What is copied of one report may be uploadBurst bytes at once, more than the largest that an
	// agent writes, and uploadRate bytes per second on average: else one member fills the hub's etcd,
	// which keeps what was overwritten for minutes.
	uploadBurst = 64 << 20
	uploadRate  = 512 << 10
	// A sync that asks the hub's API server costs as much as syncCost bytes, however little it writes: a
	// member may change its objects hundreds of times per second. An agent changes them 5 times. Such a
	// delay is too short to call anything late.
	maxSyncRate = 10
	syncCost    = uploadRate / maxSyncRate
	// A report is late from a wait of minLateWait on, until nothing was owed for onTimeAfter: a status
	// that changes with each sync would be written more often than the report.
	minLateWait = 2 * time.Second
	onTimeAfter = 10 * time.Second
)

// copyThrottle delays the copying in one direction of a mailbox that changes more than uploadRate and
// maxSyncRate allow. The zero value delays nothing.
type copyThrottle struct{ availableAt time.Time }

// reportThrottle delays the copying of a report, whose member says so in a condition.
type reportThrottle struct {
	copyThrottle
	late bool
}

// recordSync adds what one sync has cost the hub's API server.
func (t *copyThrottle) recordSync(size *uploadSize, written int, now time.Time) {
	if size.requests+written > 0 {
		t.record(max(size.bytes, syncCost), now)
	}
}

// record adds bytes that were copied.
func (t *copyThrottle) record(bytes int, now time.Time) {
	const burst = uploadBurst * time.Second / uploadRate
	if earliest := now.Add(-burst); t.availableAt.Before(earliest) {
		t.availableAt = earliest
	}
	t.availableAt = t.availableAt.Add(time.Duration(bytes) * time.Second / uploadRate)
}

// wait returns how long nothing is copied.
func (t *copyThrottle) wait(now time.Time) time.Duration { return max(0, t.availableAt.Sub(now)) }

// describe says why the report is late; empty if it is not.
func (t *reportThrottle) describe(now time.Time) string {
	switch {
	case t.wait(now) >= minLateWait:
		t.late = true
	case now.Sub(t.availableAt) >= onTimeAfter:
		t.late = false
	}
	if !t.late {
		return ""
	}
	return fmt.Sprintf("the member's report changes by more than %d KiB per second, so it is copied with a delay: check what writes ClusterReports there, and whether it is the agent", uploadRate>>10)
}
