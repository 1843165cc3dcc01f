// Package prune decides what a PruneReport says, when one is made, and how far an
// ImagePrune is.
//
// It is pure: what is known of the clusters comes in, with the time; statuses,
// pages and what plans are to carry come out. What is stored of a report or a
// prune is its status and its pages alone: a hub that forgets all else decides as
// it would have done.
//
// Unknown is never zero: of a cluster that has not answered nothing is a
// candidate, and an image that nothing is said of has not been pruned.
package prune
