package v1alpha1

// Supersedes reports whether a listed page rather than another counts for an image that both have: the newer,
// since an image that moved may still be on an older page. Of pages of one sequence, which no agent writes with
// the same image, the first by name counts: the answer must not change by itself.
func (p PageRef) Supersedes(other PageRef) bool {
	return p.Sequence > other.Sequence || p.Sequence == other.Sequence && p.Name < other.Name
}
