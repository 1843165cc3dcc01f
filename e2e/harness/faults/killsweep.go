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

// KillPoint is a write at which its writer is killed.
type KillPoint struct {
	// Write describes it.
	Write   string
	Matches func(Write) bool
	// Stored kills the writer after the write is stored and before it is answered, else
	// before it is stored.
	Stored bool
	// Proxy is the only one through which the write counts; nil for any.
	Proxy *Proxy
}

func (p KillPoint) String() string {
	if p.Stored {
		return "after " + p.Write
	}
	return "before " + p.Write
}

// BeforeAndAfter returns two points for each write.
func BeforeAndAfter(writes ...KillPoint) (all []KillPoint) {
	for _, before := range writes {
		after := before
		after.Stored = true
		all = append(all, before, after)
	}
	return all
}

// KillSweep kills a program once at each of its points; the program continues where it was
// killed when the sweep restarts it.
type KillSweep struct {
	victim  func() *process.Process
	restart func(context.Context) error

	mu        sync.Mutex
	remaining []KillPoint
	killed    []string
	proxies   []*Proxy
}

// NewKillSweep returns a sweep over the running program. restart replaces it after a kill.
func NewKillSweep(victim func() *process.Process, restart func(context.Context) error, points []KillPoint) *KillSweep {
	return &KillSweep{victim: victim, restart: restart, remaining: slices.Clone(points)}
}

// Watch kills the program at its writes through proxies, until the test ends or Stop.
func (s *KillSweep) Watch(t *testing.T, proxies ...*Proxy) {
	s.proxies = append(s.proxies, proxies...)
	t.Cleanup(func() {
		s.Stop()
		s.KeepAlive(t)
	})
	for _, p := range proxies {
		p.SetBeforeHook(func(w Write) error { return s.kill(p, w, false) })
		p.SetAfterHook(func(w Write) error { return s.kill(p, w, true) })
	}
}

// Stop removes the hooks.
func (s *KillSweep) Stop() {
	for _, p := range s.proxies {
		p.SetBeforeHook(nil)
		p.SetAfterHook(nil)
	}
}

// kill ends the program when a write is one of the remaining points. The write, or its
// answer, is lost with it.
func (s *KillSweep) kill(p *Proxy, w Write, stored bool) error {
	victim := s.takePoint(p, w, stored)
	if victim == nil {
		return nil
	}
	victim.Kill()
	<-victim.Done()
	return DropConnection()
}

// takePoint removes the point of a write and returns who dies of it; nil for nobody.
func (s *KillSweep) takePoint(p *Proxy, w Write, stored bool) *process.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stored && w.Status >= 300 {
		return nil
	}
	i := slices.IndexFunc(s.remaining, func(point KillPoint) bool {
		return point.Stored == stored && (point.Proxy == nil || point.Proxy == p) && point.Matches(w)
	})
	if i < 0 {
		return nil
	}
	s.killed = append(s.killed, s.remaining[i].String())
	s.remaining = slices.Delete(s.remaining, i, i+1)
	return s.victim()
}

// KeepAlive restarts the program when it was killed. The mutex keeps the first writes of the
// new process waiting until it is known.
func (s *KillSweep) KeepAlive(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.victim().HasEnded() {
		require.NoError(t, s.restart(context.Background()))
	}
}

// Await waits for a condition that needs the program, which it keeps alive.
func (s *KillSweep) Await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.True(t, testenv.Await(t, func() bool { s.KeepAlive(t); return condition() }), "still waiting for %s; killed %v", what, s.Killed())
}

// Remaining lists the points at which the program was not killed yet.
func (s *KillSweep) Remaining() (points []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.remaining {
		points = append(points, p.String())
	}
	return points
}

// Killed lists the points at which the program was killed, in order.
func (s *KillSweep) Killed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.killed)
}
