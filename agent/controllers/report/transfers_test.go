package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newAsking is a member that goes by grants, and whose ledger is its own.
func newAsking(t *testing.T) *member {
	m := newMember(t, 1)
	p := policy.Default()
	p.Limited, p.Safe = true, 1
	m.policy, m.granted = p.Data(), &v1alpha1.TakenGrant{BootID: "boot", Sequence: 4, Slots: 2}
	m.acknowledge()
	m.r.Grants.Hold()
	m.r.Grants.Want(grant.Demand{Wanted: 2})
	return m
}

func TestReportAsks(t *testing.T) {
	m := newAsking(t)
	m.elapsed = time.Second
	m.onWrite = func() { m.elapsed += 10 * time.Second }
	got := m.root(t)
	assert.Equal(t, &v1alpha1.ReportedTransfers{Limited: true, Safe: 1, Nonce: "boot/1", Wanted: 2, Grant: 4, Slots: 2}, got.Transfers)

	// The page and the root took 20 seconds to be written.
	m.r.Grants.Take(&v1alpha1.TransferGrantSpec{ClusterUID: "cluster", Sequence: 5, Limits: &v1alpha1.TransferLimits{Slots: 2, Nonce: "boot/1", DurationSeconds: 30}}, "cluster")
	share := m.r.Grants.Share(m.elapsed)
	require.True(t, share.InForce)
	assert.LessOrEqual(t, share.Until, 41*time.Second, "counted from before the root was written")

	m.onWrite = nil
	assert.Equal(t, "boot/2", m.root(t).Transfers.Nonce, "a third of the duration is over")
	assert.Equal(t, "boot/2", m.root(t).Transfers.Nonce)
	m.r.Grants.Want(grant.Demand{})
	assert.Equal(t, &v1alpha1.ReportedTransfers{Limited: true, Safe: 1, Grant: 4, Slots: 2}, m.root(t).Transfers, "nothing is wanted, nothing is asked for")
}

// TestOnlyItsOwnLedgerIsReported: of one that another process has written under
// grants, a hub would conclude that the other's grant is not gone by.
func TestOnlyItsOwnLedgerIsReported(t *testing.T) {
	m := newAsking(t)
	m.granted.BootID = "another"
	_, err := m.report(t.Context())
	require.ErrorIs(t, err, errOthers)
	m.granted.BootID = "boot"
	assert.Equal(t, "boot", m.root(t).BootID)
}
