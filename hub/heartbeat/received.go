package heartbeat

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/mailbox"
)

// Received has the heartbeats that all replicas publish, as their Leases were last read. It is
// safe for concurrent use.
type Received struct {
	mu       sync.Mutex
	replicas map[string]replicaHeartbeats
	onChange []func(member string)
	// synced is closed once the Leases have been read.
	synced chan struct{}
}

// replicaHeartbeats are those of one Lease: by member, what follows its name in the text.
type replicaHeartbeats struct {
	text     string
	isReader bool
	members  map[string]string
}

// NewReceived returns a Received that knows no replica.
func NewReceived() *Received { return &Received{synced: make(chan struct{})} }

// OnChange registers a function that is called with each member of which there is another
// heartbeat. It must not block. Call OnChange before SetReplicas.
func (r *Received) OnChange(do func(member string)) { r.onChange = append(r.onChange, do) }

// SetReplicas takes up the annotations of the Leases of all replicas. It is not called
// concurrently.
func (r *Received) SetReplicas(annotations map[string]map[string]string) {
	next := make(map[string]replicaHeartbeats, len(annotations))
	var changed []string
	for replica, of := range annotations {
		before := r.replicas[replica]
		text, isReader := of[Annotation]
		if text == before.text {
			before.isReader = isReader
			next[replica] = before
			continue
		}
		after := replicaHeartbeats{text: text, isReader: isReader, members: map[string]string{}}
		for line := range strings.Lines(text) {
			if member, values, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
				after.members[member] = values
				if before.members[member] != values {
					changed = append(changed, member)
				}
			}
		}
		next[replica] = after
	}
	r.mu.Lock()
	first := r.replicas == nil
	r.replicas = next
	r.mu.Unlock()
	if first {
		close(r.synced)
	}
	for _, member := range changed {
		for _, do := range r.onChange {
			do(member)
		}
	}
}

// WaitForSync waits until the Leases have been read, or ctx ends.
func (r *Received) WaitForSync(ctx context.Context) {
	select {
	case <-r.synced:
	case <-ctx.Done():
	}
}

// ReadByAll reports whether every replica that has a Lease reads heartbeats, whichever is
// elected. It is false before the Leases have been read.
func (r *Received) ReadByAll() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.replicas {
		if !of.isReader {
			return false
		}
	}
	return len(r.replicas) > 0
}

// FindHeartbeat returns the latest heartbeat of one state of the copy of a member's root; the zero
// Heartbeat if there is none.
func (r *Received) FindHeartbeat(member, copyVersion string) (latest mailbox.Heartbeat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.replicas {
		if h, ok := parseHeartbeat(of.members[member]); ok && h.CopyVersion == copyVersion && h.Sequence > latest.Sequence {
			latest = h
		}
	}
	return latest
}

// parseHeartbeat parses what follows the name of a member.
func parseHeartbeat(values string) (mailbox.Heartbeat, bool) {
	copyVersion, rest, _ := strings.Cut(values, " ")
	sequence, seconds, _ := strings.Cut(rest, " ")
	number, err := strconv.ParseInt(sequence, 10, 64)
	at, timeErr := strconv.ParseInt(seconds, 10, 64)
	return mailbox.Heartbeat{CopyVersion: copyVersion, Sequence: number, ObservedAt: metav1.NewTime(time.Unix(at, 0))},
		copyVersion != "" && err == nil && timeErr == nil
}
