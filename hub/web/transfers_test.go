package web

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
)

func TestTransfers(t *testing.T) {
	f := newTestFleet(t, "a", "b")
	var got readapi.Transfers
	f.read(t, "transfers?cluster=a", &got)
	require.Len(t, got.Running, 1)
	require.Len(t, got.Queued, 1)
	assert.Equal(t, "ubuntu-1.0.0", got.Running[0].Name)
	assert.Equal(t, int32(1), *got.Running[0].References)
	assert.Equal(t, int32(0), *got.Queued[0].References)
	got = readapi.Transfers{}
	f.read(t, "transfers?state=queued&limit=1", &got)
	assert.Empty(t, got.Running)
	assert.Len(t, got.Queued, 1)
	assert.Equal(t, 2, got.QueuedTotal)
	assert.Equal(t, 1, got.UnknownMembersTotal, "the dark one")
}
