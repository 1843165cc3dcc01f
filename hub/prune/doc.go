// Package prune decides what a PruneReport says, when a scheduled one is made, and how far
// an ImagePrune is.
//
// It is pure: what is known of the clusters comes in, with the time; statuses, pages and
// the prunes for plans come out. Of a report or an ImagePrune only its status and pages
// are stored: a hub that loses its memory decides the same.
//
// Invariant: unknown is never zero. A cluster that has not answered (unknownclusters.go)
// has no candidates, and an image without a reported outcome is not pruned.
package prune
