package report

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The namespace of a deleted MemberCluster has its report for some time, also after another of
// the same name is created.
func TestReportInNamespaceOfFormerMember(t *testing.T) {
	own := func() *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelMember: testMember}}}
	}
	going, foreign := own(), own()
	going.DeletionTimestamp = &metav1.Time{Time: metav1.Now().Time}
	foreign.Labels[v1alpha1.LabelMember] = "another"
	for name, namespace := range map[string]*corev1.Namespace{"it is being deleted": going, "it is gone": nil, "it is of another member": foreign} {
		t.Run(name, func(t *testing.T) {
			r := newTestReports(t)
			r.writePage("page", 10)
			r.writeRoot("page")
			reconcile := func() {
				_, err := r.Reconcile(t.Context(), trigger.Requests(testMember)[0])
				require.NoError(t, err)
			}
			reconcile()
			require.NotNil(t, r.Store.Root(testMember).Report)
			r.namespace = namespace
			reconcile()
			assert.Nil(t, r.Store.Root(testMember).Report)
			totals, _ := r.Index.Totals(testMember)
			assert.False(t, totals.Reported)
			assert.Len(t, r.memoryClient.reports, 2, "nothing is deleted in it")
			r.namespace = own()
			reconcile()
			assert.NotNil(t, r.Store.Root(testMember).Report, "it belongs to the member again")
		})
	}
}

func TestUsabilityChanged(t *testing.T) {
	before := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{UID: "1", Labels: map[string]string{v1alpha1.LabelMember: testMember}}}
	going, unlabelled, annotated := before.DeepCopy(), before.DeepCopy(), before.DeepCopy()
	going.DeletionTimestamp = &metav1.Time{Time: metav1.Now().Time}
	unlabelled.Labels = nil
	annotated.Annotations = map[string]string{"a": "b"}
	changed := func(after *corev1.Namespace) bool {
		return usabilityChanged().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	}
	assert.True(t, changed(going))
	assert.True(t, changed(unlabelled))
	assert.False(t, changed(annotated))
}
