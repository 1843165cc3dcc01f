//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	ctrl "sigs.k8s.io/controller-runtime"
)

// A plan is written when a version is to be kept, and when its member begins with
// it: not when members report, nor for the sake of others.
func TestPlanWritesPerStepOfARollout(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	run := preload{members: 12, atOnce: 4, takes: time.Second}
	_, versions, err := run.measure(t.Context())
	require.NoError(t, err)
	require.Len(t, versions, 2)
	assert.GreaterOrEqual(t, versions[0].took, run.ideal(), "more than %d at a time", run.atOnce)
	for _, p := range versions {
		t.Logf("version %s: %d plan writes, %d status writes, %.1f s", p.version, p.planWrites(), p.statusWrites(), p.took.Seconds())
		assert.LessOrEqual(t, p.planWrites(), 2*run.members, "version %s: %v", p.version, p.asked.breakdown(run.members))
	}
}
