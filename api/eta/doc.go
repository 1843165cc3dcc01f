// Package eta estimates when a member will have imported an image: its place in the queue,
// the expected time with a range, or the reason why no time can be given.
//
// It is pure: a Snapshot of what the member imports and queues in, an Estimate out. It plays
// the queue forward: each image starts when a slot is free, its backoff has passed, and the
// grant for its group of sources leaves room.
//
// PlayTurns then has imports of several members start one after the other, as a rollout or the
// fleet-wide budget lets them.
//
// Invariants:
//
//  1. Only images ahead of an image affect its estimate.
//  2. Low <= At <= High, and none of them is before Now.
//  3. An image that waits for a slot starts no sooner than an import that holds one ends.
//  4. Either times are given or Why says why not.
package eta
