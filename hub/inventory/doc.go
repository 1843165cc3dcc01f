// Package inventory holds the Index of all images of the fleet, by source, built from
// the pages of the members' reports.
//
// Invariant: a member whose report is missing, incomplete or stale is listed as unknown;
// it never counts as having nothing.
package inventory
