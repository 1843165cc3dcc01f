// Package heartbeat brings heartbeats of members from the replicas that sync them to the
// elected one. Each replica publishes those of its members in the Lease that it renews anyway:
// a copy of the report per heartbeat would cost a write per member.
//
// The text is a line per member: its name, the resourceVersion of the hub's copy, the sequence
// of the member's root, and its time in seconds since 1970.
package heartbeat

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pelotech/ot-fleet/api/mailbox"
)

const (
	// Annotation of a replica's Lease has the heartbeats of its members. A replica whose Lease
	// lacks it does not read them either: its version is older.
	Annotation = "pelotech.ot/heartbeats"
	// maxText bounds the text, in bytes. The API server admits 256 KiB of annotations.
	maxText = 200 << 10
	// maxLine is how long a line can be beyond the member's name.
	maxLine = 64
)

// Published has the heartbeats that this replica publishes. The zero value is ready to use. It
// is safe for concurrent use.
type Published struct {
	mu    sync.Mutex
	lines map[string]string
	bytes int
}

// HasRoom reports whether a heartbeat of a member can be published beside the others.
func (p *Published) HasRoom(member string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes-len(p.lines[member])+len(member)+maxLine <= maxText
}

// Set replaces the heartbeat of a member; nil removes it.
func (p *Published) Set(member string, h *mailbox.Heartbeat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes -= len(p.lines[member])
	delete(p.lines, member)
	if h == nil {
		return
	}
	if p.lines == nil {
		p.lines = map[string]string{}
	}
	line := fmt.Sprintf("%s %s %d %d\n", member, h.CopyVersion, h.Sequence, h.ObservedAt.Unix())
	p.lines[member] = line
	p.bytes += len(line)
}

// Text returns what the annotation has to be.
func (p *Published) Text() string {
	p.mu.Lock()
	lines := make([]string, 0, len(p.lines))
	for _, line := range p.lines {
		lines = append(lines, line)
	}
	p.mu.Unlock()
	slices.Sort(lines)
	return strings.Join(lines, "")
}
