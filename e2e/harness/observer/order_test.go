package observer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var arrivedAt = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// createImage creates one that no agent has written to.
func (s *fakeHistory) createImage(uid string) {
	s.upsert(images, uid, func(o map[string]any) {
		o["metadata"].(map[string]any)["creationTimestamp"] = arrivedAt.Format(time.RFC3339)
	})
}

func (s *fakeHistory) queueImage(uid string) {
	s.setImageStatus(uid, map[string]any{"phase": string(v1alpha1.PhaseQueued), "reason": string(v1alpha1.ReasonWaitingForSlot)})
}

func (s *fakeHistory) setImageStatus(uid string, status map[string]any) {
	s.upsert(images, uid, func(o map[string]any) {
		o["metadata"].(map[string]any)["finalizers"] = []any{v1alpha1.FinalizerImage}
		o["status"] = status
	})
}

func TestOrderViolations(t *testing.T) {
	const soon, afterGrace = time.Second, 10 * time.Second
	for name, tt := range map[string]struct {
		do   func(s *fakeHistory)
		want int
	}{
		"in order": {do: func(s *fakeHistory) {
			s.queueImage("a")
			s.queueImage("b")
			s.createDataVolume("a", arrivedAt.Add(soon))
			s.createDataVolume("b", arrivedAt.Add(soon))
		}},
		"both are queued": {want: 1, do: func(s *fakeHistory) {
			s.queueImage("a")
			s.queueImage("b")
			s.createDataVolume("b", arrivedAt.Add(afterGrace))
			s.createDataVolume("a", arrivedAt.Add(afterGrace))
		}},
		"the first is queued late, and its grace has not ended": {want: 1, do: func(s *fakeHistory) {
			s.queueImage("b")
			s.queueImage("a")
			s.createDataVolume("b", arrivedAt.Add(soon))
			s.createDataVolume("a", arrivedAt.Add(soon))
		}},
		"the first is queued late, after its grace": {do: func(s *fakeHistory) {
			s.queueImage("b")
			s.createDataVolume("b", arrivedAt.Add(afterGrace))
			s.queueImage("a")
			s.createDataVolume("a", arrivedAt.Add(afterGrace))
		}},
		"the first is asked about, after its grace": {do: func(s *fakeHistory) {
			s.setImageStatus("a", map[string]any{"phase": string(v1alpha1.PhaseQueued), "reason": string(v1alpha1.ReasonChecking)})
			s.queueImage("b")
			s.createDataVolume("b", arrivedAt.Add(afterGrace))
			s.queueImage("a")
			s.createDataVolume("a", arrivedAt.Add(afterGrace))
		}},
		"the first is queued and never starts": {want: 1, do: func(s *fakeHistory) {
			s.queueImage("a")
			s.queueImage("b")
			s.createDataVolume("b", arrivedAt.Add(afterGrace))
		}},
		"only the first starts": {do: func(s *fakeHistory) { s.createDataVolume("a", arrivedAt) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeHistory()
			s.createImage("a")
			s.createImage("b")
			tt.do(s)
			assert.Len(t, s.history.OrderViolations(), tt.want)
		})
	}
}
