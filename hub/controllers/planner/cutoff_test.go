package planner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Both agents read the plan: the hub begins no prune in two clusters of which it knows one.
func TestNoPruneBeginsWithTwoAgents(t *testing.T) {
	begun := v1alpha1.PlannedPrune{Namespace: "images", Name: "debian", ImageUID: "image-1", UID: "begun"}
	undone := begun
	undone.Undo = true
	later := v1alpha1.PlannedPrune{Namespace: "images", Name: "ubuntu", ImageUID: "image-2", UID: "later"}
	s := settledMember(t)
	s.prunes = []v1alpha1.PlannedPrune{begun}
	s.plan = decide(s).plan
	s.root.TwoAgentsAt = s.Now
	s.prunes = []v1alpha1.PlannedPrune{begun, later}
	assert.Nil(t, decide(s).plan, "what has begun goes on")
	s.prunes = []v1alpha1.PlannedPrune{undone, later}
	require.NotNil(t, decide(s).plan)
	assert.Equal(t, []v1alpha1.PlannedPrune{undone}, decide(s).plan.Spec.Prunes)
	undoneBefore := later
	undoneBefore.Undo = true
	s.prunes = []v1alpha1.PlannedPrune{begun, undoneBefore}
	require.NotNil(t, decide(s).plan)
	assert.Equal(t, s.prunes, decide(s).plan.Spec.Prunes, "an undo begins nothing, and its ImagePrune waits for the answer")
	s.prunes = []v1alpha1.PlannedPrune{later}
	require.NotNil(t, decide(s).plan)
	assert.Empty(t, decide(s).plan.Spec.Prunes, "what has ended is not planned")
	s.Now = s.Now.Add(20 * time.Minute)
	assert.Equal(t, s.prunes, decide(s).plan.Spec.Prunes)
}

// A member that has been silent since another hub was elected may return at any time, and is synced
// before the hub reads it. One that this hub is about to read keeps the prunes that run there: it would
// undo what its plan no longer names.
func TestPrunesOfASilentMemberAreWithdrawnTogether(t *testing.T) {
	ended := v1alpha1.PlannedPrune{Namespace: "images", Name: "debian", ImageUID: "image-1", UID: "ended"}
	runs := v1alpha1.PlannedPrune{Namespace: "images", Name: "ubuntu", ImageUID: "image-2", UID: "runs"}
	silent := metav1.Condition{Type: v1alpha1.ConditionAgentHealthy, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonSilent}
	for name, tt := range map[string]struct {
		change    func(*snapshot)
		requested []v1alpha1.PlannedPrune
		want      bool
		wantAfter time.Duration
	}{
		"silent since the election":   {func(*snapshot) {}, []v1alpha1.PlannedPrune{runs}, true, 0},
		"both still run":              {func(*snapshot) {}, []v1alpha1.PlannedPrune{ended, runs}, false, 0},
		"the hub was elected now":     {func(s *snapshot) { s.WatchedSince = s.Now.Add(-time.Second) }, []v1alpha1.PlannedPrune{runs}, false, confirmRetryDelay},
		"it reports":                  {func(s *snapshot) { s.Member.Status.Conditions = nil }, []v1alpha1.PlannedPrune{runs}, false, confirmRetryDelay},
		"it was read, and reads late": {func(s *snapshot) { s.syncResult.ConfirmedSequence = s.root.Sequence + 1 }, []v1alpha1.PlannedPrune{runs}, false, confirmRetryDelay},
		"in quarantine": {func(s *snapshot) {
			s.Member.Status.Conditions, s.Member.Spec.Quarantine = nil, &v1alpha1.MemberQuarantine{Reason: "it lies"}
		}, []v1alpha1.PlannedPrune{runs}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := settledMember(t)
			s.prunes = []v1alpha1.PlannedPrune{ended, runs}
			s.plan = decide(s).plan
			require.Len(t, s.plan.Spec.Prunes, 2)
			s.syncResult.ConfirmedSequence, s.WatchedSince = 0, s.Now.Add(-time.Hour)
			s.Member.Status.Conditions = []metav1.Condition{silent}
			s.Member.Status.LastReport = &metav1.Time{Time: s.Now.Add(-2 * time.Hour)}
			s.prunes = tt.requested
			tt.change(&s)
			d := decide(s)
			assert.Equal(t, tt.want, d.plan != nil)
			if tt.want {
				assert.Empty(t, d.plan.Spec.Prunes)
				assert.Equal(t, s.plan.Spec.Sequence+1, d.plan.Spec.Sequence)
			}
			if tt.wantAfter > 0 {
				assert.Equal(t, tt.wantAfter, d.recheckAfter)
			}
		})
	}
}
