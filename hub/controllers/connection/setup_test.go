package connection

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// Credentials wait while the reports are read after an election, for a limited time.
func TestCredentialsWaitForReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports, began, reconciled := report.NewStore(), time.Now(), 0
		next := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			reconciled++
			return reconcile.Result{RequeueAfter: time.Hour}, nil
		})
		wait := reports.SyncWait()
		require.Positive(t, wait)
		for i := range 2 {
			result, err := afterSync{next, reports}.Reconcile(t.Context(), reconcile.Request{})
			require.NoError(t, err)
			assert.Equal(t, reconcile.Result{RequeueAfter: time.Hour}, result)
			assert.Equal(t, i+1, reconciled)
			assert.Equal(t, wait, time.Since(began))
		}
	})
}

// A move and an election change each MemberLink, and nothing that credentials depend on.
func TestCredentialsFollowConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.MemberLink)
		want   bool
	}{
		"another challenge": {func(l *v1alpha1.MemberLink) { l.Generation, l.Spec.Challenge = 2, "next" }, false},
		"another replica": {func(l *v1alpha1.MemberLink) {
			l.Generation, l.Spec.Replica, l.Status.Carrier, l.Status.ObservedGeneration = 2, "two", "two", 2
		}, false},
		"a confirmation":     {func(l *v1alpha1.MemberLink) { l.Status.Challenge, l.Status.Confirmed = "next", 3 }, false},
		"not reached":        {func(l *v1alpha1.MemberLink) { l.Status.Reachable = false }, true},
		"for another reason": {func(l *v1alpha1.MemberLink) { l.Status.Reason = v1alpha1.ReasonUnauthorized }, true},
		"with other words":   {func(l *v1alpha1.MemberLink) { l.Status.Message = "no route to host" }, true},
		"no longer known":    {func(l *v1alpha1.MemberLink) { l.Status.Known = false }, true},
		"another connection": {func(l *v1alpha1.MemberLink) { l.Status.Connection = "2" }, true},
		"another cluster":    {func(l *v1alpha1.MemberLink) { l.Status.Another = "b" }, true},
		"read over another":  {func(l *v1alpha1.MemberLink) { l.Status.ReportConnection = "2" }, true},
		"another MemberLink": {func(l *v1alpha1.MemberLink) { l.UID = "b" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := &v1alpha1.MemberLink{ObjectMeta: metav1.ObjectMeta{UID: "a", Generation: 1}, Status: v1alpha1.MemberLinkStatus{Known: true, Reachable: true, Connection: "1"}}
			after := before.DeepCopy()
			tt.change(after)
			assert.Equal(t, tt.want, connectionChanged().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}))
		})
	}
}
