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
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func stamp(t time.Time) *metav1.Time {
	at := metav1.NewTime(t)
	return &at
}

// revision of what apitest.FleetDiskImage("ubuntu") has as its template.
var revision = apitest.FleetDiskImage("ubuntu").Obj().Spec.Template.Revision()

const deadline = time.Hour

// cluster is online for long, and begun or not by its letter:
//
//	.  to apply            f  full: its plan has no room
//	P  progressing         S  succeeded
//	F  failed              T  timed out, given the deadline above
//	D  offline, not begun  d  offline, begun
//	R  d that is back      s  offline, after it has succeeded
func cluster(name string, letter rune) rollout.Cluster {
	c := rollout.Cluster{
		Name: name, Labels: map[string]string{"wave": strings.TrimRight(name, "-0123456789")},
		OnlineSince: now.Add(-24 * time.Hour),
	}
	begun := func(at time.Time, phase v1alpha1.Phase, reason v1alpha1.Reason) {
		c.Planned, c.PlannedAt = revision, at
		c.Report = rollout.Report{There: true, Revision: revision, Phase: phase, Reason: reason, Message: "as " + name + " says", Item: v1alpha1.PlanItemApplied}
	}
	switch letter {
	case '.':
	case 'f':
		c.Full = true
	case 'P', 'R':
		begun(now.Add(-deadline/2), v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting)
	case 'S', 's':
		begun(now.Add(-deadline/2), v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady)
		c.Report.ServingRevision = revision
	case 'F':
		begun(now.Add(-deadline/2), v1alpha1.PhaseFailed, v1alpha1.ReasonNotFound)
	case 'T':
		begun(now.Add(-2*deadline), v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting)
	case 'D':
	case 'd':
		begun(now.Add(-deadline/2), v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting)
	default:
		panic(fmt.Sprintf("no letter %c", letter))
	}
	if letter == 'R' {
		c.OnlineSince = now.Add(-time.Minute)
	}
	if strings.ContainsRune("Dds", letter) {
		c.Offline, c.OnlineSince = v1alpha1.ReasonSilent, time.Time{}
	}
	return c
}

// clusters reads "canary=SP rest=..": canary-0 has succeeded, canary-1 is on its
// way, and rest-0 and rest-1 are to apply. Label wave has the part before the dash.
func clusters(text string) (all []rollout.Cluster) {
	for wave := range strings.FieldsSeq(text) {
		name, letters, found := strings.Cut(wave, "=")
		if !found {
			panic(fmt.Sprintf("%q is no wave=letters", wave))
		}
		for i, letter := range letters {
			all = append(all, cluster(fmt.Sprintf("%s-%d", name, i), letter))
		}
	}
	slices.SortFunc(all, func(a, b rollout.Cluster) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// ubuntu is of waves canary and eu, and rest.
func ubuntu() *apitest.FleetDiskImageBuilder {
	return apitest.FleetDiskImage("ubuntu").WithProgressDeadline(deadline).WithWave("canary").WithWave("eu")
}

func view(img *apitest.FleetDiskImageBuilder, fleet string) rollout.View {
	return rollout.View{Image: img.Obj(), Clusters: clusters(fleet), Now: now}
}

// decide checks what holds of every decision.
func decide(t require.TestingT, v rollout.View) rollout.Decision {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	before := v.Image.DeepCopy()
	d := rollout.Decide(v)
	require.Equal(t, before, v.Image, "a decision changes nothing it is given")
	same(t, d, rollout.Decide(v), "the same view gives the same decision")
	again := v
	again.Image = v.Image.DeepCopy()
	again.Image.Status = *stored(t, &d.Status)
	same(t, d, rollout.Decide(again), "with the status that was decided there is nothing more to write")
	return d
}

// same compares decisions, and their status as the API server stores it.
func same(t require.TestingT, want, got rollout.Decision, why string) {
	require.Equal(t, text(t, want), text(t, got), why)
}

func text(t require.TestingT, of any) string {
	text, err := json.Marshal(of)
	require.NoError(t, err)
	return string(text)
}

// states writes what was decided of each cluster as clusters reads it.
func states(d rollout.Decision) string {
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

// later is the same view with the status of a decision, after a while.
func later(v rollout.View, d rollout.Decision, after time.Duration) rollout.View {
	v.Image = v.Image.DeepCopy()
	v.Image.Status = *d.Status.DeepCopy()
	v.Now = v.Now.Add(after)
	return v
}

func TestTheLettersOfThisPackagesTests(t *testing.T) {
	d := decide(t, view(ubuntu().Paused(), "canary=.PSFTDdsfR eu=. other=."))
	require.Equal(t, "canary=.PSFTDDS.P eu=. rest=.", states(d))
}

// stored is a status as the API server gives it back.
func stored(t require.TestingT, st *v1alpha1.FleetDiskImageStatus) *v1alpha1.FleetDiskImageStatus {
	text, err := json.Marshal(st)
	require.NoError(t, err)
	back := &v1alpha1.FleetDiskImageStatus{}
	require.NoError(t, json.Unmarshal(text, back))
	return back
}
