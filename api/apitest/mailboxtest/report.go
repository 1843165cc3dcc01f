package mailboxtest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ReportWriter writes reports as an agent does, with a counter for a clock.
type ReportWriter struct {
	*Mailbox
	UID   types.UID
	clock int64
	// Boot and Orphans are those of the next root.
	Boot    string
	Orphans int32
	// Sequences are those of the pages that the next root lists.
	Sequences map[string]int64
}

// NewReportWriter returns an agent of Cluster.
func NewReportWriter(b *Mailbox) *ReportWriter {
	return &ReportWriter{Mailbox: b, UID: Cluster, clock: 1, Boot: "boot", Sequences: map[string]int64{}}
}

func (a *ReportWriter) writeReport(name string, change func(*v1alpha1.ClusterReport)) int64 {
	a.Helper()
	report := &v1alpha1.ClusterReport{ObjectMeta: ObjectMeta(a.AgentNamespace, name)}
	err := a.Member.Get(a.Context(), client.ObjectKeyFromObject(report), report)
	report.ClusterUID = a.UID
	a.clock++
	report.Sequence = max(report.Sequence+1, a.clock)
	change(report)
	if err != nil {
		require.NoError(a, client.IgnoreNotFound(err))
		a.CreateObject(a.Member, report)
	} else {
		require.NoError(a, a.Member.Update(a.Context(), report))
	}
	return report.Sequence
}

// WritePage writes a page that the next root lists.
func (a *ReportWriter) WritePage(name, message string) {
	a.Helper()
	a.Sequences[name] = a.writeReport(name, func(r *v1alpha1.ClusterReport) {
		r.Page = &v1alpha1.ReportPage{}
		for i := range 3 {
			r.Page.Images = append(r.Page.Images, v1alpha1.ReportedImage{
				Namespace: "images", Name: fmt.Sprintf("%s-%d", name, i), Phase: v1alpha1.PhaseQueued, Message: message,
				SyncedAt: &metav1.Time{Time: time.Unix(a.clock, 0)},
			})
		}
	})
}

// WriteRoot writes a root with the pages that were written and not dropped.
func (a *ReportWriter) WriteRoot() {
	a.Helper()
	a.writeReport(v1alpha1.MailboxName, func(r *v1alpha1.ClusterReport) {
		r.Root = &v1alpha1.ReportRoot{
			ObservedAt: metav1.Time{Time: time.Unix(a.clock, 0)}, HeartbeatSeconds: 20, BootID: a.Boot, AgentVersion: "test",
			OrphanCount: a.Orphans,
		}
		for name, sequence := range a.Sequences {
			r.Root.Pages = append(r.Root.Pages, v1alpha1.PageRef{Name: name, Sequence: sequence, Images: 3})
		}
	})
}

// WriteActivity writes the activity of one import.
func (a *ReportWriter) WriteActivity(slots int32) {
	a.Helper()
	a.writeReport(v1alpha1.ActivityName, func(r *v1alpha1.ClusterReport) {
		r.Activity = &v1alpha1.ReportedActivity{
			ObservedAt: metav1.Time{Time: time.Unix(a.clock, 0)}, BootID: a.Boot, Slots: slots,
			Active: []v1alpha1.ActiveImport{{Namespace: "images", Name: "debian", Source: "eu", BytesDone: 5, BytesTotal: 10, StartedAt: metav1.Unix(1, 0)}},
		}
	})
}

// DropPage removes a page from the next root.
func (a *ReportWriter) DropPage(name string) { delete(a.Sequences, name) }

// DeletePage deletes a page in the member.
func (a *ReportWriter) DeletePage(name string) {
	a.Helper()
	require.NoError(a, a.Member.Delete(a.Context(), &v1alpha1.ClusterReport{ObjectMeta: ObjectMeta(a.AgentNamespace, name)}))
}

// ListReports returns the reports of one end without metadata.
func (b *Mailbox) ListReports(c client.Client, namespace string) map[string]v1alpha1.ClusterReport {
	b.Helper()
	var list v1alpha1.ClusterReportList
	require.NoError(b, c.List(b.Context(), &list, client.InNamespace(namespace)))
	found := map[string]v1alpha1.ClusterReport{}
	for _, item := range list.Items {
		found[item.Name] = v1alpha1.ClusterReport{ClusterUID: item.ClusterUID, Sequence: item.Sequence, Root: item.Root, Page: item.Page, Activity: item.Activity}
	}
	return found
}

// RequireSameReports requires that the hub has the member's report.
func (b *Mailbox) RequireSameReports() {
	b.Helper()
	require.Equal(b, b.ListReports(b.Member, b.AgentNamespace), b.ListReports(b.Hub, b.HubNamespace))
}

// EditHubCopy changes an object of the hub's copy of the report.
func (b *Mailbox) EditHubCopy(name string, change func(*v1alpha1.ClusterReport)) {
	b.Helper()
	report := &v1alpha1.ClusterReport{}
	require.NoError(b, b.Hub.Get(b.Context(), client.ObjectKey{Namespace: b.HubNamespace, Name: name}, report))
	change(report)
	require.NoError(b, b.Hub.Update(b.Context(), report))
}
