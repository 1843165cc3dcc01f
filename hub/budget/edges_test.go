package budget

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// However late a request is answered, no grant is valid after a lower budget comes into
// force, not even on a clock that is one percent slow.
func TestGrantEndsWithItsBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, begin := NewAccountant(), time.Now()
		now := begin.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "answered after")) * time.Second)
		left := time.Duration(rapid.IntRange(1, 600).Draw(t, "seconds left")) * time.Second
		b.Observe("a", requestingMember(1, 0, 3), begin)
		b.Allocate(Rules{Total: 0, Duration: 5 * time.Minute}, begin)
		g := grantFor(b.Allocate(Rules{Total: 4, Duration: 5 * time.Minute, EndsIn: left}, now), "a")
		if g == nil || g.Slots == 0 {
			require.GreaterOrEqual(t, now.Sub(begin)+time.Second, min(5*time.Minute, left-3*time.Second), "no grant, although there is time for one")
			return
		}
		require.False(t, begin.Add(withClockMargin(g.Duration)).After(now.Add(left)), "%s of %s", g.Duration, left)
		require.LessOrEqual(t, g.Duration, 5*time.Minute)
		require.Zero(t, g.Duration%time.Second)
	})
}

// Members ask three times in the duration of their last grant.
func TestMemberIsNotMadeToAskOften(t *testing.T) {
	b, now := NewAccountant(), time.Now()
	b.Observe("a", requestingMember(1, 0, 3), now)
	g := grantFor(b.Allocate(Rules{Total: 4, Duration: 5 * time.Minute, EndsIn: 20 * time.Second}, now), "a")
	require.NotNil(t, g)
	assert.Equal(t, 19*time.Second, g.Duration)

	now = now.Add(20 * time.Second)
	f := requestingMember(2, 0, 3)
	f.Transfers.Grant = g.Sequence
	b.Observe("a", f, now)
	closed := Rules{Total: 0, Duration: 5 * time.Minute, RisesAt: now.Add(time.Hour)}
	p := b.Allocate(closed, now)
	g = grantFor(p, "a")
	require.NotNil(t, g, "a short grant would have it ask every few seconds")
	assert.Zero(t, g.Slots)
	assert.Equal(t, 5*time.Minute, g.Duration)
	assert.Equal(t, v1alpha1.TransfersWaiting, accountOf(p, "a").Reason)
	assert.Equal(t, fmt.Sprintf("fleetConcurrency is 0 outside its windows; the next one opens at %s", closed.RisesAt.UTC().Format(time.RFC3339)), accountOf(p, "a").Message)

	now = now.Add(time.Minute)
	f = requestingMember(3, 0, 3)
	f.Transfers.Grant = g.Sequence
	b.Observe("a", f, now)
	assert.Empty(t, b.Allocate(closed, now).Grants, "once")
}
