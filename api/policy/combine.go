package policy

// Combine is the policy of a member that may have two: its own, from its policy
// ConfigMap, and the one that the hub plans. Of both, the smaller concurrency
// holds, so that neither side can have a cluster download more than the other
// wants; for all other keys the hub's plan wins. Whether it goes by grants is the
// plan's alone: without one it does not. nil stands for a policy that is
// not there, and is returned where there is none at all.
func Combine(own, planned *Policy) *Policy {
	switch {
	case own == nil && planned == nil:
		return nil
	case planned == nil:
		p := *own
		p.UsesGrants, p.SafeConcurrency, p.Sources = false, 0, nil
		return &p
	}
	p := *planned
	if own != nil {
		p.Concurrency = min(p.Concurrency, own.Concurrency)
	}
	return &p
}
