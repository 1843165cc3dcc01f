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

// newAskingTracker is a book that asks at a time.
func newAskingTracker(t *testing.T, at time.Duration) (*grant.RequestTracker, string) {
	t.Helper()
	b := grant.NewRequestTracker("boot")
	b.ClaimLedger()
	b.SetDemand(grant.Demand{Wanted: 3})
	nonce := b.RequestNonce(at)
	require.Equal(t, "boot/1", nonce)
	return b, nonce
}

func TestShareAt(t *testing.T) {
	const sent = time.Minute
	foreign := grantSpec(2, "boot/1", 3)
	foreign.ClusterUID = "another"
	unlimited := &v1alpha1.TransferGrantSpec{ClusterUID: cluster, Sequence: 2, Unlimited: true}
	for name, tt := range map[string]struct {
		takes      []*v1alpha1.TransferGrantSpec
		lose       bool
		at         time.Duration
		wantSlots  int32
		wantEnded  bool
		wantNewest int64
	}{
		"none":                                 {at: sent},
		"in force":                             {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3)}, at: sent + 1, wantSlots: 3, wantNewest: 1},
		"to the end, counted from the sending": {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3)}, at: sent + duration - 1, wantSlots: 3, wantNewest: 1},
		"and no longer":                        {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3)}, at: sent + duration, wantEnded: true, wantNewest: 1},
		"of another boot":                      {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "toob/1", 3)}, at: sent, wantNewest: 1},
		"of a request that was never made":     {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/2", 3)}, at: sent, wantNewest: 1},
		"a later one that is smaller":          {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), grantSpec(2, "boot/1", 1)}, at: sent, wantSlots: 1, wantNewest: 2},
		"a later one of another boot":          {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), grantSpec(2, "toob/1", 4)}, at: sent, wantNewest: 2},
		"an older one that comes late":         {takes: []*v1alpha1.TransferGrantSpec{grantSpec(2, "boot/1", 1), grantSpec(1, "boot/1", 3)}, at: sent, wantSlots: 1, wantNewest: 2},
		"the same again":                       {takes: []*v1alpha1.TransferGrantSpec{grantSpec(2, "boot/1", 1), grantSpec(2, "boot/1", 1)}, at: sent, wantSlots: 1, wantNewest: 2},
		"two of one sequence":                  {takes: []*v1alpha1.TransferGrantSpec{grantSpec(2, "boot/1", 1), grantSpec(2, "boot/1", 2)}, at: sent, wantNewest: 2},
		"and then a later one":                 {takes: []*v1alpha1.TransferGrantSpec{grantSpec(2, "boot/1", 1), grantSpec(2, "boot/1", 2), grantSpec(3, "boot/1", 2)}, at: sent, wantSlots: 2, wantNewest: 3},
		"gone":                                 {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), nil}, at: sent, wantNewest: 1},
		"gone and back":                        {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), nil, grantSpec(1, "boot/1", 3)}, at: sent, wantNewest: 1},
		"gone, and a later one":                {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), nil, grantSpec(2, "boot/1", 2)}, at: sent, wantSlots: 2, wantNewest: 2},
		"of another cluster":                   {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), foreign}, at: sent, wantNewest: 1},
		"unlimited, where limits hold":         {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3), unlimited}, at: sent, wantNewest: 2},
		"another wrote the ledger":             {takes: []*v1alpha1.TransferGrantSpec{grantSpec(1, "boot/1", 3)}, lose: true, at: sent, wantNewest: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newAskingTracker(t, sent)
			for _, g := range tt.takes {
				b.ObserveGrant(g, cluster)
			}
			if tt.lose {
				b.LoseLedger()
			}
			got := b.ShareAt(tt.at)
			assert.Equal(t, tt.wantSlots, got.Slots)
			assert.Equal(t, tt.wantSlots > 0, got.InForce)
			assert.Equal(t, tt.wantEnded, got.Expired)
			assert.Equal(t, tt.wantNewest, got.Sequence)
		})
	}
}

func TestNextRequestAt(t *testing.T) {
	b := grant.NewRequestTracker("boot")
	b.SetDemand(grant.Demand{Wanted: 1})
	assert.Empty(t, b.RequestNonce(0), "the ledger is not its own yet")
	assert.True(t, b.ClaimLedger())
	assert.False(t, b.ClaimLedger())
	assert.True(t, b.SetDemand(grant.Demand{}))
	assert.Empty(t, b.RequestNonce(0), "nothing is wanted")

	assert.True(t, b.SetDemand(grant.Demand{Wanted: 1}))
	assert.False(t, b.SetDemand(grant.Demand{Wanted: 1}))
	at, asks := b.NextRequestAt()
	assert.True(t, asks)
	assert.Zero(t, at, "at once")
	assert.Equal(t, "boot/1", b.RequestNonce(0))
	assert.Equal(t, "boot/1", b.RequestNonce(time.Second), "written again, it is the same request")

	b.ObserveGrant(grantSpec(1, "boot/1", 1), cluster)
	at, asks = b.NextRequestAt()
	assert.True(t, asks)
	assert.Equal(t, duration/3, at, "a third of the duration after it was sent")
	assert.True(t, b.SetDemand(grant.Demand{Wanted: 2}))
	assert.Equal(t, "boot/1", b.RequestNonce(duration/3-1), "what is wanted more is told, the request is young")
	assert.Equal(t, "boot/2", b.RequestNonce(duration/3))

	b.SetDemand(grant.Demand{})
	assert.Empty(t, b.RequestNonce(duration/3))
	assert.Equal(t, int32(1), b.ShareAt(duration/3).Slots, "what it has it keeps")
	b.SetDemand(grant.Demand{Wanted: 1})
	assert.Equal(t, "boot/3", b.RequestNonce(duration/3), "anew")

	b.LoseLedger()
	assert.Empty(t, b.RequestNonce(duration))
	b.ClaimLedger()
	assert.Equal(t, "boot/4", b.RequestNonce(duration), "no nonce is given twice")
}

// TestShareIsAlwaysOneThatWasRequested: whatever is sent and shown in whatever order, what
// holds is the newest grant that was seen, the answer to a request of this process
// that was sent no longer ago than its duration, with nobody else at the ledger since.
func TestShareIsAlwaysOneThatWasRequested(t *testing.T) {
	inForce := 0
	rapid.Check(t, func(t *rapid.T) {
		b := grant.NewRequestTracker("boot")
		now := time.Duration(0)
		sent := map[string]time.Duration{}
		var newest, last *v1alpha1.TransferGrantSpec
		specs := map[int64]*v1alpha1.TransferGrantSpec{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				b.ClaimLedger()
			case 1:
				if rapid.IntRange(0, 4).Draw(t, "lose") == 0 {
					b.LoseLedger()
					sent = map[string]time.Duration{}
				}
			case 2:
				b.SetDemand(grant.Demand{Wanted: rapid.Int32Range(0, 2).Draw(t, "wanted")})
			case 3:
				if nonce := b.RequestNonce(now); nonce != "" {
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
				b.ObserveGrant(g, cluster)
				last = g
				if newest == nil || g.Sequence > newest.Sequence {
					newest = g
				}
			}
			got := b.ShareAt(now)
			if !got.InForce {
				require.Zero(t, got.Slots)
				continue
			}
			inForce++
			at, asked := sent[newest.Limits.Nonce]
			require.True(t, asked, "it answers no request of this process")
			require.Less(t, now, at+duration)
			require.Equal(t, at+duration, got.ValidUntil)
			require.Equal(t, newest.Limits.Slots, got.Slots)
			require.Equal(t, newest.Sequence, got.Sequence)
			require.NotNil(t, last)
		}
	})
	require.Positive(t, inForce)
}
