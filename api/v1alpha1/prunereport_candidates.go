package v1alpha1

// CandidatesLeft returns the candidates of the report without those that ImagePrunes of it have pruned.
func (r *PruneReport) CandidatesLeft(prunes []ImagePrune) PruneTotal {
	left := r.Status.Candidates
	for i := range prunes {
		if p := &prunes[i]; p.Spec.ReportRef == (PruneReportRef{Name: r.Name, Digest: r.Status.Digest}) {
			left.Count -= p.Status.Targets.Pruned
			left.Bytes -= p.Status.PrunedBytes
		}
	}
	// Two ImagePrunes of one image both count it.
	return PruneTotal{Count: max(0, left.Count), Bytes: max(0, left.Bytes)}
}
