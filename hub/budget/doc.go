// Package budget shares a fleet-wide budget of transfers out among members, and
// keeps account of what each of them may be running.
//
// It is pure: it takes what is known and a time, and returns grants and reasons.
// Times are of the hub's clock that nobody sets; they come as arguments.
//
// What a member may be running is never taken for less than it can be: a grant
// counts from before it is written until the member acknowledges a later one, or
// until it has ended by the hub's clock and what was begun under it has timed out.
// Nothing is raised that does not fit beside what all others may be running.
package budget
