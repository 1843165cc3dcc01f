package eta_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newTurn is an import that gets its slot, and is done, some minutes from now.
func newTurn(begin, end int, pools ...*eta.Pool) *eta.Turn {
	at := now.Add(time.Duration(end) * time.Minute)
	return &eta.Turn{Estimate: eta.Estimate{Position: 1, Begin: now.Add(time.Duration(begin) * time.Minute), At: at, Low: at, High: at}, Pools: pools}
}

func TestTurns(t *testing.T) {
	closed := func(begin, end int, pools ...*eta.Pool) *eta.Turn {
		turn := newTurn(begin, end, pools...)
		turn.Opens = turn.Begin
		return turn
	}
	one, two := eta.NewPool(1, now), eta.NewPool(2, now)
	for name, tt := range map[string]struct {
		turns func(pool func(slots int) *eta.Pool) []*eta.Turn
		want  []int // minutes; -1 for none
	}{
		"one after the other": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p := pool(1)
			return []*eta.Turn{newTurn(0, 10, p), newTurn(0, 10, p), newTurn(0, 30, p)}
		}, []int{10, 20, 50}},
		"two at a time": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p := pool(2)
			return []*eta.Turn{newTurn(0, 10, p), newTurn(0, 20, p), newTurn(0, 10, p)}
		}, []int{10, 20, 20}},
		"a window is waited for once": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p := pool(1)
			return []*eta.Turn{closed(480, 490, p), closed(480, 490, p), closed(480, 490, p)}
		}, []int{490, 500, 510}},
		"a closed window holds up no open one": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p := pool(1)
			return []*eta.Turn{closed(480, 490, p), newTurn(0, 10, p), newTurn(0, 10, p)}
		}, []int{490, 10, 20}},
		"its own queue does": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p := pool(1)
			return []*eta.Turn{newTurn(60, 70, p), newTurn(0, 10, p)}
		}, []int{70, 80}},
		"of both pools": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p, q := pool(2), pool(1)
			return []*eta.Turn{newTurn(0, 30, p), newTurn(0, 10, p, q), newTurn(0, 10, p, q), newTurn(0, 10, q)}
		}, []int{30, 10, 20, 30}},
		"held beyond the slots": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p := pool(2)
			for _, end := range []int{20, 40, 60} {
				p.HoldSlot(&newTurn(0, end).Estimate)
			}
			return []*eta.Turn{newTurn(0, 10, p), newTurn(0, 10, p)}
		}, []int{50, 60}},
		"held from an opening on": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p := pool(1)
			p.HoldSlotFromOpening(now, closed(10, 70))
			return []*eta.Turn{newTurn(0, 60, p), newTurn(0, 60, p), closed(10, 70, p), newTurn(0, 60, p)}
		}, []int{60, 130, 250, 190}},
		"held from an opening on, for those of the same": {func(pool func(int) *eta.Pool) []*eta.Turn {
			p := pool(2)
			p.HoldSlotFromOpening(now, closed(480, 490))
			return []*eta.Turn{closed(480, 490, p), closed(480, 490, p), closed(60, 90, p), closed(450, 500, p)}
		}, []int{500, 510, 90, 500}},
		"no slot": {func(pool func(int) *eta.Pool) []*eta.Turn {
			return []*eta.Turn{newTurn(0, 10, pool(0)), newTurn(0, 10, pool(1))}
		}, []int{-1, 10}},
		"slots from a time on": {func(func(int) *eta.Pool) []*eta.Turn {
			return []*eta.Turn{newTurn(0, 10, eta.NewPool(1, now.Add(time.Hour)))}
		}, []int{70}},
		"no pool": {func(func(int) *eta.Pool) []*eta.Turn { return []*eta.Turn{newTurn(0, 10), newTurn(0, 10)} }, []int{10, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			turns := tt.turns(func(slots int) *eta.Pool { return eta.NewPool(slots, now) })
			eta.PlayTurns(now, turns)
			var got []int
			for _, turn := range turns {
				minutes := -1
				if turn.Why == "" {
					minutes = int(turn.At.Sub(now).Minutes())
					assert.Equal(t, turn.At, turn.Low)
					assert.Equal(t, turn.At, turn.High)
				} else {
					assert.Equal(t, eta.Estimate{Position: 1, Why: eta.UnknownNothingGranted}, turn.Estimate)
				}
				got = append(got, minutes)
			}
			assert.Equal(t, tt.want, got)
		})
	}
	unknown := &eta.Turn{Estimate: eta.Estimate{Why: eta.UnknownSize}, Pools: []*eta.Pool{one, two}}
	eta.PlayTurns(now, []*eta.Turn{unknown})
	assert.Equal(t, eta.Estimate{Why: eta.UnknownSize}, unknown.Estimate, "what is unknown stays so")
}

// A member's slots are free after what it imports and queues now.
func TestPoolOfAMember(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.ReportedActivity)
		want   []int // seconds at which each of two further images of 100 s is done
	}{
		"behind its queue": {func(*v1alpha1.ReportedActivity) {}, []int{400, 400}},
		"idle":             {func(a *v1alpha1.ReportedActivity) { a.Active, a.Head, a.Slots, a.Budget = nil, nil, 0, 1 }, []int{100, 200}},
		"closed":           {func(a *v1alpha1.ReportedActivity) { a.Active, a.Head, a.Slots, a.Budget = nil, nil, 0, 0 }, []int{100, 200}},
		"an end is unknown": {func(a *v1alpha1.ReportedActivity) {
			a.Active[0].Source, a.Active[0].BytesPerSecond, a.Head = "never", 0, nil
		}, []int{300, 400}},
		"an import is not listed": {func(a *v1alpha1.ReportedActivity) { a.Slots, a.Head = 5, nil }, []int{400, 500}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newActivity()
			tt.change(a)
			pool := eta.Snapshot{Activity: a, Now: now}.NewPool()
			var got []int
			for range tt.want {
				at := now.Add(100 * time.Second)
				turn := &eta.Turn{Estimate: eta.Estimate{Position: 1, Begin: now, At: at, Low: at, High: at}, Pools: []*eta.Pool{pool}}
				eta.PlayTurns(now, []*eta.Turn{turn})
				got = append(got, int(turn.At.Sub(now).Round(100*time.Second).Seconds()))
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// drawTurns draws imports of one or two pools; held are slots of others in each.
func drawTurns(t *rapid.T) func(slots, held int) []*eta.Turn {
	type drawn struct {
		begin, takes, opens int
		low, high           float64
		second              bool
	}
	all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) drawn {
		d := drawn{begin: rapid.IntRange(0, 600).Draw(t, "begin"), takes: rapid.IntRange(0, 120).Draw(t, "takes"), second: rapid.Bool().Draw(t, "second pool")}
		if rapid.Bool().Draw(t, "closed") {
			d.opens = rapid.IntRange(0, d.begin).Draw(t, "opens")
		}
		d.low, d.high = rapid.Float64Range(0, 1).Draw(t, "low"), rapid.Float64Range(1, 3).Draw(t, "high")
		return d
	}), 1, 12).Draw(t, "turns")
	others := rapid.SliceOfN(rapid.IntRange(0, 600), 0, 4).Draw(t, "others")
	opens := rapid.SliceOfN(rapid.IntRange(-300, 600), len(others), len(others)).Draw(t, "openings of others")
	return func(slots, held int) (turns []*eta.Turn) {
		first, second := eta.NewPool(slots, now), eta.NewPool(slots+1, now)
		for i, end := range others[:min(held, len(others))] {
			other := newTurn(0, end)
			if opens[i] < 0 || opens[i] > end {
				first.HoldSlot(&other.Estimate)
				continue
			}
			other.Opens = now.Add(time.Duration(opens[i]) * time.Minute)
			first.HoldSlotFromOpening(now, other)
		}
		for _, d := range all {
			turn := newTurn(d.begin, d.begin+d.takes, first)
			if d.second {
				turn.Pools = append(turn.Pools, second)
			}
			all := float64(turn.At.Sub(now))
			turn.Low, turn.High = now.Add(time.Duration(d.low*all)), now.Add(time.Duration(d.high*all))
			turn.Opens = now.Add(time.Duration(d.opens) * time.Minute)
			turns = append(turns, turn)
		}
		return turns
	}
}

func TestTurnsAreLaterWithFewerSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := drawTurns(t)
		slots, held := rapid.IntRange(1, 5).Draw(t, "slots"), rapid.IntRange(0, 4).Draw(t, "held")
		alone, turns := draw(slots, held), draw(slots, held)
		more, fewerHeld := draw(slots+rapid.IntRange(1, 3).Draw(t, "more"), held), draw(slots, rapid.IntRange(0, held).Draw(t, "fewer held"))
		for _, played := range [][]*eta.Turn{turns, more, fewerHeld} {
			eta.PlayTurns(now, played)
		}
		for i, turn := range turns {
			require.False(t, turn.At.Before(alone[i].At) || turn.Low.Before(alone[i].Low) || turn.High.Before(alone[i].High), "it gets earlier")
			require.False(t, more[i].At.After(turn.At), "%v with more slots, %v with %d", more[i].At, turn.At, slots)
			require.False(t, fewerHeld[i].At.After(turn.At), "%v while others hold fewer slots, %v while they hold %d", fewerHeld[i].At, turn.At, held)
			require.LessOrEqual(t, turn.Low.Sub(turn.At), time.Microsecond)
			require.LessOrEqual(t, turn.At.Sub(turn.High), time.Microsecond)
			require.False(t, turn.At.Before(turn.Begin))
		}
	})
}

// n imports behind one window take as long as n imports from its opening on.
func TestTurnsWaitOnceForAWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opens, takes := rapid.IntRange(0, 2000).Draw(t, "opens"), rapid.IntRange(1, 120).Draw(t, "takes")
		n, slots := rapid.IntRange(1, 20).Draw(t, "imports"), rapid.IntRange(1, 5).Draw(t, "slots")
		pool := eta.NewPool(slots, now)
		var turns []*eta.Turn
		for range n {
			turn := newTurn(opens, opens+takes, pool)
			turn.Opens = turn.Begin
			turns = append(turns, turn)
		}
		eta.PlayTurns(now, turns)
		for i, turn := range turns {
			require.Equal(t, opens+takes*(i/slots+1), int(turn.At.Sub(now).Minutes()))
		}
	})
}
