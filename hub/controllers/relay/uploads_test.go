package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// Whatever a member writes, and when, the hub copies no more than one burst, what the rate allows, and
// the report that was begun last.
func TestUploadsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Unix(1_700_000_000, 0)
		now, total, last := begin, 0, 0
		var b uploadThrottle
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
			var b uploadThrottle
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
	var b uploadThrottle
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
