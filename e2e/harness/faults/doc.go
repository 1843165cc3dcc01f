//go:build linux

// Package faults breaks what lies between programs and API servers: a Link fails as
// networks do, a Proxy sees, delays and loses single writes, and a FaultyAgent is killed or
// frozen at any of its writes.
package faults
