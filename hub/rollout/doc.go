// Package rollout decides which clusters of the fleet begin with the version of
// a FleetDiskImage, and says how far it is.
//
// It is pure: Decide looks at all clusters and answers which of them begin, and
// the status; ComputeDesiredImages says what one member's plan is to have of it. Time comes in
// as an argument.
//
// That a cluster has begun is remembered by its plan alone, and what came of it
// is in its report: a hub that forgets everything at any point decides as it
// would have done. Only versions, since when a wave is done, and when a cluster
// succeeded last are taken from the status.
package rollout
