package trigger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestStatusIsWrittenOncePerSecond(t *testing.T) {
	var p StatusPacer
	now := time.Now()
	assert.Zero(t, p.ReserveWrite("a", false, now))
	assert.Equal(t, 700*time.Millisecond, p.ReserveWrite("a", false, now.Add(300*time.Millisecond)))
	assert.Zero(t, p.ReserveWrite("b", false, now.Add(300*time.Millisecond)), "each has its own pace")
	assert.Zero(t, p.ReserveWrite("a", true, now.Add(300*time.Millisecond)), "a condition does not wait")
	assert.Zero(t, p.ReserveWrite("a", false, now.Add(1300*time.Millisecond)))
}

// An object that flaps for a minute is written as often as one that changes once a
// second, plus a burst.
func TestFlappingConditionIsPaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p StatusPacer
		begin := time.Now()
		now, writes := begin, 0
		for now.Before(begin.Add(time.Minute)) {
			if p.ReserveWrite("a", rapid.Bool().Draw(t, "urgent"), now) == 0 {
				writes++
			}
			now = now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "milliseconds")) * time.Millisecond)
		}
		assert.LessOrEqual(t, writes, 2*60+conditionBurst+1)
	})
}

// A write after the returned wait is allowed.
func TestReservedDelayIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p StatusPacer
		now := time.Now()
		for range rapid.IntRange(0, 30).Draw(t, "writes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "milliseconds")) * time.Millisecond)
			p.ReserveWrite("a", rapid.Bool().Draw(t, "urgent"), now)
		}
		urgent := rapid.Bool().Draw(t, "urgent")
		if wait := p.ReserveWrite("a", urgent, now); wait > 0 {
			assert.LessOrEqual(t, wait, StatusWriteInterval)
			assert.Zero(t, p.ReserveWrite("a", urgent, now.Add(wait)))
		}
	})
}

func TestConditionsChanged(t *testing.T) {
	conditions := func(reason, message string) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: message}}
	}
	assert.False(t, ConditionsChanged(conditions("A", "a"), conditions("A", "b")))
	assert.True(t, ConditionsChanged(conditions("A", "a"), conditions("B", "a")))
	assert.True(t, ConditionsChanged(nil, conditions("A", "a")))
}
