//go:build linux

package relay_test

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// reportWriter writes reports as an agent does, with a counter for a clock.
type reportWriter struct {
	*mailboxEnd
	uid   types.UID
	clock int64
	// boot and orphans are those of the next root.
	boot    string
	orphans int32
	// sequences are those of the pages that the next root lists.
	sequences map[string]int64
}

func newReportWriter(b *mailboxEnd) *reportWriter {
	return &reportWriter{mailboxEnd: b, uid: cluster, clock: 1, boot: "boot", sequences: map[string]int64{}}
}

func (a *reportWriter) writeReport(name string, change func(*v1alpha1.ClusterReport)) int64 {
	a.Helper()
	report := &v1alpha1.ClusterReport{ObjectMeta: objectMeta(a.agentNamespace, name)}
	err := memberClient.Get(a.Context(), client.ObjectKeyFromObject(report), report)
	report.ClusterUID = a.uid
	a.clock++
	report.Sequence = max(report.Sequence+1, a.clock)
	change(report)
	if err != nil {
		require.NoError(a, client.IgnoreNotFound(err))
		a.createObject(memberClient, report)
	} else {
		require.NoError(a, memberClient.Update(a.Context(), report))
	}
	return report.Sequence
}

// writePage writes a page that the next root lists.
func (a *reportWriter) writePage(name, message string) {
	a.Helper()
	a.sequences[name] = a.writeReport(name, func(r *v1alpha1.ClusterReport) {
		r.Page = &v1alpha1.ReportPage{}
		for i := range 3 {
			r.Page.Images = append(r.Page.Images, v1alpha1.ReportedImage{
				Namespace: "images", Name: fmt.Sprintf("%s-%d", name, i), Phase: v1alpha1.PhaseQueued, Message: message,
				SyncedAt: &metav1.Time{Time: time.Unix(a.clock, 0)},
			})
		}
	})
}

func (a *reportWriter) writeRoot() {
	a.Helper()
	a.writeReport(v1alpha1.MailboxName, func(r *v1alpha1.ClusterReport) {
		r.Root = &v1alpha1.ReportRoot{
			ObservedAt: metav1.Time{Time: time.Unix(a.clock, 0)}, HeartbeatSeconds: 20, BootID: a.boot, AgentVersion: "test",
			OrphanCount: a.orphans,
		}
		for name, sequence := range a.sequences {
			r.Root.Pages = append(r.Root.Pages, v1alpha1.PageRef{Name: name, Sequence: sequence, Images: 3})
		}
	})
}

func (a *reportWriter) writeActivity(slots int32) {
	a.Helper()
	a.writeReport(v1alpha1.ActivityName, func(r *v1alpha1.ClusterReport) {
		r.Activity = &v1alpha1.ReportedActivity{
			ObservedAt: metav1.Time{Time: time.Unix(a.clock, 0)}, BootID: a.boot, Slots: slots,
			Active: []v1alpha1.ActiveImport{{Namespace: "images", Name: "debian", Source: "eu", BytesDone: 5, BytesTotal: 10, StartedAt: metav1.Unix(1, 0)}},
		}
	})
}

// dropPage removes a page from the next root.
func (a *reportWriter) dropPage(name string) { delete(a.sequences, name) }

// deletePage deletes a page in the member.
func (a *reportWriter) deletePage(name string) {
	a.Helper()
	require.NoError(a, memberClient.Delete(a.Context(), &v1alpha1.ClusterReport{ObjectMeta: objectMeta(a.agentNamespace, name)}))
}

// listReports returns the reports of one end without metadata.
func (b *mailboxEnd) listReports(c client.Client, namespace string) map[string]v1alpha1.ClusterReport {
	b.Helper()
	var list v1alpha1.ClusterReportList
	require.NoError(b, c.List(b.Context(), &list, client.InNamespace(namespace)))
	found := map[string]v1alpha1.ClusterReport{}
	for _, item := range list.Items {
		found[item.Name] = v1alpha1.ClusterReport{ClusterUID: item.ClusterUID, Sequence: item.Sequence, Root: item.Root, Page: item.Page, Activity: item.Activity}
	}
	return found
}

// requireSameReports requires that the hub has the member's report.
func (b *mailboxEnd) requireSameReports() {
	b.Helper()
	require.Equal(b, b.listReports(memberClient, b.agentNamespace), b.listReports(hubClient, b.hubNamespace))
}

// editHubCopy changes an object of the hub's copy of the report.
func (b *mailboxEnd) editHubCopy(name string, change func(*v1alpha1.ClusterReport)) {
	b.Helper()
	report := &v1alpha1.ClusterReport{}
	require.NoError(b, hubClient.Get(b.Context(), client.ObjectKey{Namespace: b.hubNamespace, Name: name}, report))
	change(report)
	require.NoError(b, hubClient.Update(b.Context(), report))
}
