//go:build linux

package controlplane

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

// RunTests runs the tests of a package with one control plane, on which prepare installs what they
// need, and exits.
func RunTests(m *testing.M, o Options, prepare func(context.Context, *ControlPlane) error) {
	code, err := runWithPlane(m, o, prepare)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runWithPlane(m *testing.M, o Options, prepare func(context.Context, *ControlPlane) error) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	plane, err := Start(ctx, o)
	if err != nil {
		return 0, err
	}
	defer func() {
		if stopErr := plane.Stop(); err == nil {
			err = stopErr
		}
	}()
	if err := prepare(ctx, plane); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
