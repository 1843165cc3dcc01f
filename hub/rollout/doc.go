// Package rollout decides which clusters start with a version of a FleetDiskImage, and
// how far it is.
//
// It is pure. Decide takes all clusters and the time, and returns the clusters that
// start and the status; ComputeDesiredImages returns what one member's plan is to hold.
//
// That a cluster has started is stored in its plan alone, and its progress in its
// report: a hub that loses its memory decides the same. The status stores only what
// neither holds: versions, when waves were done, retries that are pending, and the last success.
// Since when a cluster was online, which its deadline counts, its MemberCluster stores.
package rollout
