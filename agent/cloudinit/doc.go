// Package cloudinit renders what cloud-init reads in the guest of a VirtualMachine: user
// data with host name, users and the author's own part, and the network config. It is pure
// and deterministic.
package cloudinit
