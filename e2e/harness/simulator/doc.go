//go:build linux

// Package simulator simulates what a member has below its API server: the node, importer pods,
// storage, snapshots and guests. It moves no byte of an image. CDI, the scheduler, the volume
// binder, the snapshot controller and everything above them are the real programs.
//
// # Imports
//
// KWOK is the kubelet of one node. The path of an image's URL selects how its import goes: the
// first segment is the behaviour, the next may be a duration.
//
//	/ok/<d>/…          succeeds after d (default 1s), as any other path does
//	/notfound/<d>/…    404      /forbidden/<d>/…  403      /servererror/<d>/…  500
//	/cut/<d>/…         breaks off with an unexpected EOF
//	/checksum/<d>/…    a checksum mismatch: the container ends with exit code 0
//	/toosmall/<d>/…    the image does not fit into the volume
//	/crashloop/<d>/…   exit code 2 and no message
//	/oom/<d>/…         killed, out of memory
//	/hang/…            never ends
//	/flaky/<n>/<d>/…   500 while the pod's label pelotech.ot/attempt is at most
//	                   n (1 without the label), then ok after d
//	/stuck/<n>/<d>/…   never ends in those attempts, then ok after d
//
// The default of d is 300ms for failures. Blank images succeed at once. A
// container that failed starts again after 0.9 s, then after back-offs of 12 s,
// 24 s and so on, and fails again each time, until its pod is deleted; with
// restartPolicy Never the pod is Failed. ImportProgress has CDI read how far an import is.
//
// # Storage
//
// CDI treats the classes differently: see the Class constants. Volumes are objects only. Like
// external-provisioner, the simulator leaves PersistentVolumeClaims with a populator to it. It
// serves claims from snapshots and claims, grows claims that request more, and ends the pods
// of a copy after 0.3 s.
//
// # Guests
//
// VirtHandler simulates KubeVirt's virt-handler, virt-launcher and guest, below the real
// virt-controller: a guest is up as soon as its pod runs, and off as soon as it is asked to
// stop.
package simulator
