package install

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
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

func TestForgottenMemberHasNoLease(t *testing.T) {
	r := &Reconciler{}
	o := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a")}}
	r.foreignLeases.observe("edge", o, time.Now())
	require.Len(t, r.foreignLeases.observations, 1)
	r.forgetMember("edge")
	assert.Empty(t, r.foreignLeases.observations)
}
