package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestLeftoversAreInCondition: kubectl describe syncledger says why no image gets a slot.
func TestLeftoversAreInCondition(t *testing.T) {
	r := &Reconciler{
		Queue:         ledger.NewQueue(),
		MissingRights: func() string { return "" }, HubCondition: func() *metav1.Condition { return nil },
		AccountGuardCondition: func() metav1.Condition { return metav1.Condition{Type: "A"} },
		ImportGuardCondition:  func() metav1.Condition { return metav1.Condition{Type: "B"} },
		OneDownloadCondition:  func() metav1.Condition { return metav1.Condition{Type: "C"} },
	}
	for name, tt := range map[string]struct {
		leftovers  []string
		held       []string
		wantReason string
		wantText   string
	}{
		"none": {nil, nil, v1alpha1.ReasonSlotsReclaimed, "every slot is of an image that exists"},
		"some": {[]string{"ns/a-1", "ns/b-1"}, nil, v1alpha1.ReasonLeftoversHoldSlots, "2 imports belong to no VMDiskImage"},
		"many": {[]string{"ns/a", "ns/b", "ns/c", "ns/d", "ns/e", "ns/f", "ns/g"}, nil, v1alpha1.ReasonLeftoversHoldSlots, "are gone: ns/a, ns/b, ns/c, ns/d, ns/e and 2 more."},
		"held": {nil, []string{"ns/a-1"}, v1alpha1.ReasonLeftoversHoldSlots, "1 imports have ended, and no other image gets their slots until their objects are gone: ns/a-1."},
		"both": {[]string{"ns/b-1"}, []string{"ns/a-1"}, v1alpha1.ReasonLeftoversHoldSlots, "for what keeps them. 1 imports have ended"},
	} {
		t.Run(name, func(t *testing.T) {
			var status v1alpha1.SyncLedgerStatus
			r.setConditions(&status, 1, stepLimits{}, tt.leftovers, tt.held)
			for _, c := range status.Conditions {
				if c.Type == v1alpha1.ConditionSlotsReclaimed {
					assert.Equal(t, tt.wantReason, c.Reason)
					assert.Contains(t, c.Message, tt.wantText)
					return
				}
			}
			assert.Fail(t, "no condition")
		})
	}
}
