//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestPlanWritesPerStepOfARollout wants a member's plan to be written when a version has to be kept
// and when the member may begin with it, and not when this or another member reports.
func TestPlanWritesPerStepOfARollout(t *testing.T) {
	testenv.RunInTurn(t, 1)
	ctrl.SetLogger(logr.Discard())
	run := preloadRun{members: 12, concurrency: 4, importDuration: time.Second}
	_, versions, err := run.measureVersions(t.Context())
	require.NoError(t, err)
	require.Len(t, versions, 2)
	assert.GreaterOrEqual(t, versions[0].duration, run.idealDuration(), "more than %d at a time", run.concurrency)
	for _, p := range versions {
		t.Logf("version %s: %d plan writes, %d status writes, %.1f s", p.version, p.countPlanWrites(), p.countStatusWrites(), p.duration.Seconds())
		assert.LessOrEqual(t, p.countPlanWrites(), 2*run.members, "version %s: %v", p.version, p.requests.breakdown(run.members))
	}
}
