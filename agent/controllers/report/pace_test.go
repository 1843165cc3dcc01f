package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// fullImage has every field that is reported. Its messages are as long as they may be for
// 128 of it to fit on a page, so that such a page has the most values and bytes.
func fullImage(n int) *v1alpha1.VMDiskImage {
	now := metav1.Unix(1_700_000_000, 0)
	message := strings.Repeat("y", 200)
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "farm", Name: fmt.Sprintf("image-%d", n), UID: types.UID(fmt.Sprintf("%036d", n)), CreationTimestamp: now,
			Annotations: map[string]string{v1alpha1.AnnotationCreatedFor: "vm"},
		},
		Spec: v1alpha1.VMDiskImageSpec{SourceType: v1alpha1.SourceHTTP, URL: fmt.Sprintf("https://images.example.com/%d", n), DiskSize: resource.MustParse("10Gi")},
		Status: v1alpha1.VMDiskImageStatus{
			Phase: v1alpha1.PhaseQueued, Reason: "Imported", Message: message, Revision: "r1", Attempts: 1, BytesTotal: 1 << 30,
			References: v1alpha1.References{Count: 1, UnreferencedSince: &now},
			Serving:    &v1alpha1.Serving{Revision: "r1"},
			Revisions:  []v1alpha1.RevisionStatus{{Revision: "r1", Outcome: v1alpha1.OutcomeSucceeded, ImportedAt: &now}},
			Prune:      &v1alpha1.PruneStatus{UID: types.UID(fmt.Sprintf("%036d", n)), State: v1alpha1.PrunePending, Reason: "UndoWindow", Message: message, Until: &now},
		},
	}
}

// measureReport returns what the events of a report cost: of all pages together, and of
// the most expensive page.
func measureReport(t *testing.T) (all, largest int64) {
	t.Helper()
	p, results := report.NewPaginator(nil), map[report.Key]v1alpha1.PlanItemReport{}
	for n := range v1alpha1.MaxReportPages * v1alpha1.MaxReportedImages {
		img := fullImage(n)
		p.SetImage(img)
		results[report.Key{Namespace: img.Namespace, Name: img.Name}] = v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied, Revision: "r1"}
	}
	p.SetPlanItems(results)
	for _, page := range p.Pages() {
		text, err := json.Marshal(metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Object: &v1alpha1.ClusterReport{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: page.Name}, Page: &v1alpha1.ReportPage{Images: p.PageImages(page.Name)},
		}}})
		require.NoError(t, err)
		cost, _, err := transport.MeasureCost(bytes.NewReader(text), math.MaxInt64)
		require.NoError(t, err)
		all, largest = all+cost, max(largest, cost)
	}
	return all, largest
}

// The hub cuts off a member whose events cost more than transport.Mailbox allows: an agent
// that writes as much as it may, and as often, is not.
func TestPaceIsWithinLimitsOfHub(t *testing.T) {
	all, largest := measureReport(t)
	const pages = maxRewrittenImages/v1alpha1.MaxReportedImages + 1 // the last may begin before the bound
	perSecond := int64(time.Second/MinInterval) * pages * largest
	t.Logf("report %d MiB, largest page %d KiB, %d KiB per second", all>>20, largest>>10, perSecond>>10)
	assert.LessOrEqual(t, all, transport.Mailbox.WatchBurst, "a report whose pages are all new")
	assert.LessOrEqual(t, perSecond, transport.Mailbox.WatchRate, "pages that change with every report")
}
