// Package budget shares the fleet-wide budget of transfers among members and accounts for
// what each of them may be running.
//
// The package is pure. Times are of the hub's monotonic clock and come as arguments.
//
// Invariant: a member never counts for less than it may be running. A grant counts from
// before it is written until the member acknowledges a later one, or until it has expired
// by the hub's clock and every attempt begun under it has timed out.
//
// That holds for what the hub has planned or granted. What only a member's reports say is
// a claim, and counts until the excess of that member ends: once, whatever is claimed
// later. A member in quarantine does not count, since a person has decided so.
//
// Invariant: nothing is raised unless it fits beside what all others may be running.
package budget
