// Package kubevirt builds the objects that a VirtualMachine is made of: root
// disk, cloud-init Secret and BuildVirtualMachine VirtualMachine.
//
// It is pure: what it returns is applied by the controller.
package kubevirt
