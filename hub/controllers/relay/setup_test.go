package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
)

// Only what says nothing new waits for others.
func TestHeartbeatsWaitForEachOther(t *testing.T) {
	root := func(sequence, seconds int64, boot string) *v1alpha1.ClusterReport {
		return &v1alpha1.ClusterReport{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}, ClusterUID: "c", Sequence: sequence,
			Root: &v1alpha1.ReportRoot{ObservedAt: metav1.NewTime(time.Unix(seconds, 0)), BootID: boot},
		}
	}
	for name, event := range map[string]hubclient.Event{
		"first":      {Object: root(1, 10, "a")},
		"changed":    {Before: root(1, 10, "a"), Object: root(2, 20, "b")},
		"deleted":    {Object: root(2, 20, "a"), Deleted: true},
		"other kind": {Object: &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}}},
	} {
		assert.Zero(t, syncDelay(event), name)
	}
	delay := syncDelay(hubclient.Event{Before: root(1, 10, "a"), Object: root(2, 20, "a")})
	assert.Positive(t, delay)
	assert.LessOrEqual(t, delay, shard.HeartbeatTick)
}
