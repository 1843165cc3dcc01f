//go:build linux

// Package outage_test has members of a hub go, hang, come back older than they
// were or as somebody else, and wants people to be told and nobody else to be
// disturbed.
package outage_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// shared is the fleet that the tests of this package have in common. A test
// leaves it as it found it.
var shared *fleet

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	f, err := startFleet(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if err := f.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return 1
	}
	shared = f
	code := m.Run()
	if err := f.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}
