// Package cloudinit words for cloud-init what a VirtualMachine says of its guest:
// host name, users, network, and the author's own user data.
//
// It is pure, and the same input gives the same bytes.
package cloudinit
