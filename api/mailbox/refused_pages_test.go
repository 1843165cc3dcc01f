package mailbox

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Each change of a report leads to a sync, and a refused page would be sent with each.
func TestRefusedPageIsNotSentAgainUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newActivityRelay(t)
		r.refuses = true
		writePage := func() {
			r.write("page-1", func(o *v1alpha1.ClusterReport) { o.Page = &v1alpha1.ReportPage{} })
			r.write(v1alpha1.MailboxName, func(o *v1alpha1.ClusterReport) { o.Root.Pages = []v1alpha1.PageRef{{Name: "page-1", Sequence: 1}} })
		}
		wantRefused := func(sent int, why string) {
			t.Helper()
			r.write(v1alpha1.MailboxName, func(*v1alpha1.ClusterReport) {})
			_, err := r.SyncUp(t.Context(), "u")
			require.True(t, apierrors.IsInvalid(err), "%v", err)
			assert.Equal(t, sent, r.refused, why)
		}
		writePage()
		wantRefused(1, "it is sent")
		wantRefused(1, "only the root has changed")
		writePage()
		wantRefused(2, "it has changed")
		require.NoError(t, trigger.Sleep(t.Context(), RefusedPageDelay))
		wantRefused(3, "the hub's definitions may be newer now")
		r.refuses = false
		require.NoError(t, trigger.Sleep(t.Context(), RefusedPageDelay))
		assert.Equal(t, 1, r.sync().Written)
	})
}

// A member may name other pages in each report.
func TestRefusedPagesAreBounded(t *testing.T) {
	var e EqualCopies
	now := time.Now()
	for n := range 4 * v1alpha1.MaxReportPages {
		page := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("page-%d", n)}}
		e.recordRefusal(page, errors.New("refused"), now)
		require.Error(t, e.findRefusal(page, now))
	}
	assert.LessOrEqual(t, len(e.refusedPages), v1alpha1.MaxReportPages)
}
