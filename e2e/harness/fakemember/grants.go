//go:build linux

package fakemember

import (
	"context"
	"net/url"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// allowance is what the member may run now.
type allowance struct {
	terms grant.Terms
	share grant.Share
	grant.Limits
	groupOf func(host string) string
}

// currentAllowance computes the allowance as an agent does, from the acknowledged plan and the
// newest grant while it is in force.
func (m *Member) currentAllowance() allowance {
	var p *policy.Policy
	if parsed, _, errs := policy.Parse(m.root.Root.Policy); m.root.Root.Plan != nil && len(errs) == 0 {
		p = &parsed
	}
	now := allowance{terms: grant.TermsFromPolicy(p), groupOf: grant.SourceGroupFunc(p)}
	if now.terms.FleetLimited && !m.oldAgent {
		m.grants.ClaimLedger()
	} else {
		m.grants.LoseLedger()
	}
	now.share = m.grants.ShareAt(m.elapsed())
	now.Limits = grant.ComputeLimits(now.terms, now.share)
	return now
}

// recordDemand records the demand of the queue beyond what runs.
func (m *Member) recordDemand(now allowance) {
	front := make([]ledger.QueuedImage, len(m.imports.queue))
	for i, next := range m.imports.queue {
		front[i].SourceGroup = now.groupOf(next.host)
	}
	room := grant.RoomByGroup(now.terms, now.share, m.imports.slots, now.groupOf)
	m.grants.SetDemand(grant.ComputeDemand(now.terms, m.imports.slots, now.groupOf, front, room))
}

// fillTransfers sets the requested and the applied grant in the root. An old agent has neither.
func (m *Member) fillTransfers(root *v1alpha1.ReportRoot) {
	now := m.currentAllowance()
	if root.Plan != nil {
		root.Budget = now.Budget
	}
	root.Slots = int32(len(m.imports.slots))
	if m.claimedSlots > 0 {
		root.Slots = m.claimedSlots
	}
	if root.Transfers = nil; m.oldAgent {
		return
	}
	ledger := &v1alpha1.SyncLedgerStatus{Slots: m.imports.slots, Grant: grant.NewLedgerGrant(now.terms, m.grants.BootID(), now.share)}
	root.Transfers = grant.NewReportedTransfers(now.terms, ledger, now.groupOf, m.grants.Demand(), m.grants.RequestNonce(m.elapsed()))
}

// applyGrant starts the imports that a grant allows.
func (m *Member) applyGrant(ctx context.Context, spec *v1alpha1.TransferGrantSpec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disconnected {
		return
	}
	m.grants.ObserveGrant(spec, m.UID)
	if m.importImage == nil {
		return
	}
	before := len(m.imports.slots)
	m.startImports(ctx)
	if len(m.imports.slots) != before {
		_ = m.writePlannedPage(ctx) // the next heartbeat retries
		return
	}
	_ = m.writeRoot(ctx, func(*v1alpha1.ReportRoot) {})
}

// ClaimSlots has the member report that it runs n imports from now on, whatever it runs.
func (m *Member) ClaimSlots(ctx context.Context, n int32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claimedSlots = n
	return m.writeRoot(ctx, func(*v1alpha1.ReportRoot) {})
}

// Disconnect cuts the member off from the hub. Its imports continue, and new ones start while its last
// grant is valid.
func (m *Member) Disconnect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.disconnected = true
}

// Reconnect ends Disconnect.
func (m *Member) Reconnect(ctx context.Context) error {
	key := client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}
	plan, given := &v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}
	for _, obj := range []client.Object{plan, given} {
		if err := m.members.client.Get(ctx, key, obj); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.disconnected = false
	m.mu.Unlock()
	m.acknowledgePlan(ctx, &plan.Spec)
	m.applyGrant(ctx, &given.Spec)
	return nil
}

// grantCheckInterval is how often grants are checked for renewal and expiry.
const grantCheckInterval = 100 * time.Millisecond

// renewGrants requests grants that are due and reports those that have expired.
func (all *Members) renewGrants(ctx context.Context) {
	ticker := time.NewTicker(grantCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, m := range all.List {
				if m.mu.TryLock() { // otherwise it is writing
					due := m.isReportDue()
					m.mu.Unlock()
					if due {
						all.running.Go(func() { m.reportIfDue(ctx) })
					}
				}
			}
		}
	}
}

// isReportDue reports that a request is due or that a reported grant has expired.
func (m *Member) isReportDue() bool {
	root := m.root.Root
	if m.oldAgent || m.disconnected || root.Transfers == nil || !root.Transfers.Limited {
		return false
	}
	at, asks := m.grants.NextRequestAt()
	return asks && m.elapsed() >= at || root.Transfers.Slots > 0 && !m.grants.ShareAt(m.elapsed()).InForce
}

func (m *Member) reportIfDue(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isReportDue() {
		_ = m.writeRoot(ctx, func(*v1alpha1.ReportRoot) {}) // the next check retries
	}
}

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Hostname())
}
