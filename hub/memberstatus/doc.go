// Package memberstatus computes the status of a MemberCluster: Compute writes all of its
// conditions and numbers from one Input. FindHolder resolves which MemberCluster owns a
// cluster that several lead to.
//
// The package is pure: time comes in as an argument.
//
// Invariant: what is unknown is never shown as zero; numbers of a member that has not
// reported are absent.
package memberstatus
