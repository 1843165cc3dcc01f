//go:build linux

package faults

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// FatalWrite is a write at which its writer is killed.
type FatalWrite struct {
	// Write describes it.
	Write   string
	Matches func(Write) bool
	// Stored kills the writer after the write is stored and before it is answered, else
	// before it is stored.
	Stored bool
	// Proxy is the only one through which the write counts; nil for any.
	Proxy *Proxy
}

func (p FatalWrite) String() string {
	if p.Stored {
		return "after " + p.Write
	}
	return "before " + p.Write
}

// BeforeAndAfter returns two fatal writes for each write.
func BeforeAndAfter(writes ...FatalWrite) (all []FatalWrite) {
	for _, before := range writes {
		after := before
		after.Stored = true
		all = append(all, before, after)
	}
	return all
}

// WriteKiller kills a program once at each of its fatal writes. The program continues where
// it was killed when it is restarted.
type WriteKiller struct {
	victim  func() *process.Process
	restart func(context.Context) error

	mu        sync.Mutex
	remaining []FatalWrite
	killed    []string
	proxies   []*Proxy
}

// NewWriteKiller returns a killer of the running program. restart replaces it after a kill.
func NewWriteKiller(victim func() *process.Process, restart func(context.Context) error, points []FatalWrite) *WriteKiller {
	return &WriteKiller{victim: victim, restart: restart, remaining: slices.Clone(points)}
}

// Watch kills the program at its writes through proxies, until the test ends or Stop.
func (k *WriteKiller) Watch(t *testing.T, proxies ...*Proxy) {
	k.proxies = append(k.proxies, proxies...)
	t.Cleanup(k.Stop)
	for _, p := range proxies {
		p.SetBeforeHook(func(w Write) error { return k.kill(p, w, false) })
		p.SetAfterHook(func(w Write) error { return k.kill(p, w, true) })
	}
}

// Stop removes the hooks.
func (k *WriteKiller) Stop() {
	for _, p := range k.proxies {
		p.SetBeforeHook(nil)
		p.SetAfterHook(nil)
	}
}

// kill ends the program when a write is one of the remaining points. The write, or its
// answer, is lost with it. Nobody sees the point gone before the program has ended: whoever
// waits for its death restarts it.
func (k *WriteKiller) kill(p *Proxy, w Write, stored bool) error {
	if stored && w.Status >= 300 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.remaining, func(point FatalWrite) bool {
		return point.Stored == stored && (point.Proxy == nil || point.Proxy == p) && point.Matches(w)
	})
	if i < 0 {
		return nil
	}
	victim := k.victim()
	victim.Kill()
	<-victim.Done()
	k.killed = append(k.killed, k.remaining[i].String())
	k.remaining = slices.Delete(k.remaining, i, i+1)
	return DropConnection()
}

// Start starts the program. The mutex keeps its first writes waiting until it is known.
func (k *WriteKiller) Start(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	require.NoError(t, k.restart(context.Background()))
}

// KeepAlive restarts the program when it was killed.
func (k *WriteKiller) KeepAlive(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	ended := k.victim().HasEnded()
	k.mu.Unlock()
	if ended {
		k.Start(t)
	}
}

// AwaitCondition waits for a condition that needs the program, which it keeps alive.
func (k *WriteKiller) AwaitCondition(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool { k.KeepAlive(t); return condition() }), "still waiting for %s; killed %v", what, k.Killed())
}

// Remaining lists the points at which the program was not killed yet.
func (k *WriteKiller) Remaining() (points []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.remaining {
		points = append(points, p.String())
	}
	return points
}

// Killed lists the points at which the program was killed, in order.
func (k *WriteKiller) Killed() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.killed)
}
