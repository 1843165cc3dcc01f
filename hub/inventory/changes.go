package inventory

// Change is what changed of the Index.
type Change uint8

// Changes.
const (
	// ChangedImages: images of a member, or whether all of them are known.
	ChangedImages Change = iota
	// ChangedActivity: what a member imports.
	ChangedActivity
)

// OnChange registers a function that is called when what the Index answers changes, which
// most reports of a quiet fleet do not do. It must not block, and not use the Index. Call
// OnChange before the Index is filled.
func (x *Index) OnChange(do func(Change)) { x.onChange = append(x.onChange, do) }

// notify requires x.mu.
func (x *Index) notify(c Change) {
	for _, do := range x.onChange {
		do(c)
	}
}
