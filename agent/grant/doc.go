// Package grant keeps an agent's requests for a part of the fleet-wide budget, and
// what it was granted.
//
// It is pure: times are durations since the process began, by a clock that nobody
// sets (agent/clock), and an argument.
//
// What makes a grant safe, whoever else runs and however late messages come:
//
//  1. A request has a nonce that no other process has. Its time is taken before the
//     report with it is written, and never taken anew.
//  2. A grant holds for its duration from that time on. The hub counts from when it
//     saw the request, which was later, so it holds the grant for taken longer than
//     anybody goes by it.
//  3. A grant gives nothing to a process that does not know its nonce; nor to one in
//     whose place another has written the ledger since it asked, for that one may have
//     told the hub that the grant is not gone by. (The ledger names its writer, and is
//     written by compare and swap. A process reports no ledger but its own.)
//  4. What is once void, or has ended, stays so.
//  5. A later grant takes the place of an earlier one, also if it is smaller. The
//     ledger that is written under it is what tells the hub so, with the slots that
//     are taken then, in one object.
package grant
