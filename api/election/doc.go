// Package election elects one of several processes by a Lease.
//
// client-go's elector runs the elected process; Lock is the lock that it tries. As a
// candidate, a Lock returns from Get once the Lease can be taken: it watches the Lease, and
// computes from its own observations when the Lease expires. As the holder, it refuses
// writes that another process may no longer expect.
//
// Invariants, which the model in this package explores:
//
//   - A process begins no write later than the duration of the Lease after it sent the last
//     stored renewal. Others observe that renewal later and wait as long, so they take the
//     Lease later. Timestamps in the Lease are ignored.
//   - A Lease is released only when no write can begin any more, all writes were answered,
//     and none was left unanswered within the duration of the Lease. Otherwise the Lease
//     expires.
//   - A lost event of a watch delays a candidate, and never stops it.
package election
