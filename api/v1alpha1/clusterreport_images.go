package v1alpha1

// ReasonOrPlan is the reason of an image; of one that is planned and absent, why a person is waited for.
func (in *ReportedImage) ReasonOrPlan() Reason {
	if in.UID == "" && in.Plan != nil {
		return in.Plan.Reason
	}
	return in.Reason
}

// IsPruned reports whether the image is gone, and reported for the result of its prune alone: it is not
// one that is planned and absent.
func (in *ReportedImage) IsPruned() bool { return in.UID == "" && in.Plan == nil && in.Prune != nil }
