// Package plan decides what the agent makes of its ClusterPlan: whether the plan
// may be gone by at all, and what is to be done about each image that it names.
//
// It is pure: what was read in, a verdict or a step out. Results is where the
// outcome is kept for those who report it.
package plan
