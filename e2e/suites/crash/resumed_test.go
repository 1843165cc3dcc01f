//go:build linux

package crash

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// resumableLeader is a leader whose writes count from its resumption on.
type resumableLeader struct {
	*faults.FaultyAgent
	resumed atomic.Bool
	mu      sync.Mutex
	late    []string // writes after the resumption
}

func startResumableLeader(t *testing.T, args ...string) *resumableLeader {
	t.Helper()
	l := &resumableLeader{}
	l.FaultyAgent = faults.StartLeader(t, env, faults.WriteHooks{Before: func(_ *faults.FaultyAgent, w faults.Write) error {
		if l.resumed.Load() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.late = append(l.late, w.String())
		}
		return nil
	}}, args...)
	return l
}

// resumeUntilEnd resumes the leader, which has to end by itself, and returns what it wrote.
func (l *resumableLeader) resumeUntilEnd(t *testing.T) []string {
	t.Helper()
	l.resumed.Store(true)
	require.NoError(t, l.Resume())
	require.True(t, testenv.AwaitCondition(t, l.HasEnded), "the resumed leader works on beside its successor")
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.late
}

// awaitSuccessor waits until another agent than the holder of the Lease leads.
func awaitSuccessor(t *testing.T, holder string) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		now := program.AgentLeaseHolder(t.Context(), env.Client())
		return now != "" && now != holder
	}), "no agent took over from the paused leader")
}

// TestResumedLeaderWritesNothing pauses a leader, with no request in flight, until its Lease
// has expired and its successor has changed everything that the paused one knows. What it
// has missed waits in its watches: it would act on that at once.
func TestResumedLeaderWritesNothing(t *testing.T) {
	env.StorePolicy(t, newPolicy("1"))
	ns, o := env.CreateNamespace(t), env.StartObserver(t)
	leader := startResumableLeader(t, "--leader-elect-lease-duration=20s", "--leader-elect-renew-deadline=17s", "--leader-elect-retry-period=1s")
	before := env.NewImage(ns, "before", "/ok/before.qcow2")
	env.Create(t, before)
	env.AwaitImage(t, before, testenv.InPhase(v1alpha1.PhaseSucceeded))
	holder := program.AgentLeaseHolder(t.Context(), env.Client())
	require.NoError(t, leader.Pause(t.Context()))

	images := []*v1alpha1.VMDiskImage{before}
	for _, name := range []string{"first", "second"} {
		img := env.NewImage(ns, name, "/ok/"+name+".qcow2")
		env.Create(t, img)
		images = append(images, img)
	}
	successor := faults.StartAgent(t, env, faults.WriteHooks{}, "--leader-elect-lease-duration=30s", "--leader-elect-renew-deadline=20s")
	awaitSuccessor(t, holder)
	for _, img := range images {
		env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	}
	last := env.NewImage(ns, "last", "/hang/last.qcow2")
	env.Create(t, last)
	env.AwaitImage(t, last, testenv.InPhase(v1alpha1.PhaseSyncing))

	assert.Empty(t, leader.resumeUntilEnd(t), "writes beside the successor")
	h := requirePromisesKept(t, o)
	for _, img := range append(images, last) {
		assert.Equal(t, 1, h.Attempts(img.UID), "DataVolumes of %s", img.Name)
	}
	requireDeleted(t, successor, ns, append(images, last)...)
}

// TestResumedLeaderNoticesAtOnce: the leader could try for an hour to renew its Lease,
// which another agent holds.
func TestResumedLeaderNoticesAtOnce(t *testing.T) {
	leader := startResumableLeader(t, "--leader-elect-lease-duration=2h", "--leader-elect-renew-deadline=1h", "--leader-elect-retry-period=1s")
	holder := program.AgentLeaseHolder(t.Context(), env.Client())
	require.NoError(t, leader.Pause(t.Context()))
	require.NoError(t, program.DeleteAgentLease(t.Context(), env.Client()))
	faults.StartAgent(t, env, faults.WriteHooks{}, "--leader-elect-lease-duration=30s", "--leader-elect-renew-deadline=20s")
	awaitSuccessor(t, holder)
	leader.resumeUntilEnd(t)
}
