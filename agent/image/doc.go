// Package image decides what becomes of one VMDiskImage.
//
// It is pure: Decide takes everything it rests on as a View, time included, and
// returns the status to store and what is to be done.
//
// What is irreversible rests on live reads alone. Where a View from the cache
// leads to such a step, Decide asks for a live one (Decision.NeedsLiveRead) and
// decides nothing else.
package image
