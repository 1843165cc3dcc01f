package grant

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestReportsWithoutBudgetChangeNoGrant: then grants depend on the clusters of the members
// only.
func TestReportsWithoutBudgetChangeNoGrant(t *testing.T) {
	s := newTestHub(t, "a")
	assert.True(t, s.isOtherCluster("a"), "it was not gathered yet")
	s.applyPolicy(map[string]string{"concurrency": "2"})
	s.reconcile()
	assert.False(t, s.limited.Load())
	assert.False(t, s.isOtherCluster("a"))
	assert.True(t, s.isOtherCluster("b"))
	root := s.reports["a"]
	root.ClusterUID = "another"
	s.reports["a"] = root
	assert.True(t, s.isOtherCluster("a"))

	s.applyPolicy(map[string]string{"concurrency": "2", "fleetConcurrency": "4"})
	assert.Positive(t, s.reconcile().RequeueAfter, "missing heartbeats are no event")
	assert.True(t, s.limited.Load())
}

func TestGrantsDependOnPartsOfObjects(t *testing.T) {
	before := &v1alpha1.MemberCluster{Status: v1alpha1.MemberClusterStatus{ClusterUID: "a"}}
	for name, c := range map[string]struct {
		change func(*v1alpha1.MemberCluster)
		want   bool
	}{
		"last report": {func(m *v1alpha1.MemberCluster) { m.Status.LastReport = &metav1.Time{} }, false},
		"cluster":     {func(m *v1alpha1.MemberCluster) { m.Status.ClusterUID = "b" }, true},
		"accepted cluster": {func(m *v1alpha1.MemberCluster) {
			m.Annotations = map[string]string{v1alpha1.AnnotationAcceptCluster: "b"}
		}, true},
		"weight":     {func(m *v1alpha1.MemberCluster) { m.Labels = map[string]string{"site": "b"} }, true},
		"quarantine": {func(m *v1alpha1.MemberCluster) { m.Generation++ }, true},
		"removal":    {func(m *v1alpha1.MemberCluster) { m.DeletionTimestamp = &metav1.Time{Time: metav1.Now().Time} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			after := before.DeepCopy()
			c.change(after)
			assert.Equal(t, c.want, memberChanged().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}))
		})
	}
	link := &v1alpha1.MemberLink{}
	ahead := link.DeepCopy()
	ahead.Status.AheadGrant = 3
	assert.True(t, aheadGrantChanged().Update(event.UpdateEvent{ObjectOld: link, ObjectNew: ahead}))
	ahead.Status.AheadGrant, ahead.Status.Message = 0, "connected"
	assert.False(t, aheadGrantChanged().Update(event.UpdateEvent{ObjectOld: link, ObjectNew: ahead}))
	moved := ahead.DeepCopy()
	moved.Generation, moved.Spec.Replica, moved.Spec.Challenge = 2, "two", "next"
	assert.False(t, aheadGrantChanged().Update(event.UpdateEvent{ObjectOld: ahead, ObjectNew: moved}), "a move changes no grant")
}
