package startup

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

const mebibyte = 1 << 20

func TestChooseGCPercent(t *testing.T) {
	for name, tt := range map[string]struct {
		live, perSecond uint64
		want            int
	}{
		"before the first collection": {0, 100 * mebibyte, 100},
		"at rest":                     {45 * mebibyte, mebibyte, 50},
		"half of the heap lasts 5 s":  {40 * mebibyte, 4 * mebibyte, 50},
		"busy":                        {40 * mebibyte, 5 * mebibyte, 100},
		"very busy":                   {40 * mebibyte, 500 * mebibyte, 100},
		"busy, up to the bound":       {96 * mebibyte, 100 * mebibyte, 100},
		"busy, with a larger heap":    {97 * mebibyte, 100 * mebibyte, 50},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, chooseGCPercent(isBusy(tt.live, tt.perSecond), tt.live, maxBusyHeap))
		})
	}
}

// However busy a program is, its heap stays below the bound, or is collected as at rest.
func TestBusyHeapIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		live, perSecond := rapid.Uint64Max(4<<30).Draw(t, "live"), rapid.Uint64Max(64<<30).Draw(t, "per second")
		busyHeap := rapid.Uint64Max(maxBusyHeap).Draw(t, "busy heap")
		percent := chooseGCPercent(isBusy(live, perSecond), live, busyHeap)
		assert.GreaterOrEqual(t, percent, restingGCPercent)
		if percent > restingGCPercent {
			assert.LessOrEqual(t, live+live*uint64(percent)/100, busyHeap)
		}
	})
}

// Memory is given back once after each time that a program was busy, and not while it may soon be again.
func TestMemoryIsGivenBackAtRest(t *testing.T) {
	const busy, rest = true, false
	for name, tt := range map[string]struct {
		seen []bool
		want []int // after which of seen
	}{
		"never busy":      {make([]bool, 20), nil},
		"at rest":         {append([]bool{busy}, make([]bool, 20)...), []int{restingIntervals}},
		"again busy":      {append([]bool{busy, rest, rest, busy}, make([]bool, 20)...), []int{3 + restingIntervals}},
		"busy later, too": {append(append([]bool{busy}, make([]bool, restingIntervals)...), append([]bool{busy}, make([]bool, 20)...)...), []int{restingIntervals, 1 + 2*restingIntervals}},
	} {
		t.Run(name, func(t *testing.T) {
			var r restTracker
			var got []int
			for i, busy := range tt.seen {
				if r.mayGiveBack(busy) {
					got = append(got, i)
				}
			}
			assert.Equal(t, tt.want, got)
		})
	}
}
