// Package answers computes the answers of the read API that say more than one object does:
// a snapshot of the fleet and a time in, an answer of package readapi out.
//
// Invariant: unknown is never zero. What is not known of a member is omitted or counted as
// unknown, and never added up.
package answers
