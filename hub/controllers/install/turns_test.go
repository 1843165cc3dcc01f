package install

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWhoWaitsForATurnIsNotAsked(t *testing.T) {
	r := &Reconciler{turns: make(chan struct{}, 1)}
	r.turns <- struct{}{}
	assert.False(t, r.waits("edge"), "what it needs is not known")
	r.wait("edge")
	assert.True(t, r.waits("edge"))
	assert.False(t, r.waits("oslo"))
	<-r.turns
	assert.False(t, r.waits("edge"), "there is a turn")
	r.turns <- struct{}{}
	assert.False(t, r.waits("edge"), "whether it still needs one is not known")
	r.wait("edge")
	r.forget("edge")
	assert.False(t, r.waits("edge"))
}

func TestLooksInVainAreCounted(t *testing.T) {
	r := &Reconciler{}
	for before := range 3 {
		assert.Equal(t, before, r.looked("edge", true))
	}
	assert.Zero(t, r.looked("oslo", true))
	assert.Zero(t, r.looked("edge", false))
	assert.Zero(t, r.looked("edge", true), "it has answered meanwhile")
	r.forget("edge")
	assert.Zero(t, r.looked("edge", true))
}
