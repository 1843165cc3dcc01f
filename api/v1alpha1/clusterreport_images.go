package v1alpha1

// UnappliedPlan is what the agent did with a planned image that waits to be created, or was rejected; nil for
// one that was created.
func (in *ReportedImage) UnappliedPlan() *PlanItemReport {
	if in.Phase != "" || in.Plan == nil || in.Plan.State != PlanItemWaiting && in.Plan.State != PlanItemRejected {
		return nil
	}
	return in.Plan
}

// ReasonOrPlan is the reason of an image; of one that is planned and not created, why a person is waited for.
func (in *ReportedImage) ReasonOrPlan() Reason {
	if plan := in.UnappliedPlan(); plan != nil {
		return plan.Reason
	}
	return in.Reason
}

// IsPruned reports whether the image is gone, and reported for the result of its prune alone: it is not
// one that is planned and absent.
func (in *ReportedImage) IsPruned() bool { return in.UID == "" && in.Plan == nil && in.Prune != nil }
