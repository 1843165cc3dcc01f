package report_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var activityNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func activityTime(seconds int) *metav1.Time {
	t := metav1.NewTime(activityNow.Add(time.Duration(seconds) * time.Second))
	return &t
}

// activityMember is a member with slots and a queue.
type activityMember struct {
	slots   []v1alpha1.Slot
	waiting []ledger.QueuedImage
	images  map[types.UID]*v1alpha1.VMDiskImage
	policy  policy.Policy
	rates   *report.RateTracker
}

func newActivityMember() *activityMember {
	m := &activityMember{images: map[types.UID]*v1alpha1.VMDiskImage{}, policy: policy.Default(), rates: report.NewRateTracker(activityNow.Add(-time.Hour))}
	m.policy.Sources = policy.Sources{{Name: "eu-bucket", Hosts: []string{"*.example.com"}}}
	return m
}

func (m *activityMember) addImage(namespace, name, host string) *v1alpha1.VMDiskImage {
	img := &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name)},
		Spec:       v1alpha1.VMDiskImageSpec{SourceType: v1alpha1.SourceHTTP, URL: "https://" + host + "/" + name, DiskSize: resource.MustParse("24Gi")},
		Status: v1alpha1.VMDiskImageStatus{
			Revision: "r1", Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonWaitingForSlot,
			Revisions: []v1alpha1.RevisionStatus{{Revision: "r1"}},
		},
	}
	m.images[img.UID] = img
	return img
}

// addImport adds an import that has downloaded some bytes since it was started.
func (m *activityMember) addImport(namespace, name, host string, done, total int64) *v1alpha1.VMDiskImage {
	img := m.addImage(namespace, name, host)
	img.Status.Phase, img.Status.Reason = v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting
	img.Status.BytesDone, img.Status.BytesTotal = done, total
	rev := &img.Status.Revisions[0]
	rev.Attempt, rev.StartedAt, rev.ProgressedAt = 1, activityTime(-100), activityTime(0)
	m.slots = append(m.slots, v1alpha1.Slot{
		Image: v1alpha1.ImageKey{Namespace: namespace, Name: name, UID: img.UID}, Revision: "r1", Attempt: 1, StartedAt: *rev.StartedAt, Host: host,
	})
	return img
}

func (m *activityMember) addQueued(namespace, name, host string) *v1alpha1.VMDiskImage {
	img := m.addImage(namespace, name, host)
	m.waiting = append(m.waiting, ledger.QueuedImage{
		Image: v1alpha1.ImageKey{Namespace: namespace, Name: name, UID: img.UID}, Revision: "r1", Host: host, Key: v1alpha1.OrderingKey{Time: *activityTime(-600)},
	})
	return img
}

func (m *activityMember) build() v1alpha1.ReportedActivity {
	for _, img := range m.images {
		m.rates.ObserveImage(img, m.policy.Sources.GroupOrOther(strings.Split(img.Spec.URL, "/")[2]))
	}
	return report.BuildActivity(report.ActivityInput{
		Now: activityNow, BootID: "boot", Ledger: &v1alpha1.SyncLedgerStatus{Budget: 3, Slots: m.slots}, Waiting: m.waiting, Queued: len(m.waiting),
		Policy: m.policy, FindImage: func(key v1alpha1.ImageKey) *v1alpha1.VMDiskImage { return m.images[key.UID] }, Rates: m.rates,
	})
}

func TestActivity(t *testing.T) {
	m := newActivityMember()
	m.addImport("farm", "slow", "images.example.com", 10e9, 20e9)
	m.addImport("farm", "fast", "images.example.com", 19e9, 20e9)
	unsized := m.addImport("farm", "unsized", "elsewhere.org", 0, 24<<30) // of a source that reports no size
	unsized.Status.Revisions[0].Attempt, unsized.Status.Revisions[0].AttemptEnded = 2, 2
	unsized.Status.Revisions[0].AttemptsBefore, unsized.Status.BytesDone = 1, 0
	m.slots[2].Attempt = 3 // its start is not stored yet
	m.addQueued("farm", "next", "images.example.com").Status.BytesTotal = 8e9
	backsOff := m.addQueued("lab", "backs-off", "elsewhere.org")
	backsOff.Status.Reason, backsOff.Status.Attempts, backsOff.Status.Revisions[0].NotBefore = v1alpha1.ReasonBackingOff, 2, activityTime(60)
	m.waiting[1].Priority = 5

	started := *activityTime(-100)
	assert.Equal(t, v1alpha1.ReportedActivity{
		ObservedAt: *activityTime(0), BootID: "boot", Budget: 3, Slots: 3, Queued: 2,
		Active: []v1alpha1.ActiveImport{
			{Namespace: "farm", Name: "fast", Source: "eu-bucket", BytesDone: 19e9, BytesTotal: 20e9, BytesPerSecond: 19e7, StartedAt: started, Attempt: 1, MaxAttempts: 4},
			{Namespace: "farm", Name: "slow", Source: "eu-bucket", BytesDone: 10e9, BytesTotal: 20e9, BytesPerSecond: 10e7, StartedAt: started, Attempt: 1, MaxAttempts: 4},
			{Namespace: "farm", Name: "unsized", Source: "other", AtMostBytes: 24 << 30, StartedAt: started, Attempt: 2, MaxAttempts: 4},
		},
		Head: []v1alpha1.QueuedImport{
			{Namespace: "farm", Name: "next", Source: "eu-bucket", Bytes: 8e9, QueuedAt: *activityTime(-600), Reason: v1alpha1.ReasonWaitingForSlot},
			{Namespace: "lab", Name: "backs-off", Source: "other", AtMostBytes: 24 << 30, QueuedAt: *activityTime(-600), Reason: v1alpha1.ReasonBackingOff, Attempts: 2, NotBefore: activityTime(60), Priority: 5},
		},
		Rates: []v1alpha1.SourceRate{{Name: "eu-bucket", TransferredBytes: 29e9}},
	}, m.build())
}

func TestActivityWithoutLedgerAndImages(t *testing.T) {
	m := newActivityMember()
	m.addImport("farm", "deleted", "images.example.com", 1, 2)
	m.addQueued("farm", "also", "images.example.com")
	clear(m.images)
	got := m.build()
	assert.Equal(t, "deleted", got.Active[0].Name)
	assert.Equal(t, "also", got.Head[0].Name)
	got = report.BuildActivity(report.ActivityInput{Now: activityNow, BootID: "boot", Rates: m.rates})
	assert.Equal(t, v1alpha1.ReportedActivity{ObservedAt: *activityTime(0), BootID: "boot"}, got)
	assert.False(t, report.IsBusy(&got))
}

// addMany adds as many imports and queued images as an activity may list, and more.
func (m *activityMember) addMany(namespace, name string) {
	for n := range v1alpha1.MaxSlots {
		img := m.addImport(namespace, fmt.Sprintf("%s-%d", name, n), "images.example.com", 12_345_678_901+int64(n), 23_456_789_012)
		img.Status.Revisions[0].Attempt = 2
		m.slots[n].Attempt = 2
	}
	for n := range v1alpha1.MaxQueuedImports {
		m.addQueued(namespace, fmt.Sprintf("%s-q%d", name, n), "images.example.com").Status.BytesTotal = 23_456_789_012
	}
}

// addRates adds finished imports of some groups of sources.
func (m *activityMember) addRates(groups int, suffix string) {
	for g := range groups {
		for n := range 5 {
			img := m.addImage("rates", fmt.Sprintf("%d-%d", g, n), "images.example.com")
			img.Status.BytesTotal, img.Status.BytesDone = 23_456_789_012, 23_456_789_012
			img.Status.Revisions[0] = v1alpha1.RevisionStatus{
				Revision: "r1", Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeSucceeded, StartedAt: activityTime(-900 - n), ImportedAt: activityTime(-600),
			}
			m.rates.ObserveImage(img, fmt.Sprintf("group-%d%s", g, suffix))
			delete(m.images, img.UID)
		}
	}
}

func TestFullActivityFits(t *testing.T) {
	m := newActivityMember()
	m.addMany("workspace-images", "windows-server-2025-24.2")
	m.addRates(3, "")
	got := m.build()
	assert.Len(t, got.Active, v1alpha1.MaxActiveImports)
	assert.Len(t, got.Head, v1alpha1.MaxQueuedImports)
	assert.EqualValues(t, v1alpha1.MaxSlots, got.Slots)
	text, err := json.Marshal(got)
	require.NoError(t, err)
	t.Logf("%d bytes", len(text))
	assert.LessOrEqual(t, len(text), 6000)
	schemacheck.RequireFieldStorable(t, "ClusterReport", "activity", &got)
}

// TestActivityWithLongNamesIsCut: both lists are cut at their ends, and what is stored is what
// was built.
func TestActivityWithLongNamesIsCut(t *testing.T) {
	m := newActivityMember()
	m.addMany(strings.Repeat("n", 63), strings.Repeat("x", 249))
	m.addRates(v1alpha1.MaxSourceRates+3, strings.Repeat("g", 50))
	got := m.build()
	assert.Len(t, got.Rates, v1alpha1.MaxSourceRates)
	require.NotEmpty(t, got.Active)
	require.NotEmpty(t, got.Head)
	assert.InDelta(t, len(got.Active), len(got.Head), 1)
	assert.Equal(t, m.waiting[0].Image.Name, got.Head[0].Name)
	assert.EqualValues(t, v1alpha1.MaxQueuedImports, got.Queued, "all are counted")
	text, err := json.Marshal(got)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(text), v1alpha1.MaxActivityBytes)
	schemacheck.RequireFieldStorable(t, "ClusterReport", "activity", &got)
}

// TestAnyActivityCanBeStored: whatever images and slots say, the API server stores what is
// built, and within the limit.
func TestAnyActivityCanBeStored(t *testing.T) {
	name := rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,60}[a-z0-9])?`)
	number := rapid.OneOf(rapid.Int64Range(0, 1<<62), rapid.SampledFrom([]int64{0, 1, 24 << 30}))
	at := rapid.Map(rapid.IntRange(-100_000, 100_000), activityTime)
	rapid.Check(t, func(t *rapid.T) {
		m := newActivityMember()
		host := rapid.SampledFrom([]string{"images.example.com", "elsewhere.org"})
		for range rapid.IntRange(0, 40).Draw(t, "imports") {
			img := m.addImport(name.Draw(t, "namespace"), name.Draw(t, "name"), host.Draw(t, "host"), number.Draw(t, "done"), number.Draw(t, "total"))
			rev := &img.Status.Revisions[0]
			rev.StartedAt, rev.ProgressedAt, rev.ImportedAt = at.Draw(t, "started"), at.Draw(t, "progressed"), at.Draw(t, "imported")
			rev.AttemptEnded = rapid.Int32Range(0, 1).Draw(t, "ended")
			rev.Outcome = rapid.SampledFrom([]v1alpha1.Outcome{v1alpha1.OutcomeSucceeded, v1alpha1.OutcomeFailed}).Draw(t, "outcome")
		}
		for range rapid.IntRange(0, 25).Draw(t, "queued") {
			img := m.addQueued(name.Draw(t, "namespace"), name.Draw(t, "name"), host.Draw(t, "host"))
			img.Status.BytesTotal, img.Status.Revisions[0].NotBefore = number.Draw(t, "bytes"), at.Draw(t, "not before")
		}
		got := m.build()
		text, err := json.Marshal(got)
		require.NoError(t, err)
		require.LessOrEqual(t, len(text), v1alpha1.MaxActivityBytes)
		schemacheck.RequireFieldStorable(t, "ClusterReport", "activity", &got)
		require.Equal(t, len(m.slots) > 0 || len(m.waiting) > 0, report.IsBusy(&got))
		for i := range got.Head {
			require.Equal(t, m.waiting[i].Image.Name, got.Head[i].Name, "in the order of the queue")
		}
	})
}
