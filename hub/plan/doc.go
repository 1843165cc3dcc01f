// Package plan decides the next ClusterPlan of a member: its content, whether it has to
// be written, and its version.
//
// The package is pure.
package plan
