package policy

import "time"

// Combine returns the effective policy of a member from its own policy ConfigMap and
// the hub's plan. The smaller concurrency applies, so that neither side can exceed the
// other's limit; a ConfigMap that does not set it has no limit. The plan decides all other keys, but for AllowedNamespaces, which is the
// member's own. Grants are used only if the plan says so. nil means no policy; the result is nil if both are.
func Combine(own, planned *Policy) *Policy {
	switch {
	case own == nil && planned == nil:
		return nil
	case planned == nil:
		p := *own
		p.ConcurrencyUnset, p.UsesGrants, p.SafeConcurrency, p.Sources = false, false, 0, nil
		return &p
	}
	p := *planned
	p.AllowedNamespaces = nil
	if own != nil {
		if !own.ConcurrencyUnset {
			p.Concurrency = min(p.Concurrency, own.Concurrency)
		}
		p.AllowedNamespaces = own.AllowedNamespaces
	}
	return &p
}

// CombineAt returns the effective policy of a member at a time, and until when it is: each
// side's windows are judged before the smaller concurrency applies. nextEdge is zero where
// neither has windows.
func CombineAt(own, planned *Policy, now time.Time) (inForce *Policy, nextEdge time.Time) {
	sides := []*Policy{own, planned}
	for i, p := range sides {
		if p == nil {
			continue
		}
		then, edge := p.At(now)
		sides[i] = &then
		if !edge.IsZero() && (nextEdge.IsZero() || edge.Before(nextEdge)) {
			nextEdge = edge
		}
	}
	return Combine(sides[0], sides[1]), nextEdge
}
