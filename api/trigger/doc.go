// Package trigger decides when a reconcile comes next: Source puts requests into a
// controller's queue, Result turns a write conflict into a short wait, StatusPacer
// spaces the writes of one status, and Poller repeats a check that nothing can watch. NamespaceBackoff
// and LatencyLimiter delay what a namespace's webhooks hold up.
package trigger
