package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// Whatever a member writes, and when, the hub copies no more than one burst, what the rate allows, and
// the report that was begun last.
func TestUploadsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Unix(1_700_000_000, 0)
		now, total, last := begin, 0, 0
		var b copyThrottle
		for range rapid.IntRange(1, 100).Draw(t, "syncs") {
			now = now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "seconds")) * time.Second).Add(b.wait(now))
			assert.Zero(t, b.wait(now))
			last = rapid.IntRange(0, 2*uploadBurst).Draw(t, "bytes")
			b.record(last, now)
			total += last
			assert.LessOrEqual(t, total-last, uploadBurst+int(now.Sub(begin).Seconds()+1)*uploadRate)
		}
	})
}

func TestHonestReportsDoNotWait(t *testing.T) {
	for name, tt := range map[string]struct {
		bytes    int
		every    time.Duration
		syncs    int
		wantWait bool
	}{
		"a whole report at once":          {bytes: uploadBurst, syncs: 1},
		"a page each second":              {bytes: 256 << 10, every: time.Second, syncs: 3600},
		"a whole report, again and again": {bytes: 20 << 20, every: time.Second, syncs: 10, wantWait: true},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			var b reportThrottle
			for range tt.syncs {
				b.record(tt.bytes, now)
				now = now.Add(tt.every)
			}
			assert.Equal(t, tt.wantWait, b.describe(now) != "")
			assert.Equal(t, tt.wantWait, b.wait(now) > 0)
		})
	}
}

// At the edge of the rate a report waits now and then. Its status must not change each time.
func TestLateReportsAreNamedForAWhile(t *testing.T) {
	now, changes, named := time.Now(), 0, false
	var b reportThrottle
	b.record(uploadBurst, now)
	for range 600 {
		b.record(2*uploadRate+uploadRate/2, now)
		now = now.Add(b.wait(now))
		if is := b.describe(now) != ""; is != named {
			named = is
			changes++
		}
		now = now.Add(500 * time.Millisecond)
		b.record(0, now)
		if is := b.describe(now) != ""; is != named {
			named = is
			changes++
		}
	}
	assert.LessOrEqual(t, changes, 1)
	assert.Empty(t, b.describe(now.Add(time.Minute)))
}

// However little each sync writes, their number is bounded; an agent does not come near.
func TestSyncsAreBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		every    time.Duration
		size     uploadSize
		written  int
		wantMost int
		wantLate bool
	}{
		"an agent that changes all the time": {every: 200 * time.Millisecond, size: uploadSize{requests: 1, bytes: 1 << 10}, wantMost: 3000},
		"a member that writes all the time":  {every: 3 * time.Millisecond, size: uploadSize{requests: 1, bytes: 1 << 10}, wantMost: uploadBurst/syncCost + 600*maxSyncRate, wantLate: true},
		"reads count":                        {every: 3 * time.Millisecond, size: uploadSize{requests: 1}, wantMost: uploadBurst/syncCost + 600*maxSyncRate, wantLate: true},
		"writes in the member count":         {every: 3 * time.Millisecond, written: 1, wantMost: uploadBurst/syncCost + 600*maxSyncRate, wantLate: true},
		"syncs that ask nothing":             {every: 10 * time.Millisecond, wantMost: 60_000},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			var s memberState
			syncs, now := 0, begin
			for ; now.Sub(begin) < 10*time.Minute; now = now.Add(max(tt.every, s.uploads.wait(now))) {
				s.uploads.recordSync(&tt.size, tt.written, now)
				syncs++
			}
			assert.InDelta(t, tt.wantMost, syncs, 2)
			assert.Equal(t, tt.wantLate, now.Sub(s.uploads.availableAt) < time.Second)
		})
	}
}

// A plan whose copy in the member is changed all the time is read and written again a few times per
// second, and what was found before stays.
func TestDownloadsAreDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copied := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}
		plan := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-edge", Name: v1alpha1.MailboxName}}
		plan.Spec.ClusterUID, plan.Spec.Epoch, plan.Spec.Sequence = "uid", 1, 1
		report := &v1alpha1.ClusterReport{ObjectMeta: copied.ObjectMeta, ClusterUID: "uid", Root: &v1alpha1.ReportRoot{}}
		hub := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(plan).Build()
		member := fake.NewClientBuilder().WithScheme(hubclient.Scheme).WithObjects(copied, report).Build()
		r := &Reconciler{Metrics: metrics.New(prometheus.NewRegistry())}
		state := &connectionState{}
		newSync := func() *mailboxSync {
			return &mailboxSync{member: "edge", state: state, began: time.Now(), before: mailbox.Findings{NewerGrant: 7, ConfirmedSequence: 1}, relay: mailbox.Relay{
				Hub:    mailbox.Side{Cached: hub, Live: hub, Namespace: "ot-member-edge"},
				Member: mailbox.Side{Cached: member, Live: member, Namespace: "ot-agent"}, Recheck: mailbox.Recheck{Down: true},
			}}
		}
		state.downloads.record(uploadBurst, time.Now())
		s := newSync()
		r.syncDown(t.Context(), s)
		require.NoError(t, s.downErr)
		require.Len(t, s.down.Written, 1)
		assert.Zero(t, s.decideFindings("", "").NewerGrant)

		require.Positive(t, state.downloads.wait(time.Now()))
		delayed := newSync()
		r.syncDown(t.Context(), delayed)
		assert.True(t, delayed.downloadDelayed)
		assert.Empty(t, delayed.down.Written)
		assert.False(t, delayed.relay.Recheck.Down, "nothing counts as rechecked")
		assert.Equal(t, int64(7), delayed.decideFindings("", "").NewerGrant)
	})
}
