package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newLimitedMember returns a member under a fleet-wide budget that owns its ledger.
func newLimitedMember(t *testing.T) *fakeMember {
	m := newFakeMember(t, 1)
	p := policy.Default()
	p.UsesGrants, p.SafeConcurrency = true, 1
	m.policy, m.granted = p.ToData(), &v1alpha1.LedgerGrant{BootID: "boot", Sequence: 4, Slots: 2}
	m.acknowledgePlan()
	m.r.Grants.ClaimLedger()
	m.r.Grants.SetDemand(grant.Demand{Wanted: 2})
	return m
}

func TestReportCarriesRequest(t *testing.T) {
	m := newLimitedMember(t)
	m.elapsed = time.Second
	m.beforeWrite = func() { m.elapsed += 10 * time.Second }
	got := m.readRoot(t)
	assert.Equal(t, &v1alpha1.ReportedTransfers{Limited: true, Safe: 1, Nonce: "boot/1", Wanted: 2, Grant: 4, Slots: 2}, got.Transfers)

	// Writing page and root took 20 seconds.
	m.r.Grants.ObserveGrant(&v1alpha1.TransferGrantSpec{ClusterUID: "cluster", Sequence: 5, Limits: &v1alpha1.TransferLimits{Slots: 2, Nonce: "boot/1", DurationSeconds: 30}}, "cluster")
	share := m.r.Grants.ShareAt(m.elapsed)
	require.True(t, share.InForce)
	assert.LessOrEqual(t, share.ValidUntil, 41*time.Second, "counted from before the root was written")

	m.beforeWrite = nil
	assert.Equal(t, "boot/2", m.readRoot(t).Transfers.Nonce, "a third of the duration has passed")
	assert.Equal(t, "boot/2", m.readRoot(t).Transfers.Nonce)
	m.r.Grants.SetDemand(grant.Demand{})
	assert.Equal(t, &v1alpha1.ReportedTransfers{Limited: true, Safe: 1, Grant: 4, Slots: 2}, m.readRoot(t).Transfers, "without demand there is no request")
}

// A nonce is drawn with the root that carries it: of one that is written later, more of its life is left.
func TestReportDrawsPruneNonce(t *testing.T) {
	m := newFakeMember(t, 1)
	nonces := plan.NewPruneNonces("boot")
	m.r.PruneNonce = func() string { return nonces.NonceForReport(m.elapsed) }
	assert.Empty(t, m.readRoot(t).PruneNonce)
	require.True(t, nonces.RequestNonce(m.elapsed))
	m.elapsed += image.PruneNonceLife // the report's interval
	m.beforeWrite = func() { m.elapsed += 10 * time.Second }
	assert.Equal(t, "boot/1", m.readRoot(t).PruneNonce)
	assert.True(t, nonces.IsConfirmedBy("boot/1", m.elapsed))
	m.elapsed += image.PruneNonceLife - 10*time.Second
	assert.False(t, nonces.IsConfirmedBy("boot/1", m.elapsed), "counted from before the root was written")
	m.beforeWrite = func() { t.Fatal("nothing has changed") }
	assert.Equal(t, "boot/1", m.readRoot(t).PruneNonce)
	m.beforeWrite = nil
	require.True(t, nonces.RequestNonce(m.elapsed))
	assert.Equal(t, "boot/2", m.readRoot(t).PruneNonce)
}

// From a ledger that another process has written, the hub could conclude that the grant of
// that process is unused.
func TestForeignLedgerIsNotReported(t *testing.T) {
	m := newLimitedMember(t)
	m.granted.BootID = "another"
	_, err := m.writeReport(t.Context())
	require.ErrorIs(t, err, errForeignLedger)
	m.granted.BootID = "boot"
	assert.Equal(t, "boot", m.readRoot(t).BootID)
}
