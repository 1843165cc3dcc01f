// Package join decides how a cluster joins the fleet and how it leaves: from what exists on
// both sides to the steps that are missing. It is pure; package command gathers and acts.
//
// Invariant: a step that was done once is not planned again, so that a command that failed
// half-way can be repeated.
package join
