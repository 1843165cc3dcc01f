// Package plan decides what the agent does about its ClusterPlan: whether the plan applies,
// and what to do about each image that it names.
//
// The decisions are pure. Results stores what came of them, for the report.
package plan
