package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
)

func TestPruneNonceLapses(t *testing.T) {
	now := time.Hour
	n := plan.NewPruneNonces("boot")
	assert.Empty(t, n.LastNonce())
	assert.False(t, n.IsConfirmedBy("", now), "nothing was asked")
	assert.True(t, n.DrawNonce(now))
	first := n.LastNonce()
	assert.True(t, n.IsConfirmedBy(first, now))
	assert.False(t, n.IsConfirmedBy("", now))
	assert.False(t, n.IsConfirmedBy("other/1", now), "of a former process")

	now += image.PruneNonceLife - 1
	assert.False(t, n.DrawNonce(now), "the answer may still come")
	assert.True(t, n.IsConfirmedBy(first, now))
	now++
	assert.False(t, n.IsConfirmedBy(first, now), "it may have ended since")
	assert.Equal(t, first, n.LastNonce(), "the report stays as it is")
	assert.True(t, n.DrawNonce(now))
	assert.NotEqual(t, first, n.LastNonce())
	assert.False(t, n.IsConfirmedBy(first, now))
	assert.True(t, n.IsConfirmedBy(n.LastNonce(), now))

	again := plan.NewPruneNonces("next boot")
	again.DrawNonce(0)
	assert.NotEqual(t, first, again.LastNonce())
}
