package plan_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// The plan of a hub whose clock was ahead gets the time that its deadline counts from, and is no other
// plan by that.
func TestEarlierTimeIsWrittenAlone(t *testing.T) {
	v := plan.Input{ClusterUID: uid, ReportClusterUID: uid, Report: &v1alpha1.ReportRoot{}, Images: []v1alpha1.PlannedImage{plannedImage("a", "1Gi"), plannedImage("b", "1Gi")}}
	v.Images[0].PlannedAt, v.Images[1].PlannedAt = timeAt(1), timeAt(9)
	current, write, _ := plan.Next(v)
	assert.True(t, write)
	before := *current.DeepCopy()
	v.Current, v.Images = &current, []v1alpha1.PlannedImage{plannedImage("b", "1Gi"), plannedImage("a", "1Gi")}
	v.Images[0].PlannedAt, v.Images[1].PlannedAt = timeAt(5), timeAt(1)
	next, write, _ := plan.Next(v)
	assert.True(t, write)
	assert.Equal(t, timeAt(5), next.Images[1].PlannedAt)
	before.Images[1].PlannedAt = timeAt(5)
	assert.Equal(t, before, next)
	v.Current = &next
	_, write, _ = plan.Next(v)
	assert.False(t, write)
}
