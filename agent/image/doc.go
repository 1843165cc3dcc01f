// Package image decides what happens to one VMDiskImage.
//
// It is pure: Decide takes all its input as a View, time included, and returns
// the status to store and the actions to take.
//
// Invariant: an irreversible action needs live reads. Where a View from the cache
// leads to one, Decide asks for a live View (Decision.NeedsLiveRead) and decides
// nothing else.
package image
