package rollout_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func toStoredTime(t time.Time) *metav1.Time {
	at := metav1.NewTime(t)
	return &at
}

// revision and digest of what apitest.FleetDiskImage("ubuntu") has as its template.
var revision, digest = apitest.FleetDiskImage("ubuntu").Obj().Spec.Template.Revision(), apitest.FleetDiskImage("ubuntu").Obj().Spec.Template.SourceDigest()

const deadline = time.Hour

// newCluster returns a cluster in the state of its letter, online for long:
//
//	.  to apply              f  to apply, its plan is full
//	P  progressing           S  succeeded
//	F  failed                T  timed out by the deadline above
//	D  offline, not started  d  offline, started
//	R  d that is back        s  offline after success
func newCluster(name string, letter rune) rollout.Cluster {
	c := rollout.Cluster{
		Name: name, Labels: map[string]string{"wave": strings.TrimRight(name, "-0123456789")},
		OnlineSince: now.Add(-24 * time.Hour),
	}
	started := func(at time.Time, phase v1alpha1.Phase, reason v1alpha1.Reason) {
		c.PlannedDigest, c.PlannedRevision, c.PlannedAt = digest, revision, at
		c.Report = rollout.Report{Exists: true, Revision: revision, Phase: phase, Reason: reason, Message: "as " + name + " says", ItemState: v1alpha1.PlanItemApplied}
	}
	switch letter {
	case '.':
	case 'f':
		c.PlanFull = true
	case 'P', 'R':
		started(now.Add(-deadline/2), v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting)
	case 'S', 's':
		started(now.Add(-deadline/2), v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady)
		c.Report.ServingRevision = revision
	case 'F':
		started(now.Add(-deadline/2), v1alpha1.PhaseFailed, v1alpha1.ReasonNotFound)
	case 'T':
		started(now.Add(-2*deadline), v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting)
	case 'D':
	case 'd':
		started(now.Add(-deadline/2), v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting)
	case 'q':
		started(now.Add(-deadline/2), v1alpha1.PhaseFailed, v1alpha1.ReasonNotFound)
		c.OfflineReason, c.OnlineSince = v1alpha1.ReasonQuarantined, time.Time{}
	default:
		panic(fmt.Sprintf("no letter %c", letter))
	}
	if letter == 'R' {
		c.OnlineSince = now.Add(-time.Minute)
	}
	if strings.ContainsRune("Dds", letter) {
		c.OfflineReason, c.OnlineSince = v1alpha1.ReasonSilent, time.Time{}
	}
	return c
}

// parseClusters reads "canary=SP rest=..": canary-0 has succeeded, canary-1 is in
// progress, rest-0 and rest-1 have not started. Label wave is the part before the dash.
func parseClusters(text string) (all []rollout.Cluster) {
	for wave := range strings.FieldsSeq(text) {
		name, letters, found := strings.Cut(wave, "=")
		if !found {
			panic(fmt.Sprintf("%q is no wave=letters", wave))
		}
		for i, letter := range letters {
			all = append(all, newCluster(fmt.Sprintf("%s-%d", name, i), letter))
		}
	}
	slices.SortFunc(all, func(a, b rollout.Cluster) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// newUbuntu is of waves canary and eu, and rest.
func newUbuntu() *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage("ubuntu").WithProgressDeadline(deadline).WithWave("canary").WithWave("eu")
}

func newView(img *apitest.FleetDiskImageBuilder, fleet string) rollout.View {
	return rollout.View{Image: img.Obj(), Clusters: parseClusters(fleet), Now: now}
}

// decideAndCheck checks the invariants of every decision.
func decideAndCheck(t require.TestingT, v rollout.View) rollout.Decision {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	before := v.Image.DeepCopy()
	d := rollout.Decide(v)
	require.Equal(t, before, v.Image, "Decide does not change its view")
	requireSameDecision(t, d, rollout.Decide(v), "the same view gives the same decision")
	again := v
	again.Image = v.Image.DeepCopy()
	again.Image.Status = *roundTripStatus(t, &d.Status)
	requireSameDecision(t, d, rollout.Decide(again), "the decided status is stable")
	statuscheck.RequireOneTrue(t, d.Status.Conditions)
	requireExpectation(t, v, d)
	return d
}

// requireExpectation: while clusters are unfinished there is an expectedAt that lies ahead, or
// the reason why not.
func requireExpectation(t require.TestingT, v rollout.View, d rollout.Decision) {
	st := &d.Status
	if st.ExpectedAt != nil {
		require.True(t, st.ExpectedAt.After(v.Now), "%s is in the past at %s", st.ExpectedAt, v.Now)
		require.Empty(t, st.ExpectedReason)
		require.Positive(t, d.EstimateAfter)
	} else if st.Clusters.ToApply+st.Clusters.Progressing > 0 {
		require.NotEmpty(t, st.ExpectedReason)
	}
}

// requireSameDecision compares decisions as JSON, as the API server stores a status.
func requireSameDecision(t require.TestingT, want, got rollout.Decision, why string) {
	require.Equal(t, toJSON(t, want), toJSON(t, got), why)
}

func toJSON(t require.TestingT, value any) string {
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return string(text)
}

// formatStates is the reverse of parseClusters.
func formatStates(d rollout.Decision) string {
	letters := map[v1alpha1.ClusterState]string{
		v1alpha1.ClusterToApply: ".", v1alpha1.ClusterProgressing: "P", v1alpha1.ClusterSucceeded: "S",
		v1alpha1.ClusterFailed: "F", v1alpha1.ClusterTimedOut: "T", v1alpha1.ClusterDeferred: "D",
	}
	var b strings.Builder
	wave := ""
	for _, p := range d.Placed {
		if p.Wave != wave {
			if wave != "" {
				b.WriteByte(' ')
			}
			wave = p.Wave
			b.WriteString(wave + "=")
		}
		b.WriteString(letters[p.State])
	}
	return b.String()
}

// advanceView returns the view after some time, with the status of a decision.
func advanceView(v rollout.View, d rollout.Decision, after time.Duration) rollout.View {
	v.Image = v.Image.DeepCopy()
	v.Image.Status = *d.Status.DeepCopy()
	v.Now = v.Now.Add(after)
	return v
}

func TestClusterLettersMatchDecidedStates(t *testing.T) {
	d := decideAndCheck(t, newView(newUbuntu().Paused(), "canary=.PSFTDdsfR eu=. other=."))
	require.Equal(t, "canary=.PSFTDDS.P eu=. rest=.", formatStates(d))
}

// roundTripStatus returns a status as the API server would.
func roundTripStatus(t require.TestingT, st *v1alpha1.FleetDiskImageStatus) *v1alpha1.FleetDiskImageStatus {
	text, err := json.Marshal(st)
	require.NoError(t, err)
	back := &v1alpha1.FleetDiskImageStatus{}
	require.NoError(t, json.Unmarshal(text, back))
	return back
}
