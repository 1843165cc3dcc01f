package report

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

func TestStoreHasSyncedWhenStoredReportsAreRead(t *testing.T) {
	s, notified := NewStore(), 0
	s.OnSynced(func() { notified++ })
	s.markRead("a")
	assert.False(t, s.HasSynced(), "it is not known yet what there is")
	s.expectMembers([]string{"a", "b"})
	assert.False(t, s.HasSynced())
	s.markRead("c")
	assert.False(t, s.HasSynced())
	s.markRead("b")
	assert.True(t, s.HasSynced())
	s.markRead("b")
	assert.Equal(t, 1, notified)

	empty := NewStore()
	empty.OnSynced(func() { notified++ })
	empty.expectMembers(nil)
	assert.True(t, empty.HasSynced())
	assert.Equal(t, 2, notified)
}

// What waits for the reports goes on once they are read, and after a while without.
func TestSyncIsAwaitedForLimitedTime(t *testing.T) {
	for name, tt := range map[string]struct {
		readAfter time.Duration // 0 for never
		want      time.Duration
	}{
		"read":     {10 * time.Second, 10 * time.Second},
		"not read": {0, MaxSyncWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, began := NewStore(), time.Now()
				if tt.readAfter > 0 {
					time.AfterFunc(tt.readAfter, func() { s.expectMembers(nil) })
				}
				assert.Equal(t, MaxSyncWait, s.SyncWait())
				s.AwaitSync(t.Context())
				assert.Equal(t, tt.want, time.Since(began))
				s.AwaitSync(t.Context())
				assert.Equal(t, tt.want, time.Since(began), "it has waited enough")
				assert.Zero(t, s.SyncWait())
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		NewStore().AwaitSync(ended)
		assert.Zero(t, time.Since(began), "it ends with the process")
	})
}

func TestReceivedAtIgnoresStoredReports(t *testing.T) {
	s, now := NewStore(), time.Now()
	at := func(sequence int64) *v1alpha1.ClusterReport {
		return &v1alpha1.ClusterReport{ClusterUID: "uid", Sequence: sequence, Root: &v1alpha1.ReportRoot{}}
	}
	received := func() time.Time {
		t, _ := s.ReceivedAt("a")
		return t
	}
	s.setRoot("a", at(1), now)
	assert.Zero(t, received(), "it may have been stored for long")
	s.expectMembers(nil)
	s.setRoot("a", at(1), now)
	assert.Zero(t, received())
	s.setRoot("a", at(2), now)
	assert.Equal(t, now, received())
	s.setRoot("a", at(2), now.Add(time.Minute))
	assert.Equal(t, now, received(), "nothing new")
	s.setRoot("b", at(1), now)
	_, ok := s.ReceivedAt("b")
	assert.True(t, ok, "the first of a member that comes later is new")
	s.setRoot("a", nil, now)
	assert.Nil(t, s.Root("a").Report)
}

// Agents restart, and each process has a boot ID of its own; one that comes back is of an agent that
// has run all the time.
func TestTwoAgentsReportInTurns(t *testing.T) {
	for name, tt := range map[string]struct {
		boots     string
		recreated bool
		want      bool
	}{
		"one agent":                     {boots: "aaaa"},
		"restarts":                      {boots: "abcdefg"},
		"two in turns":                  {boots: "aba", want: true},
		"two, heartbeats between":       {boots: "aabbaa", want: true},
		"one of the two restarts":       {boots: "abcda", want: true},
		"in the report of a new object": {boots: "aba", recreated: true},
		"without a boot ID":             {boots: "a-b-"},
	} {
		t.Run(name, func(t *testing.T) {
			s, begin := NewStore(), time.Now()
			s.expectMembers(nil)
			for i, boot := range tt.boots {
				report := &v1alpha1.ClusterReport{ClusterUID: "uid", Sequence: int64(i), Root: &v1alpha1.ReportRoot{BootID: strings.Trim(string(boot), "-")}}
				if tt.recreated && i == len(tt.boots)-1 {
					report.UID = "recreated"
				}
				s.setRoot("edge", report, begin.Add(time.Duration(i)*time.Second))
			}
			assert.Equal(t, tt.want, !s.Root("edge").TwoAgentsAt.IsZero())
		})
	}
}

func TestIncompleteSinceFirstMissingPage(t *testing.T) {
	s, now, none := NewStore(), time.Now(), memberstatus.ReportExcess{}
	s.setFindings("a", true, none, now)
	assert.Nil(t, s.Root("a").IncompleteSince)
	s.setRoot("a", &v1alpha1.ClusterReport{Sequence: 1, Root: &v1alpha1.ReportRoot{}}, now)
	s.setFindings("a", true, none, now)
	s.setRoot("a", &v1alpha1.ClusterReport{Sequence: 2, Root: &v1alpha1.ReportRoot{}}, now)
	s.setFindings("a", true, none, now.Add(time.Second))
	assert.Equal(t, now, *s.Root("a").IncompleteSince)
	s.setFindings("a", false, none, now.Add(time.Second))
	assert.Nil(t, s.Root("a").IncompleteSince)
}

func TestMemberForNamespace(t *testing.T) {
	for namespace, want := range map[string]string{"ot-member-a": "a", "ot-member-": "", "ot-agent": "", "x-ot-member-a": ""} {
		member, ok := MemberForNamespace(namespace)
		assert.Equal(t, want != "", ok, namespace)
		if ok {
			assert.Equal(t, want, member)
		}
	}
}

func TestExcessIsKnownWithoutRoot(t *testing.T) {
	s, now, excess := NewStore(), time.Now(), memberstatus.ReportExcess{RootTooLarge: true}
	s.setFindings("a", false, excess, now)
	assert.Equal(t, excess, s.Root("a").Excess)
	s.setRoot("a", &v1alpha1.ClusterReport{Sequence: 1, Root: &v1alpha1.ReportRoot{}}, now)
	assert.Equal(t, excess, s.Root("a").Excess)
	assert.Nil(t, s.Root("a").ReceivedAt, "it may have been stored for long")
	s.setFindings("a", false, memberstatus.ReportExcess{}, now)
	assert.Zero(t, s.Root("a").Excess)
}
