//go:build linux

// Package restore_test does to a hub what happens to hubs: it is killed, paused,
// doubled, restored from a backup, and run in a cluster of its own fleet. Most of
// its members are light; one has an agent.
package restore_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// shared is the fleet that the tests of this package have in common. A hub is
// started by each of them.
var shared *fleet

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	f, err := startFleet(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = f
	code := m.Run()
	if err := f.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}
