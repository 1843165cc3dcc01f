package install

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMemberWaitingForSlotIsNotProbed(t *testing.T) {
	r := &Reconciler{installSlots: make(chan struct{}, 1)}
	r.installSlots <- struct{}{}
	assert.False(t, r.isWaitingForSlot("edge"), "what it needs is not known")
	r.setWaitingForSlot("edge")
	assert.True(t, r.isWaitingForSlot("edge"))
	assert.False(t, r.isWaitingForSlot("oslo"))
	<-r.installSlots
	assert.False(t, r.isWaitingForSlot("edge"), "there is a turn")
	r.installSlots <- struct{}{}
	assert.False(t, r.isWaitingForSlot("edge"), "whether it still needs one is not known")
	r.setWaitingForSlot("edge")
	r.forgetMember("edge")
	assert.False(t, r.isWaitingForSlot("edge"))
}

func TestFailedProbesAreCounted(t *testing.T) {
	r := &Reconciler{}
	for before := range 3 {
		assert.Equal(t, before, r.countFailedProbe("edge", true))
	}
	assert.Zero(t, r.countFailedProbe("oslo", true))
	assert.Zero(t, r.countFailedProbe("edge", false))
	assert.Zero(t, r.countFailedProbe("edge", true), "it has answered meanwhile")
	r.forgetMember("edge")
	assert.Zero(t, r.countFailedProbe("edge", true))
}
