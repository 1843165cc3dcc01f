package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestStatusIsWrittenOnceASecond(t *testing.T) {
	var p Paces
	now := time.Now()
	assert.Zero(t, p.Wait("a", false, now))
	assert.Equal(t, 700*time.Millisecond, p.Wait("a", false, now.Add(300*time.Millisecond)))
	assert.Zero(t, p.Wait("b", false, now.Add(300*time.Millisecond)), "each has its own pace")
	assert.Zero(t, p.Wait("a", true, now.Add(300*time.Millisecond)), "a condition does not wait")
	assert.Zero(t, p.Wait("a", false, now.Add(1300*time.Millisecond)))
}

// What flaps for a minute costs a burst more than one that changes
// once a second.
func TestFlappingIsNoStorm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Paces
		begin := time.Now()
		now, writes := begin, 0
		for now.Before(begin.Add(time.Minute)) {
			if p.Wait("a", rapid.Bool().Draw(t, "urgent"), now) == 0 {
				writes++
			}
			now = now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "milliseconds")) * time.Millisecond)
		}
		assert.LessOrEqual(t, writes, 2*60+conditionBurst+1)
	})
}

// Whoever waits as told gets its turn.
func TestWaitIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Paces
		now := time.Now()
		for range rapid.IntRange(0, 30).Draw(t, "writes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "milliseconds")) * time.Millisecond)
			p.Wait("a", rapid.Bool().Draw(t, "urgent"), now)
		}
		urgent := rapid.Bool().Draw(t, "urgent")
		if wait := p.Wait("a", urgent, now); wait > 0 {
			assert.LessOrEqual(t, wait, Every)
			assert.Zero(t, p.Wait("a", urgent, now.Add(wait)))
		}
	})
}

func TestOnlyConditionsAreUrgent(t *testing.T) {
	conditions := func(reason, message string) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: message}}
	}
	assert.False(t, Urgent(conditions("A", "a"), conditions("A", "b")))
	assert.True(t, Urgent(conditions("A", "a"), conditions("B", "a")))
	assert.True(t, Urgent(nil, conditions("A", "a")))
}
