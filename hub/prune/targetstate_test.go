package prune_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

func TestTargetState(t *testing.T) {
	s := newPruneScenario()
	s.reportState(v1alpha1.PruneSkipped, v1alpha1.PruneChanged, "a/farm/ubuntu-1")
	s.held["b/farm/ubuntu-1"], s.held["b/farm/z"] = v1alpha1.PruneAnotherPrune, v1alpha1.ReasonPlanFull
	require.Equal(t, s.reported["a/farm/ubuntu-1"], prune.TargetState(s.PruneView, s.Targets[0]))
	another, full := prune.TargetState(s.PruneView, s.Targets[1]), prune.TargetState(s.PruneView, s.Targets[2])
	require.Equal(t, v1alpha1.PruneAnotherPrune, another.Reason)
	require.Contains(t, another.Message, "older ImagePrune")
	require.Equal(t, v1alpha1.ReasonPlanFull, full.Reason)
	require.Contains(t, full.Message, "no room")

	stranger := s.Targets[0]
	stranger.Name = "stranger"
	require.Equal(t, v1alpha1.PruneUnknown, prune.TargetState(s.PruneView, stranger).State)
	s.Members["b"] = prune.Member{ClusterUID: "rebuilt"}
	require.Equal(t, v1alpha1.PruneClusterGone, prune.TargetState(s.PruneView, s.Targets[1]).Reason)
	s.Prune.Status.Phase = v1alpha1.ImagePruneFailed
	s.reported, s.Members["b"] = nil, prune.Member{ClusterUID: "uid-b"}
	require.Equal(t, v1alpha1.PruneUnknown, prune.TargetState(s.PruneView, s.Targets[1]).State, "no state is remembered without a report")
	s.Prune.Status.Phase, s.HeldReason = v1alpha1.ImagePrunePending, nil
	require.Equal(t, v1alpha1.PruneWaiting, prune.TargetState(s.PruneView, s.Targets[1]).State)

	for reason, want := range map[string]string{
		v1alpha1.ReasonSilent: "it is offline", v1alpha1.ReasonNeverReported: "it is offline", v1alpha1.ReasonQuarantined: "it is in quarantine",
		v1alpha1.ReasonTwoAgents: "two agents report as it", v1alpha1.ReasonAnotherCluster: "its identity is not confirmed",
	} {
		offline := newPruneScenario()
		offline.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: reason}
		waits := prune.TargetState(offline.PruneView, offline.Targets[1]).Message
		require.Contains(t, waits, "waiting for its cluster: "+want+", and", reason)
		require.Equal(t, reason == v1alpha1.ReasonTwoAgents, !strings.Contains(waits, "and continues when"), "%s: with two agents, what has begun goes on", reason)
		offline.Now = now.Add(time.Minute)
		offline.Prune.Status = decideAndCheck(t, offline.PruneView).Status
		require.Contains(t, offline.Prune.Status.Message, ", for b ("+want+"). ", reason)
		offline.Now = now.Add(100 * time.Hour)
		late := prune.TargetState(offline.PruneView, offline.Targets[1])
		require.Contains(t, late.Message, "; "+want, reason)
		require.Equal(t, reason == v1alpha1.ReasonTwoAgents, !strings.Contains(late.Message, "it deletes only"), reason)
		require.Less(t, len(late.Message), 256, "a status stores all of it")
	}

	nameless := newPruneScenario()
	nameless.Targets[0].ClusterUID, nameless.Members["a"] = "", prune.Member{}
	require.Equal(t, v1alpha1.PruneClusterGone, prune.TargetState(nameless.PruneView, nameless.Targets[0]).Reason, "a cluster without a UID never matches")
}

// Of two agents that report in turns, one may be in a cluster that never had the image.
func TestDeletedIsNotTakenFromTwoAgents(t *testing.T) {
	for name, tt := range map[string]struct {
		undo     bool
		offline  string
		reported v1alpha1.PruneState
		want     v1alpha1.PruneState
		wantLate v1alpha1.PruneState
	}{
		"deleted":                         {false, "", v1alpha1.PrunePruned, v1alpha1.PrunePruned, v1alpha1.PrunePruned},
		"deleted, and silent since":       {false, v1alpha1.ReasonSilent, v1alpha1.PrunePruned, v1alpha1.PrunePruned, v1alpha1.PrunePruned},
		"deleted, of two agents":          {false, v1alpha1.ReasonTwoAgents, v1alpha1.PrunePruned, v1alpha1.PruneWaiting, v1alpha1.PruneUnknown},
		"an undo too late":                {true, "", v1alpha1.PrunePruned, v1alpha1.PrunePruned, v1alpha1.PrunePruned},
		"an undo too late, of two agents": {true, v1alpha1.ReasonTwoAgents, v1alpha1.PrunePruned, v1alpha1.PruneWaiting, v1alpha1.PruneUnknown},
		"undone, of two agents":           {true, v1alpha1.ReasonTwoAgents, v1alpha1.PruneUndone, v1alpha1.PruneUndone, v1alpha1.PruneUndone},
		"pending, of two agents":          {false, v1alpha1.ReasonTwoAgents, v1alpha1.PrunePending, v1alpha1.PrunePending, v1alpha1.PruneUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPruneScenario(func(p *v1alpha1.ImagePrune) { p.Spec.Undo = tt.undo })
			s.reportState(tt.reported, "", "a/farm/ubuntu-1")
			s.Members["a"] = prune.Member{ClusterUID: "uid-a", OfflineReason: tt.offline}
			s.Now = now.Add(time.Minute)
			s.Prune.Status = decideAndCheck(t, s.PruneView).Status
			require.Equal(t, tt.want, prune.TargetState(s.PruneView, s.Targets[0]).State)
			s.Now = now.Add(100 * time.Hour)
			d := decideAndCheck(t, s.PruneView).Status
			require.Equal(t, tt.wantLate, prune.TargetState(s.PruneView, s.Targets[0]).State)
			require.Equal(t, tt.wantLate == v1alpha1.PrunePruned, d.PrunedBytes > 0)
		})
	}
}

// What a cluster says that a prune waits for there is shown, and also when the deadline has passed.
func TestWaitingTargetSaysWhatItsClusterWaitsFor(t *testing.T) {
	s := newPruneScenario()
	s.Now = now.Add(time.Minute)
	s.Prune.Status = decideAndCheck(t, s.PruneView).Status
	require.Equal(t, v1alpha1.ImagePruneRunning, s.Prune.Status.Phase)
	s.reportState(v1alpha1.PruneWaiting, v1alpha1.PruneAnotherPrune, "a/farm/ubuntu-1")
	want := v1alpha1.PruneStatus{UID: s.Prune.UID, State: v1alpha1.PruneWaiting, Message: "as a/farm/ubuntu-1 says"}
	require.Equal(t, want, prune.TargetState(s.PruneView, s.Targets[0]), "reasons are the hub's own")
	s.held["a/farm/ubuntu-1"] = v1alpha1.PruneAnotherPrune
	require.Contains(t, prune.TargetState(s.PruneView, s.Targets[0]).Message, "older ImagePrune")
	delete(s.held, "a/farm/ubuntu-1")
	s.Members["a"] = prune.Member{ClusterUID: "uid-a", OfflineReason: v1alpha1.ReasonSilent}
	require.Contains(t, prune.TargetState(s.PruneView, s.Targets[0]).Message, "it is offline")

	s.Now = now.Add(100 * time.Hour)
	cutOff := prune.TargetState(s.PruneView, s.Targets[0])
	s.Members["a"] = prune.Member{ClusterUID: "uid-a"}
	late := prune.TargetState(s.PruneView, s.Targets[0])
	require.Equal(t, v1alpha1.PruneDeadline, late.Reason)
	require.Contains(t, late.Message, "; its last report says: as a/farm/ubuntu-1 says")
	require.Equal(t, v1alpha1.PruneDeadline, cutOff.Reason)
	require.Contains(t, cutOff.Message, "; it is offline: it deletes only what")
}

// A status stores whole sentences of what is known of a target at the deadline.
func TestDeadlineMessageIsNotCut(t *testing.T) {
	waiting := v1alpha1.PruneStatus{State: v1alpha1.PruneWaiting, Message: strings.Repeat("w", 155) + " end."} // 160 bytes, as agents keep to
	pending := v1alpha1.PruneStatus{State: v1alpha1.PrunePending, Message: "until then"}
	for name, test := range map[string]struct {
		reported v1alpha1.PruneStatus
		offline  string
		wantEnd  string
	}{
		"it waits":                {waiting, "", "w end."},
		"it waits and is offline": {waiting, v1alpha1.ReasonSilent, "names when that has ended"},
		"in its undo window":      {pending, v1alpha1.ReasonSilent, "the end of its undo window"},
		"it says nothing":         {v1alpha1.PruneStatus{}, "", "(see its MemberCluster)"},
		"it waits for nothing":    {v1alpha1.PruneStatus{State: v1alpha1.PruneWaiting}, "", "(see its MemberCluster)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPruneScenario()
			s.Now = now.Add(100 * time.Hour)
			s.Members["a"] = prune.Member{ClusterUID: "uid-a", OfflineReason: test.offline}
			if test.reported.State != "" {
				s.reported["a/farm/ubuntu-1"] = test.reported
			}
			st := decideAndCheck(t, s.PruneView).Status
			require.Equal(t, v1alpha1.PruneDeadline, st.Skipped[0].Reason)
			require.Regexp(t, regexp.QuoteMeta(test.wantEnd)+"$", st.Skipped[0].Message)
		})
	}
}

func TestEndedPruneRemembersTargetStates(t *testing.T) {
	const a, b, z = "a/farm/ubuntu-1", "b/farm/ubuntu-1", "b/farm/z"
	states := func(s *pruneScenario) (states []v1alpha1.PruneState) {
		for _, target := range s.Targets {
			states = append(states, prune.TargetState(s.PruneView, target).State)
		}
		return states
	}
	tests := map[string]struct {
		reported map[string]v1alpha1.PruneState
		// still is what clusters report after the end.
		still map[string]v1alpha1.PruneState
		want  []v1alpha1.PruneState
	}{
		"all deleted": {
			map[string]v1alpha1.PruneState{a: v1alpha1.PrunePruned, b: v1alpha1.PrunePruned, z: v1alpha1.PrunePruned}, nil,
			[]v1alpha1.PruneState{v1alpha1.PrunePruned, v1alpha1.PrunePruned, v1alpha1.PrunePruned},
		},
		"one was skipped": {
			map[string]v1alpha1.PruneState{a: v1alpha1.PrunePruned, b: v1alpha1.PruneSkipped, z: v1alpha1.PrunePruned}, nil,
			[]v1alpha1.PruneState{v1alpha1.PrunePruned, v1alpha1.PruneSkipped, v1alpha1.PrunePruned},
		},
		"one was unknown and reports later": {
			map[string]v1alpha1.PruneState{a: v1alpha1.PrunePruned, z: v1alpha1.PrunePruned}, map[string]v1alpha1.PruneState{b: v1alpha1.PruneUndone},
			[]v1alpha1.PruneState{v1alpha1.PrunePruned, v1alpha1.PruneUnknown, v1alpha1.PrunePruned},
		},
		"some were undone": {
			map[string]v1alpha1.PruneState{a: v1alpha1.PrunePruned, b: v1alpha1.PruneUndone, z: v1alpha1.PruneUndone}, map[string]v1alpha1.PruneState{b: v1alpha1.PruneUndone},
			[]v1alpha1.PruneState{v1alpha1.PruneUnknown, v1alpha1.PruneUndone, v1alpha1.PruneUnknown},
		},
		"all were undone": {
			map[string]v1alpha1.PruneState{a: v1alpha1.PruneUndone, b: v1alpha1.PruneUndone, z: v1alpha1.PruneUndone}, nil,
			[]v1alpha1.PruneState{v1alpha1.PruneUndone, v1alpha1.PruneUndone, v1alpha1.PruneUndone},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newPruneScenario()
			s.Now = now.Add(24 * time.Hour)
			for key, state := range test.reported {
				s.reportState(state, "", key)
			}
			s.Prune.Status = roundTrip(t, decideAndCheck(t, s.PruneView).Status)
			require.True(t, s.Prune.Status.Phase.IsFinal())
			clear(s.reported)
			for key, state := range test.still {
				s.reportState(state, "", key)
			}
			require.Equal(t, test.want, states(s))
			s.Members = nil
			require.Equal(t, test.want[0], states(s)[0], "also after the cluster is gone")
		})
	}
	s := newPruneScenario()
	s.Prune.Status.Phase, s.Prune.Status.Targets = v1alpha1.ImagePruneComplete, v1alpha1.TargetCounts{Total: 60, Skipped: 51, Pruned: 9}
	s.Prune.Status.Skipped = make([]v1alpha1.TargetSummary, 50)
	require.Equal(t, v1alpha1.PruneUnknown, states(s)[0], "the status does not list all skipped targets")
}

func TestTargetsBeyondPlanLimitAreSkipped(t *testing.T) {
	s := newPruneScenario()
	s.Prune.Spec.IncludeOthers = true
	s.Targets = prune.SelectTargets(&s.Prune.Spec, []v1alpha1.ReportedCluster{newLargeCluster("a", 10, 0, 0), newLargeCluster("b", 600, 0, 0)})
	d := decideAndCheck(t, s.PruneView)
	require.Equal(t, v1alpha1.TargetCounts{Total: 610, Waiting: 510, Skipped: 100}, d.Status.Targets)
	require.Len(t, d.Status.Skipped, 50)
	require.Equal(t, v1alpha1.PruneTooMany, d.Status.Skipped[0].Reason)
	require.Equal(t, "image-000500", d.Status.Skipped[0].Name)
	require.Contains(t, d.Status.Skipped[0].Message, "review a new PruneReport and create an ImagePrune for it", "the message is not cut")
	planned := prune.PlannedPrunes(s.Prune, s.Targets)["b"]
	require.Equal(t, "image-000499", planned[len(planned)-1].Name)
	for i, target := range s.Targets {
		want := v1alpha1.PruneWaiting
		if i >= 510 {
			want = v1alpha1.PruneSkipped
		}
		require.Equal(t, want, prune.TargetState(s.PruneView, target).State, fmt.Sprint(i))
	}
}
