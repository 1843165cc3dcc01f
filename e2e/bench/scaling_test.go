//go:build linux

package main

import (
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestWritesPerImageDoNotGrowWithTheQueue counts writes, which do not depend on the machine's load.
// `make bench` measures CPU time and memory.
func TestWritesPerImageDoNotGrowWithTheQueue(t *testing.T) {
	testenv.RunInTurn(t, 0)
	ctrl.SetLogger(logr.Discard())
	sc := scaleRun{short: 20, long: 120, processed: 20, budget: 4}
	short, long, err := sc.measureQueues(t.Context())
	require.NoError(t, err)
	a, b := short.arrival.add(short.processing).writes, long.arrival.add(long.processing).writes
	t.Logf("writes per image: %.2f behind %d, %.2f behind %d", a, sc.short, b, sc.long)
	assert.LessOrEqual(t, b/a, maxGrowth, "behind %d images:\n%v\nbehind %d:\n%v",
		sc.short, short.requests.breakdown(sc.processed), sc.long, long.requests.breakdown(sc.processed))
	assert.Less(t, b, 20.0, "writes per image, Events included")
}
