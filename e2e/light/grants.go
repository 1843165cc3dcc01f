//go:build linux

package light

import (
	"context"
	"net/url"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/queue"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// may is what a member may run now.
type may struct {
	terms grant.Terms
	share grant.Share
	grant.Limits
	groupOf func(host string) string
}

// may works it out as an agent does: by the plan that was acknowledged, and by the
// newest grant while it is in force.
func (m *Member) may() may {
	var p *policy.Policy
	if parsed, _, errs := policy.Parse(m.root.Root.Policy); m.root.Root.Plan != nil && len(errs) == 0 {
		p = &parsed
	}
	now := may{terms: grant.TermsOf(p), groupOf: grant.GroupOf(p)}
	if now.terms.Limited && !m.old {
		m.grants.Hold()
	} else {
		m.grants.Lose()
	}
	now.share = m.grants.Share(m.elapsed())
	now.Limits = grant.Limit(now.terms, now.share)
	return now
}

// want takes note of what the queue holds beyond what runs.
func (m *Member) want(now may) {
	front := make([]queue.Item, len(m.imports.queue))
	for i, next := range m.imports.queue {
		front[i].Group = now.groupOf(next.host)
	}
	m.grants.Want(grant.Demands(now.terms, m.imports.slots, now.groupOf, front))
}

// transfers writes into the root what is asked for and gone by, and tells whether that
// is new. An old agent knows nothing of it.
func (m *Member) transfers(root *v1alpha1.ReportRoot) {
	now := m.may()
	if root.Plan != nil {
		root.Budget = now.Budget
	}
	if m.takes > 0 {
		root.Slots = int32(len(m.imports.slots))
	}
	if root.Transfers = nil; m.old {
		return
	}
	ledger := &v1alpha1.SyncLedgerStatus{Slots: m.imports.slots, Grant: grant.Taken(now.terms, m.grants.Boot(), now.share)}
	root.Transfers = grant.Transfers(now.terms, ledger, now.groupOf, m.grants.Wanted(), m.grants.Ask(m.elapsed()))
}

// takeGrant begins what a grant has room for.
func (m *Member) takeGrant(ctx context.Context, spec *v1alpha1.TransferGrantSpec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dark {
		return
	}
	m.grants.Take(spec, m.UID)
	if m.takes == 0 {
		return
	}
	before := len(m.imports.slots)
	m.begin(ctx)
	if len(m.imports.slots) != before {
		_ = m.setPlanned(ctx) // the next beat tries again
		return
	}
	_ = m.writeRoot(ctx, func(*v1alpha1.ReportRoot) {})
}

// Dark has the member hear and say nothing. What it runs goes on, and it begins what
// its last grant allows, for as long as that holds.
func (m *Member) Dark() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dark = true
}

// Return has a dark member hear and speak again.
func (m *Member) Return(ctx context.Context) error {
	key := client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}
	plan, given := &v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}
	for _, obj := range []client.Object{plan, given} {
		if err := m.members.client.Get(ctx, key, obj); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.dark = false
	m.mu.Unlock()
	m.take(ctx, &plan.Spec)
	m.takeGrant(ctx, &given.Spec)
	return nil
}

// renewal is how often the stand-ins look whether a grant is to be renewed or has
// ended.
const renewal = 100 * time.Millisecond

// renew asks anew where that is due, and reports when a grant has ended.
func (all *Members) renew(ctx context.Context) {
	ticker := time.NewTicker(renewal)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, m := range all.List {
				if m.mu.TryLock() { // else it is writing
					due := m.due()
					m.mu.Unlock()
					if due {
						all.done.Go(func() { m.look(ctx) })
					}
				}
			}
		}
	}
}

// due tells that a request is, or that a grant has ended which was reported to hold.
func (m *Member) due() bool {
	root := m.root.Root
	if m.old || m.dark || root.Transfers == nil || !root.Transfers.Limited {
		return false
	}
	at, asks := m.grants.Next()
	return asks && m.elapsed() >= at || root.Transfers.Slots > 0 && !m.grants.Share(m.elapsed()).InForce
}

func (m *Member) look(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.due() {
		_ = m.writeRoot(ctx, func(*v1alpha1.ReportRoot) {}) // looked at again
	}
}

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Hostname())
}
