// Package kubevirt builds the objects that a VirtualMachine consists of: the DataVolume of
// its root disk, its cloud-init Secret and its KubeVirt VirtualMachine. It is pure; the
// controller applies what it returns.
package kubevirt
