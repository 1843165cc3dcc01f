package budget

import "maps"

// Share is a number of transfers, and how many of them may be from each group of
// sources. Those of groups may add up to more than Slots: each is a bound by itself.
type Share struct {
	Slots   int32
	Sources map[string]int32
}

// Max is what two shares may come to where either may be in force.
func (s Share) Max(o Share) Share {
	s.Slots = max(s.Slots, o.Slots)
	if len(o.Sources) == 0 {
		return s
	}
	sources := make(map[string]int32, len(s.Sources)+len(o.Sources))
	maps.Copy(sources, s.Sources)
	for name, n := range o.Sources {
		sources[name] = max(sources[name], n)
	}
	s.Sources = sources
	return s
}

// Group is a budget of its own for a group of sources, within that of the fleet.
type Group struct {
	Name        string
	Concurrency int32
}
