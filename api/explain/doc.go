// Package explain decides why an image of a cluster is where it is, and says it in words:
// for kubectl ot why, and for the hub's read API, which the dashboard shows.
package explain
