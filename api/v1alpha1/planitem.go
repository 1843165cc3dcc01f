package v1alpha1

// UnappliedPlan is what the agent did with a planned image that waits to be created, or was rejected; nil for
// one that was created.
func (in *ReportedImage) UnappliedPlan() *PlanItemReport {
	if in.Phase != "" || in.Plan == nil || in.Plan.State != PlanItemWaiting && in.Plan.State != PlanItemRejected {
		return nil
	}
	return in.Plan
}
