// Package grant tracks an agent's requests for a share of the fleet-wide budget, and what
// the hub has granted.
//
// It is pure: times are arguments, durations since the process started by a clock that
// cannot be set (agent/clock).
//
// Invariants, whatever other processes run and however late messages arrive:
//
//  1. A nonce belongs to one request of one process. The time of the request is taken
//     before the report with it is written, and never again.
//  2. A grant lasts for its duration from that time on. The hub counts from when it saw
//     the request, which is later, so it counts the grant as held for longer than any
//     agent uses it.
//  3. A grant is void for a process that does not know its nonce. It is also void after
//     another process has written the ledger since the request, because that process may
//     have reported the grant as unused. (The ledger names its writer and is written with
//     its resourceVersion; a process reports only the ledger that it has written.)
//  4. A grant that is void or has expired stays so.
//  5. A later grant replaces an earlier one, even if it is smaller. The ledger that is
//     written under it reports that to the hub, together with the slots held then.
package grant
