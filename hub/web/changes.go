package web

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// Changes counts what changes of the fleet, by topic. It remembers one number for each, so
// that a reader that comes back later is told what changed meanwhile, however long that was.
type Changes struct {
	// process identifies this process in ids.
	process string

	mu        sync.Mutex
	seq       uint64
	changedAt map[readapi.Topic]uint64
	changed   chan struct{}
}

// NewChanges returns Changes of a process.
func NewChanges(process string) *Changes {
	return &Changes{process: process, seq: 1, changedAt: map[readapi.Topic]uint64{}, changed: make(chan struct{})}
}

// Mark records a change of topics. Without a topic, answers are rendered again, but nobody
// is told.
func (c *Changes) Mark(topics ...readapi.Topic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	for _, topic := range topics {
		c.changedAt[topic] = c.seq
	}
	if len(topics) > 0 {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// Seq is another number after each change.
func (c *Changes) Seq() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq
}

// Changed is closed at the next change of a topic.
func (c *Changes) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Since returns what changed since an event. After another process, or an unknown id,
// anything may have.
func (c *Changes) Since(id string) readapi.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := readapi.Event{Seq: fmt.Sprintf("%s.%d", c.process, c.seq), Topics: []readapi.Topic{}}
	process, text, _ := cutLast(id, ".")
	seq, err := strconv.ParseUint(text, 10, 64)
	if process != c.process || err != nil || seq > c.seq {
		e.Topics, e.Reset = readapi.Topics(), true
		return e
	}
	for topic, at := range maps.All(c.changedAt) {
		if at > seq {
			e.Topics = append(e.Topics, topic)
		}
	}
	slices.Sort(e.Topics)
	return e
}

// Current returns an event of no change.
func (c *Changes) Current() readapi.Event {
	return readapi.Event{Seq: fmt.Sprintf("%s.%d", c.process, c.Seq()), Topics: []readapi.Topic{}}
}

func cutLast(text, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(text, separator); i >= 0 {
		return text[:i], text[i+len(separator):], true
	}
	return text, "", false
}
