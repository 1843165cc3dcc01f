package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/heartbeat"
)

// TestHeartbeatIsNoChange: what the report says reaches nobody again, but its time and
// sequence do.
func TestHeartbeatIsNoChange(t *testing.T) {
	r := newTestReports(t)
	changes, beats := 0, 0
	r.Store.OnChange(func(string) { changes++ })
	r.Store.OnHeartbeat(func(string) { beats++ })
	r.writePage("page", 10)
	r.writeRoot("page")
	r.reconcile()
	assert.Equal(t, []int{1, 0}, []int{changes, beats}, "the first report")

	sendHeartbeat := func(after time.Duration) {
		r.clock = r.clock.Add(after)
		r.write(v1alpha1.MailboxName, func(report *v1alpha1.ClusterReport) { report.Root.ObservedAt = metav1.NewTime(r.clock) })
		r.reconcile()
	}
	sendHeartbeat(20 * time.Second)
	sendHeartbeat(20 * time.Second)
	assert.Equal(t, []int{1, 2}, []int{changes, beats})
	root := r.Store.Root(testMember)
	assert.Equal(t, r.clock, *root.ReceivedAt)
	assert.Equal(t, r.clock, root.Report.ObservedAt.Time, "ages of images are judged by it")
	assert.Equal(t, r.sequence, root.Sequence)

	sendHeartbeat(time.Hour)
	assert.Equal(t, []int{2, 2}, []int{changes, beats}, "the member was silent")

	r.writePage("page", 20)
	r.writeRoot("page")
	r.reconcile()
	assert.Equal(t, []int{3, 2}, []int{changes, beats}, "a page changed")
	r.reconcile()
	assert.Equal(t, []int{4, 2}, []int{changes, beats}, "what else may have changed is not known")
}

// TestPublishedHeartbeatIsAsOneThatIsCopied: what differs is that nothing is read.
func TestPublishedHeartbeatIsAsOneThatIsCopied(t *testing.T) {
	r := newTestReports(t)
	changes, beats := 0, 0
	r.Store.OnChange(func(string) { changes++ })
	r.Store.OnHeartbeat(func(string) { beats++ })
	publish := func(copyVersion string, after time.Duration) {
		r.clock = r.clock.Add(after)
		r.sequence++
		var published heartbeat.Published
		published.Set(testMember, &mailbox.Heartbeat{CopyVersion: copyVersion, Sequence: r.sequence, ObservedAt: metav1.NewTime(r.clock)})
		r.Heartbeats.SetReplicas(map[string]map[string]string{"replica": {heartbeat.Annotation: published.Text()}})
		r.reconcile()
	}
	r.writePage("page", 10)
	r.writeRoot("page")
	r.reconcile()
	reads, version := r.reads[v1alpha1.MailboxName], r.memoryClient.reports[v1alpha1.MailboxName].ResourceVersion
	publish(version, 20*time.Second)
	publish(version, 20*time.Second)
	assert.Equal(t, []int{1, 2}, []int{changes, beats})
	root := r.Store.Root(testMember)
	assert.Equal(t, r.clock, *root.ReceivedAt)
	assert.True(t, root.Report.ObservedAt.Time.Equal(r.clock), "ages of images are judged by it")
	assert.Equal(t, r.sequence, root.Sequence)
	assert.Equal(t, reads, r.reads[v1alpha1.MailboxName])

	r.Heartbeats.SetReplicas(nil)
	r.reconcile()
	assert.Equal(t, root.Sequence, r.Store.Root(testMember).Sequence, "a replica that ends takes nothing back")
	assert.Equal(t, r.clock, *r.Store.Root(testMember).ReceivedAt)

	heard := r.clock
	publish("of-another-copy", time.Minute)
	assert.Equal(t, heard, *r.Store.Root(testMember).ReceivedAt, "it says nothing of what was read")
	publish(version, time.Hour)
	assert.Equal(t, r.clock, *r.Store.Root(testMember).ReceivedAt)
	assert.Equal(t, 2, beats, "the member was silent: that is a change")

	r.writeRoot("page")
	r.reconcile()
	assert.Equal(t, r.sequence, r.Store.Root(testMember).Sequence)
}

// A heartbeat's time is the member's word, as a root's is: one in year 10000 could not be stored again.
func TestTimeOfPublishedHeartbeatIsBounded(t *testing.T) {
	r := newTestReports(t)
	r.writePage("page", 10)
	r.writeRoot("page")
	r.reconcile()
	var published heartbeat.Published
	published.Set(testMember, &mailbox.Heartbeat{
		CopyVersion: r.memoryClient.reports[v1alpha1.MailboxName].ResourceVersion, Sequence: r.sequence + 1,
		ObservedAt: metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -12*3600))),
	})
	r.Heartbeats.SetReplicas(map[string]map[string]string{"replica": {heartbeat.Annotation: published.Text()}})
	r.reconcile()
	root := r.Store.Root(testMember)
	require.Equal(t, r.sequence+1, root.Sequence)
	assert.Equal(t, 9998, root.Report.ObservedAt.UTC().Year())
}

// TestHeartbeatOutdatesActivity: an activity that does not go on is unknown after three
// heartbeats.
func TestHeartbeatOutdatesActivity(t *testing.T) {
	r := newTestReports(t)
	r.writeRoot()
	r.write(v1alpha1.ActivityName, func(report *v1alpha1.ClusterReport) {
		report.Activity = &v1alpha1.ReportedActivity{ObservedAt: metav1.NewTime(r.clock), Slots: 1}
	})
	r.reconcile()
	for range 5 {
		r.clock = r.clock.Add(30 * time.Second)
		r.write(v1alpha1.MailboxName, func(report *v1alpha1.ClusterReport) { report.Root.ObservedAt = metav1.NewTime(r.clock) })
		r.reconcile()
	}
	assert.Equal(t, v1alpha1.ReasonActivityOutdated, r.Index.Activity(testMember).Unknown)
}
