//go:build linux

package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Member clocks a day ahead and a day behind neither time anything out nor delay it. The clock
// of a real agent is the machine's, so these members are fakes.
func TestRolloutWithClockSkew(t *testing.T) {
	testenv.RunInTurn(t, 3)
	t.Parallel()
	fakes, err := fakemember.Start(t.Context(), shared.Plane, "clock", 2)
	require.NoError(t, err)
	t.Cleanup(fakes.Stop)
	day := 24 * time.Hour
	var names []string
	for i, m := range fakes.List {
		skew := day
		if i > 0 {
			skew = -day
		}
		m.SetClockSkew(skew)
		names = append(names, m.Name)
		shared.JoinFakeAs(t, m, map[string]string{labelSite: m.Name})
		shared.AwaitHealthy(t, m.Name)
	}
	img := shared.newFleetImage("clocks", names...)
	setOneAtATime(img, newWave("ahead", labelSite, names[0]))
	img.Spec.Rollout.ProgressDeadline = &metav1.Duration{Duration: time.Hour}
	img.Spec.Rollout.MinSuccessTime = &metav1.Duration{Duration: time.Second}
	name := img.ImageNameForVersion("1")
	before := time.Now().Truncate(time.Second)
	shared.createFleetImage(t, img)
	for i, m := range fakes.List {
		var planned *v1alpha1.PlannedImage
		require.True(t, testenv.AwaitCondition(t, func() bool {
			planned = plannedImage(shared.getPlan(t, shared, m.Name), name)
			return planned != nil
		}), "%s does not get the image in its plan", m.Name)
		require.NotNil(t, shared.findPlannedImage(t, m.Name, name).PlannedAt)
		assert.WithinRange(t, shared.findPlannedImage(t, m.Name, name).PlannedAt.Time, before, time.Now(), "by the hub's clock")
		report := v1alpha1.ReportedImage{
			Namespace: namespace, Name: name, UID: "1", Origin: v1alpha1.OriginPlan, Revision: planned.Spec.Revision(),
			Phase: v1alpha1.PhaseSyncing, Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied},
		}
		require.NoError(t, m.SetImages(t.Context(), "page", []v1alpha1.ReportedImage{report}))
		shared.awaitFleetImage(t, img, m.Name+" syncing", hasCounts(v1alpha1.ClusterCounts{Total: 2, Progressing: 1, Succeeded: int32(i), ToApply: int32(1 - i)}))
		report.Phase, report.ServingRevision = v1alpha1.PhaseSucceeded, report.Revision
		require.NoError(t, m.SetImages(t.Context(), "page", []v1alpha1.ReportedImage{report}))
	}
	done := shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	for _, wave := range done.Status.Waves {
		require.NotNil(t, wave.DoneAt, wave.Name)
		assert.WithinRange(t, wave.DoneAt.Time, before, time.Now(), wave.Name)
	}
	assert.Equal(t, names, shared.journal.imageCourse(t, name).begun)
}
