package grant_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	cluster  = types.UID("cluster")
	duration = 90 * time.Second
)

func grantSpec(sequence int64, nonce string, slots int32) *v1alpha1.TransferGrantSpec {
	return &v1alpha1.TransferGrantSpec{
		ClusterUID: cluster, Sequence: sequence,
		Limits: &v1alpha1.TransferLimits{Slots: slots, Nonce: nonce, DurationSeconds: int32(duration / time.Second)},
	}
}

// newAskingTracker returns a tracker that has sent one request, at a time.
func newAskingTracker(t *testing.T, at time.Duration) (*grant.RequestTracker, string) {
	t.Helper()
	tracker := grant.NewRequestTracker("boot")
	tracker.ClaimLedger()
	tracker.SetDemand(grant.Demand{Wanted: 3})
	nonce := tracker.RequestNonce(at)
	require.Equal(t, "boot/1", nonce)
	return tracker, nonce
}

func TestShareAt(t *testing.T) {
	const sent = time.Minute
	foreign := grantSpec(2, "boot/1", 3)
	foreign.ClusterUID = "another"
	unlimited := &v1alpha1.TransferGrantSpec{ClusterUID: cluster, Sequence: 2, Unlimited: true}
	for name, tt := range map[string]struct {
		observed    []*v1alpha1.TransferGrantSpec
		lose        bool
		at          time.Duration
		wantSlots   int32
		wantExpired bool
		wantNewest  int64
	}{
		"none":     {at: sent},
		"in force": {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3)}, at: sent + 1, wantSlots: 3, wantNewest: 1},
		"until it expires, counted from the request": {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3)}, at: sent + duration - 1, wantSlots: 3, wantNewest: 1},
		"expired":                                 {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3)}, at: sent + duration, wantExpired: true, wantNewest: 1},
		"of another process":                      {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "toob/1", 3)}, at: sent, wantNewest: 1},
		"of an unknown request":                   {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/2", 3)}, at: sent, wantNewest: 1},
		"a later, smaller one":                    {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), grantSpec(2, "boot/1", 1)}, at: sent, wantSlots: 1, wantNewest: 2},
		"a later one of another process":          {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), grantSpec(2, "toob/1", 4)}, at: sent, wantNewest: 2},
		"an older one, seen later":                {observed: []*v1alpha1.TransferGrantSpec{grantSpec(2, "boot/1", 1), grantSpec(1, "boot/1", 3)}, at: sent, wantSlots: 1, wantNewest: 2},
		"the same one twice":                      {observed: []*v1alpha1.TransferGrantSpec{grantSpec(2, "boot/1", 1), grantSpec(2, "boot/1", 1)}, at: sent, wantSlots: 1, wantNewest: 2},
		"two with one sequence":                   {observed: []*v1alpha1.TransferGrantSpec{grantSpec(2, "boot/1", 1), grantSpec(2, "boot/1", 2)}, at: sent, wantNewest: 2},
		"two with one sequence, then a later one": {observed: []*v1alpha1.TransferGrantSpec{grantSpec(2, "boot/1", 1), grantSpec(2, "boot/1", 2), grantSpec(3, "boot/1", 2)}, at: sent, wantSlots: 2, wantNewest: 3},
		"deleted":                                 {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), nil}, at: sent, wantNewest: 1},
		"deleted and restored":                    {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), nil, grantSpec(1, "boot/1", 3)}, at: sent, wantNewest: 1},
		"deleted, then a later one":               {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), nil, grantSpec(2, "boot/1", 2)}, at: sent, wantSlots: 2, wantNewest: 2},
		"for another cluster":                     {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), foreign}, at: sent, wantNewest: 1},
		"unlimited, under a policy with limits":   {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), unlimited}, at: sent, wantNewest: 2},
		"another process wrote the ledger":        {observed: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3)}, lose: true, at: sent, wantNewest: 1},
	} {
		t.Run(name, func(t *testing.T) {
			tracker, _ := newAskingTracker(t, sent)
			for _, g := range tt.observed {
				tracker.ObserveGrant(g, cluster)
			}
			if tt.lose {
				tracker.LoseLedger()
			}
			got := tracker.ShareAt(tt.at)
			assert.Equal(t, tt.wantSlots, got.Slots)
			assert.Equal(t, tt.wantSlots > 0, got.InForce)
			assert.Equal(t, tt.wantExpired, got.Expired)
			assert.Equal(t, tt.wantNewest, got.Sequence)
		})
	}
}

func TestShareNamesFullyGrantedGroups(t *testing.T) {
	tracker := grant.NewRequestTracker("boot")
	tracker.ClaimLedger()
	tracker.SetDemand(grant.Demand{Wanted: 6, Sources: []v1alpha1.SourceDemand{{Name: "a", Wanted: 2}, {Name: "b", Wanted: 3}, {Name: "c", Wanted: 1}}})
	nonce := tracker.RequestNonce(0)
	tracker.SetDemand(grant.Demand{Wanted: 9, Sources: []v1alpha1.SourceDemand{{Name: "a", Wanted: 9}}})
	spec := grantSpec(1, nonce, 5)
	spec.Limits.Sources = []v1alpha1.SourceGrant{{Name: "a", Slots: 2}, {Name: "b", Slots: 2}, {Name: "d", Slots: 1}}
	tracker.ObserveGrant(spec, cluster)
	assert.Equal(t, []string{"a"}, tracker.ShareAt(1).FullyGranted, "of the request that is answered")
	require.Equal(t, nonce, tracker.RequestNonce(1))
	assert.Empty(t, tracker.ShareAt(1).FullyGranted, "the same request has wanted more since")
}

func TestNextRequestAt(t *testing.T) {
	tracker := grant.NewRequestTracker("boot")
	tracker.SetDemand(grant.Demand{Wanted: 1})
	assert.Empty(t, tracker.RequestNonce(0), "another process may own the ledger")
	assert.True(t, tracker.ClaimLedger())
	assert.False(t, tracker.ClaimLedger())
	assert.True(t, tracker.SetDemand(grant.Demand{}))
	assert.Empty(t, tracker.RequestNonce(0), "no demand")

	assert.True(t, tracker.SetDemand(grant.Demand{Wanted: 1}))
	assert.False(t, tracker.SetDemand(grant.Demand{Wanted: 1}))
	at, needed := tracker.NextRequestAt()
	assert.True(t, needed)
	assert.Zero(t, at, "now")
	assert.Equal(t, "boot/1", tracker.RequestNonce(0))
	assert.Equal(t, "boot/1", tracker.RequestNonce(time.Second), "a report that is written again has the same request")

	tracker.ObserveGrant(grantSpec(1, "boot/1", 1), cluster)
	at, needed = tracker.NextRequestAt()
	assert.True(t, needed)
	assert.Equal(t, duration/3, at, "a third of the duration after the request")
	assert.True(t, tracker.SetDemand(grant.Demand{Wanted: 2}))
	assert.Equal(t, "boot/1", tracker.RequestNonce(duration/3-1), "a higher demand needs no new request")
	assert.Equal(t, "boot/2", tracker.RequestNonce(duration/3))

	tracker.SetDemand(grant.Demand{})
	assert.Empty(t, tracker.RequestNonce(duration/3))
	assert.Equal(t, int32(1), tracker.ShareAt(duration/3).Slots, "the grant stays in force")
	tracker.SetDemand(grant.Demand{Wanted: 1})
	assert.Equal(t, "boot/3", tracker.RequestNonce(duration/3), "a new request")

	tracker.LoseLedger()
	assert.Empty(t, tracker.RequestNonce(duration))
	tracker.ClaimLedger()
	assert.Equal(t, "boot/4", tracker.RequestNonce(duration), "no nonce is used twice")
}

// In whatever order requests are sent and grants seen, the share is the newest grant that
// was seen, answers a request of this process, has not expired since that request, and no
// other process has written the ledger since.
func TestShareIsAlwaysOneThatWasRequested(t *testing.T) {
	inForce := 0
	rapid.Check(t, func(t *rapid.T) {
		tracker := grant.NewRequestTracker("boot")
		now := time.Duration(0)
		sent := map[string]time.Duration{}
		var newest, last *v1alpha1.TransferGrantSpec
		specs := map[int64]*v1alpha1.TransferGrantSpec{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				tracker.ClaimLedger()
			case 1:
				if rapid.IntRange(0, 4).Draw(t, "lose") == 0 {
					tracker.LoseLedger()
					sent = map[string]time.Duration{}
				}
			case 2:
				tracker.SetDemand(grant.Demand{Wanted: rapid.Int32Range(0, 2).Draw(t, "wanted")})
			case 3:
				if nonce := tracker.RequestNonce(now); nonce != "" {
					if _, known := sent[nonce]; !known {
						sent[nonce] = now
					}
				}
			default:
				sequence := rapid.Int64Range(1, 12).Draw(t, "sequence")
				g := specs[sequence]
				if g == nil {
					g = grantSpec(sequence, fmt.Sprintf("boot/%d", rapid.IntRange(1, 9).Draw(t, "nonce")), rapid.Int32Range(0, 5).Draw(t, "slots"))
					specs[sequence] = g
				}
				tracker.ObserveGrant(g, cluster)
				last = g
				if newest == nil || g.Sequence > newest.Sequence {
					newest = g
				}
			}
			got := tracker.ShareAt(now)
			if !got.InForce {
				require.Zero(t, got.Slots)
				continue
			}
			inForce++
			at, known := sent[newest.Limits.Nonce]
			require.True(t, known, "the grant answers no request of this process")
			require.Less(t, now, at+duration)
			require.Equal(t, at+duration, got.ValidUntil)
			require.Equal(t, newest.Limits.Slots, got.Slots)
			require.Equal(t, newest.Sequence, got.Sequence)
			require.NotNil(t, last)
		}
	})
	require.Positive(t, inForce)
}
