//go:build linux

package process

import (
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
)

var interrupts struct {
	sync.Mutex
	installed bool
	stops     []*func()
}

// AtInterrupt registers stop to run on SIGINT or SIGTERM, the latest registered first. Afterwards
// the program ends by that signal. cancel removes the registration.
func AtInterrupt(stop func()) (cancel func()) {
	interrupts.Lock()
	defer interrupts.Unlock()
	if !interrupts.installed {
		interrupts.installed = true
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		go stopAll(signals)
	}
	entry := &stop
	interrupts.stops = append(interrupts.stops, entry)
	return func() {
		interrupts.Lock()
		defer interrupts.Unlock()
		interrupts.stops = slices.DeleteFunc(interrupts.stops, func(e *func()) bool { return e == entry })
	}
}

func stopAll(signals <-chan os.Signal) {
	received := (<-signals).(syscall.Signal)
	for {
		interrupts.Lock()
		if len(interrupts.stops) == 0 {
			// The lock is never released: nothing may start any more.
			signal.Reset(received)
			_ = syscall.Kill(os.Getpid(), received)
			select {}
		}
		last := len(interrupts.stops) - 1
		stop := *interrupts.stops[last]
		interrupts.stops = interrupts.stops[:last]
		interrupts.Unlock()
		stop()
	}
}
