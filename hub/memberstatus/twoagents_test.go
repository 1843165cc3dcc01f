package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// The condition is steady while the agents take turns, across a change of the elected replica too, and
// ends some time after the last turn.
func TestTwoAgentsAreNamed(t *testing.T) {
	stored := func(v *memberstatus.Input) {
		v.TwoAgentsAt = now
		*v = withStoredStatus(*v)
		v.TwoAgentsAt = time.Time{}
	}
	for name, tt := range map[string]struct {
		change     func(*memberstatus.Input)
		wantReason string
		wantAfter  time.Duration
	}{
		"never seen":           {func(*memberstatus.Input) {}, v1alpha1.ReasonSameCluster, 0},
		"seen":                 {func(v *memberstatus.Input) { v.TwoAgentsAt = now.Add(-time.Minute) }, v1alpha1.ReasonTwoAgents, 19*time.Minute + time.Millisecond},
		"seen long ago":        {func(v *memberstatus.Input) { v.TwoAgentsAt = now.Add(-20 * time.Minute) }, v1alpha1.ReasonSameCluster, 0},
		"a new process":        {func(v *memberstatus.Input) { stored(v); v.WatchedSince = now }, v1alpha1.ReasonTwoAgents, 0},
		"it saw none":          {func(v *memberstatus.Input) { stored(v); v.WatchedSince = now.Add(-20 * time.Minute) }, v1alpha1.ReasonSameCluster, 0},
		"another member's":     {func(v *memberstatus.Input) { v.TwoAgentsAt, v.Holder = now, "paris" }, v1alpha1.ReasonDuplicateCluster, 0},
		"a cluster is refused": {func(v *memberstatus.Input) { v.TwoAgentsAt, v.OtherClusterUID = now, "2222" }, v1alpha1.ReasonAnotherCluster, 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := healthyInput()
			tt.change(&v)
			v.ReceivedAt = nil // its silence is rechecked sooner
			got, after := memberstatus.Compute(v)
			c := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionIdentityConfirmed)
			assert.Equal(t, tt.wantReason, c.Reason)
			if tt.wantAfter > 0 {
				assert.Equal(t, tt.wantAfter, after)
			}
			v.Member.Status = got
			isTwo := tt.wantReason == v1alpha1.ReasonTwoAgents
			assert.Equal(t, isTwo, memberstatus.StaleReason(v.Member) == v1alpha1.ReasonTwoAgents, "nothing is pruned by what one of them says")
			assert.Equal(t, isTwo, meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionReady).Reason == v1alpha1.ReasonTwoAgents)
		})
	}
}

func TestTwoAgentsInPullModeRegisterAnew(t *testing.T) {
	for pull, want := range map[bool]bool{true: true, false: false} {
		v := healthyInput()
		v.TwoAgentsAt, v.Connection.PullMode = now, pull
		got, _ := memberstatus.Compute(v)
		c := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionIdentityConfirmed)
		assert.Equal(t, metav1.ConditionFalse, c.Status)
		assert.Contains(t, c.Message, "Uninstall ot-agent")
		if want {
			assert.Contains(t, c.Message, "kubectl annotate --overwrite membercluster frankfurt pelotech.ot/join-token=$(date +%s)")
		} else {
			assert.NotContains(t, c.Message, "join-token")
		}
	}
}
