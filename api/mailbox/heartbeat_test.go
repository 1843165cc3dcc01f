package mailbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestHeartbeatChangesOnlyTheTime(t *testing.T) {
	newRoot := func(change func(*v1alpha1.ClusterReport)) *v1alpha1.ClusterReport {
		r := &v1alpha1.ClusterReport{ClusterUID: "a", Sequence: 2, Root: &v1alpha1.ReportRoot{
			ObservedAt: metav1.NewTime(time.Unix(1, 0)), BootID: "boot", Policy: map[string]string{"concurrency": "2"},
			Pages: []v1alpha1.PageRef{{Name: "page-0", Sequence: 1}},
		}}
		change(r)
		return r
	}
	before := newRoot(func(*v1alpha1.ClusterReport) {})
	for name, c := range map[string]struct {
		after *v1alpha1.ClusterReport
		want  bool
	}{
		"only the time": {newRoot(func(r *v1alpha1.ClusterReport) { r.Sequence, r.Root.ObservedAt = 3, metav1.Now() }), true},
		"another page":  {newRoot(func(r *v1alpha1.ClusterReport) { r.Sequence, r.Root.Pages[0].Sequence = 3, 2 }), false},
		"a request": {newRoot(func(r *v1alpha1.ClusterReport) {
			r.Sequence, r.Root.Transfers = 3, &v1alpha1.ReportedTransfers{Nonce: "n"}
		}), false},
		"restarted": {newRoot(func(r *v1alpha1.ClusterReport) { r.Sequence, r.Root.BootID = 3, "another" }), false},
		"rebuilt":   {newRoot(func(r *v1alpha1.ClusterReport) { r.Sequence, r.ClusterUID = 3, "b" }), false},
		"not later": {newRoot(func(*v1alpha1.ClusterReport) {}), false},
		"older":     {newRoot(func(r *v1alpha1.ClusterReport) { r.Sequence = 1 }), false},
		"no root":   {&v1alpha1.ClusterReport{ClusterUID: "a", Sequence: 3}, false},
		"none":      {nil, false},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, IsHeartbeat(before, c.after)) })
	}
	assert.False(t, IsHeartbeat(nil, before))
}
