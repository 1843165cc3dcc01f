//go:build linux

// Package simulator plays what lies below the API server of a member: the
// node, the importer pods, the storage, the snapshots and the guests. Nothing here moves a
// byte of an image. CDI, the scheduler, the volume binder, the snapshot
// controller and everything above them are the real programs.
//
// # Imports
//
// KWOK is the kubelet of one node. How an import goes is read from the path of
// its URL: the first segment is the behaviour, the next may be a duration.
//
//	/ok/<d>/…          succeeds after d (default 1s), as any other path does
//	/notfound/<d>/…    404      /forbidden/<d>/…  403      /servererror/<d>/…  500
//	/cut/<d>/…         breaks off with an unexpected EOF
//	/checksum/<d>/…    a checksum mismatch: the container ends with exit code 0
//	/toosmall/<d>/…    the image does not fit into the volume
//	/crashloop/<d>/…   exit code 2 and no message
//	/oom/<d>/…         killed, out of memory
//	/hang/…            runs for ever
//	/flaky/<n>/<d>/…   500 while the pod's label pelotech.ot/attempt is at most
//	                   n (1 without the label), then ok after d
//	/stuck/<n>/<d>/…   runs for ever in those attempts, then ok after d
//
// The default of d is 300ms for failures. Blank images succeed at once. A
// container that failed starts again after 0.9 s, then after back-offs of 12 s,
// 24 s and so on, and fails again each time, until its pod is deleted; with
// restartPolicy Never the pod is Failed.
//
// # Storage
//
// The classes differ in what CDI makes of them: see the Class constants.
// Volumes are objects only; PersistentVolumeClaims that a populator has to
// fill are left to it, as external-provisioner does. Claims from snapshots and
// claims are served, claims that ask for more grow, and the pods of a copy end
// after 0.3 s.
//
// # Machines
//
// VirtHandler plays KubeVirt's virt-handler, virt-launcher and guest, below the
// real virt-controller: a guest is up as soon as its pod runs, and off as soon as
// it is asked to be. Hold keeps guests from starting, PowerOffGuest and Crash end them.
package simulator
