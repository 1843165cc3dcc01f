package report

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/reportlimits"
)

func (r *testReports) writeActivity(slots int32) {
	r.t.Helper()
	r.write(v1alpha1.ActivityName, func(report *v1alpha1.ClusterReport) {
		report.Activity = &v1alpha1.ReportedActivity{Slots: slots}
	})
}

func TestActivityIsReadOncePerChange(t *testing.T) {
	r := newTestReports(t)
	r.writePage("page", 10)
	r.writeRoot("page")
	r.reconcile()
	assert.Equal(t, v1alpha1.ReasonActivityMissing, r.Index.Activity(testMember).Unknown)
	r.writeActivity(2)
	for range 3 {
		r.reconcile()
	}
	assert.Equal(t, 1, r.reads[v1alpha1.ActivityName])
	got := r.Index.Activity(testMember)
	assert.Empty(t, got.Unknown)
	assert.EqualValues(t, 2, got.Reported.Slots)
	r.writeActivity(0)
	r.reconcile()
	assert.Zero(t, r.Index.Activity(testMember).Reported.Slots)

	delete(r.memoryClient.reports, v1alpha1.ActivityName)
	r.reconcile()
	assert.Equal(t, v1alpha1.ReasonActivityMissing, r.Index.Activity(testMember).Unknown, "not idle")
	assert.Equal(t, map[string]int{v1alpha1.MailboxName: 1, "page": 1, v1alpha1.ActivityName: 2}, r.reads)
}

// TestActivityIsNoPage: it is not deleted as one that the root does not list, and makes a
// report neither incomplete nor too large.
func TestActivityIsNoPage(t *testing.T) {
	r := newTestReports(t)
	r.writePage("page", 10)
	r.writeActivity(1)
	r.writeRoot("page")
	before := r.Index.Stats()
	assert.Zero(t, r.reconcile().RequeueAfter)
	r.clock = r.clock.Add(2 * reportlimits.UnlistedGrace)
	r.reconcile()
	assert.Equal(t, []string{v1alpha1.ActivityName, v1alpha1.MailboxName, "page"}, r.stored())
	assert.Zero(t, r.Store.Root(testMember).Excess)
	assert.Empty(t, r.Index.UnknownReason(testMember))
	assert.Equal(t, before.Pages+1, r.Index.Stats().Pages)
	_, found, err := r.Page(t.Context(), testMember, v1alpha1.ActivityName)
	require.NoError(t, err)
	assert.False(t, found)

	// A root that lists it as a page lists one that is missing.
	r.writeRoot("page", v1alpha1.ActivityName)
	r.reconcile()
	assert.Equal(t, v1alpha1.ReasonPagesMissing, r.Index.UnknownReason(testMember))
	assert.EqualValues(t, 1, r.Index.Activity(testMember).Reported.Slots)
}

func TestBadActivityHarmsOnlyItself(t *testing.T) {
	_, undecodable := time.Parse(time.RFC3339, "2026-01-01t10:00:00z")
	r := newTestReports(t)
	r.writePage("page", 10)
	r.writeActivity(1)
	r.writeRoot("page")
	assertIntact := func() {
		t.Helper()
		assert.Zero(t, r.Store.Root(testMember).Excess)
		assert.Empty(t, r.Index.UnknownReason(testMember))
		assert.True(t, r.Store.HasSynced())
	}

	r.failing[v1alpha1.ActivityName] = undecodable
	assert.Zero(t, r.reconcile().RequeueAfter)
	assert.Equal(t, v1alpha1.ReasonActivityMissing, r.Index.Activity(testMember).Unknown)
	assertIntact()

	failure := apierrors.NewServerTimeout(schema.GroupResource{}, "get", 1)
	r.failing[v1alpha1.ActivityName] = failure
	_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: testMember}})
	require.ErrorIs(t, err, failure, "it is repeated")
	assertIntact()

	clear(r.failing)
	r.reconcile()
	assert.Empty(t, r.Index.Activity(testMember).Unknown)

	r.write(v1alpha1.ActivityName, func(report *v1alpha1.ClusterReport) {
		for range 100 {
			report.Activity.Head = append(report.Activity.Head, v1alpha1.QueuedImport{Namespace: "farm", Name: strings.Repeat("x", 253)})
		}
	})
	r.reconcile()
	assert.Equal(t, v1alpha1.ReasonActivityOversized, r.Index.Activity(testMember).Unknown)
	assert.Nil(t, r.Index.Activity(testMember).Reported)
	assertIntact()
}
