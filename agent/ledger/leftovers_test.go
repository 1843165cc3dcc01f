package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestLeftoversAreNamed: nothing else says why no image gets their slots.
func TestLeftoversAreNamed(t *testing.T) {
	slotOf := func(name string, age time.Duration) v1alpha1.Slot {
		return v1alpha1.Slot{Image: v1alpha1.ImageKey{Namespace: "ns", Name: name, UID: "uid"}, Revision: "r", Attempt: 1, DataVolume: name + "-1",
			StartedAt: metav1.NewTime(apitest.Epoch.Add(-age))}
	}
	slot := slotOf("a", time.Hour)
	ended := slot
	ended.Ended = true
	for name, tt := range map[string]struct {
		slots       []v1alpha1.Slot
		facts       SlotFacts
		unlisted    []UnlistedDataVolume
		want        []string
		wantRecheck time.Duration
	}{
		"its image is gone":                   {slots: []v1alpha1.Slot{slot}, facts: SlotFacts{ImageGone: true, ObjectsRemain: true}, want: []string{"ns/a-1"}},
		"its image is gone, and it has ended": {slots: []v1alpha1.Slot{ended}, facts: SlotFacts{ImageGone: true, ObjectsRemain: true}, want: []string{"ns/a-1"}},
		"nothing is left of it":               {slots: []v1alpha1.Slot{ended}, facts: SlotFacts{ImageGone: true}},
		"it is about to be freed":             {slots: []v1alpha1.Slot{slot}, facts: SlotFacts{ImageGone: true}},
		"its image has ended it":              {slots: []v1alpha1.Slot{ended}, facts: SlotFacts{Outcome: v1alpha1.OutcomeFailed, ObjectsRemain: true}},
		"it imports":                          {slots: []v1alpha1.Slot{slot}, facts: SlotFacts{DataVolumeExists: true, ObjectsRemain: true}},
		"strays that stay":                    {unlisted: []UnlistedDataVolume{{Slot: slotOf("z", time.Hour)}, {Slot: slot}}, want: []string{"ns/a-1", "ns/z-1"}},
		"a stray that is about to be deleted": {unlisted: []UnlistedDataVolume{{Slot: slotOf("z", 20*time.Second)}, {Slot: slotOf("y", 0)}}, wantRecheck: 40 * time.Second},
		"an import that is listed again":      {unlisted: []UnlistedDataVolume{{Slot: slot, Adoptable: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := View{Now: apitest.Epoch, Ledger: &v1alpha1.SyncLedgerStatus{Budget: 1, Slots: tt.slots}, Budget: 1, Facts: map[string]SlotFacts{DataVolumeKey(slot): tt.facts}, Unlisted: tt.unlisted}
			leftovers, recheckAfter := v.FindLeftovers(Decide(v).Slots)
			assert.Equal(t, tt.want, leftovers)
			assert.Equal(t, tt.wantRecheck, recheckAfter)
		})
	}
}

// TestHeldSlotsAreNamed: who runs the cluster may not see the image that says so.
func TestHeldSlotsAreNamed(t *testing.T) {
	slot := v1alpha1.Slot{Image: v1alpha1.ImageKey{Namespace: "ns", Name: "a", UID: "uid"}, Revision: "r", Attempt: 1, DataVolume: "a-1", Ended: true}
	failed := SlotFacts{Outcome: v1alpha1.OutcomeFailed, ObjectsRemain: true}
	for name, tt := range map[string]struct {
		ages        map[string]time.Duration
		facts       map[string]SlotFacts
		want        []string
		wantRecheck time.Duration
	}{
		"for a minute":              {map[string]time.Duration{"ns/a-1": time.Minute}, map[string]SlotFacts{"ns/a-1": failed}, []string{"ns/a-1"}, 0},
		"for a while":               {map[string]time.Duration{"ns/a-1": 20 * time.Second}, map[string]SlotFacts{"ns/a-1": failed}, nil, 40 * time.Second},
		"not ended":                 {nil, map[string]SlotFacts{"ns/a-1": failed}, nil, 0},
		"not checked":               {map[string]time.Duration{"ns/a-1": time.Hour}, nil, nil, 0},
		"nothing is left":           {map[string]time.Duration{"ns/a-1": time.Hour}, map[string]SlotFacts{"ns/a-1": {Outcome: v1alpha1.OutcomeFailed}}, nil, 0},
		"its image is gone as well": {map[string]time.Duration{"ns/a-1": time.Hour}, map[string]SlotFacts{"ns/a-1": {ImageGone: true, ObjectsRemain: true}}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			held, recheckAfter := View{EndedAges: tt.ages, Facts: tt.facts}.FindHeld([]v1alpha1.Slot{slot})
			assert.Equal(t, tt.want, held)
			assert.Equal(t, tt.wantRecheck, recheckAfter)
		})
	}
}
