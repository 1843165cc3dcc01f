package memberstatus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestIsHeartbeat(t *testing.T) {
	at := func(minute int) *metav1.Time {
		return &metav1.Time{Time: time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)}
	}
	before := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "u", ResourceVersion: "1", Labels: map[string]string{"a": "b"}},
		Status:     v1alpha1.MemberClusterStatus{LastReport: at(0), Budget: ptr.To[int32](2)},
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.MemberCluster)
		want   bool
	}{
		"later report": {func(*v1alpha1.MemberCluster) {}, true},
		"first report": {func(m *v1alpha1.MemberCluster) { m.Status.LastReport = nil }, true},
		"status":       {func(m *v1alpha1.MemberCluster) { m.Status.Budget = ptr.To[int32](3) }, false},
		"condition": {func(m *v1alpha1.MemberCluster) {
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionQuarantined}}
		}, false},
		"label":      {func(m *v1alpha1.MemberCluster) { m.Labels = nil }, false},
		"annotation": {func(m *v1alpha1.MemberCluster) { m.Annotations = map[string]string{"a": "b"} }, false},
		"deletion":   {func(m *v1alpha1.MemberCluster) { m.DeletionTimestamp = at(1) }, false},
		"spec":       {func(m *v1alpha1.MemberCluster) { m.Spec.InsecureSkipTLSVerify = true }, false},
		"another":    {func(m *v1alpha1.MemberCluster) { m.UID = "v" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			after := before.DeepCopy()
			after.ResourceVersion, after.Status.LastReport = "2", at(1)
			c.change(after)
			assert.Equal(t, c.want, IsHeartbeat(before, after))
		})
	}
	assert.False(t, IsHeartbeat(&v1alpha1.FleetDiskImage{}, &v1alpha1.FleetDiskImage{}))
}
