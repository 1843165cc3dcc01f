package v1alpha1

const (
	// LabelImageUID stands on every DataVolume, PersistentVolumeClaim, importer
	// Pod and VolumeSnapshot made for a ImageNameForVersion; its value is the image's
	// UID. Children are found by it alone: a name can be used again and can be
	// longer than a label may be, a UID neither. CDI 1.65 copies a DataVolume's
	// labels to its claims and importer Pods.
	LabelImageUID = "pelotech.ot/image-uid"
	// LabelRevision is the revision of the image that a child belongs to.
	LabelRevision = "pelotech.ot/revision"
	// LabelAttempt is the attempt that a child belongs to, a decimal number.
	LabelAttempt = "pelotech.ot/attempt"

	// AnnotationImageName is the name of the ImageNameForVersion a child belongs to, for
	// people: names may be longer than a label's value.
	AnnotationImageName = "pelotech.ot/image-name"
	// AnnotationRetry starts a ImageNameForVersion over whenever its value changes: the
	// retries and the resyncs it has used are forgotten.
	AnnotationRetry = "pelotech.ot/retry"

	// LabelMachineUID stands on all that is made for a VirtualMachine: its root disk
	// with the claim of it, its cloud-init Secret and its KubeVirt VirtualMachine.
	// Its value is the UID of the VirtualMachine.
	LabelMachineUID = "pelotech.ot/machine-uid"
	// LabelBaseVM stands on the KubeVirt VirtualMachine and its instances, as
	// spec.baseVm says.
	LabelBaseVM = "pelotech.ot/base-vm"
	// LabelBaseVMVersion does so with spec.baseVmVersion.
	LabelBaseVMVersion = "pelotech.ot/base-vm-version"
	// LabelVersion does so with spec.version.
	LabelVersion = "pelotech.ot/version"
	// AnnotationClonedFrom of a root disk says what it was cloned from:
	// image UID, revision, attempt and the name of the claim or snapshot, with
	// slashes between them.
	AnnotationClonedFrom = "pelotech.ot/cloned-from"
	// AnnotationAppliedDigest of a KubeVirt VirtualMachine is the digest of its labels and
	// of its spec as the agent applied them, run strategy left out.
	AnnotationAppliedDigest = "pelotech.ot/applied"
	// AnnotationAppliedSpec of a KubeVirt VirtualMachine is the digest of what the author
	// asked for when it was applied: the fields of the VirtualMachine that its spec
	// is made of. It stays when another version of the agent makes something else
	// of the same.
	AnnotationAppliedSpec = "pelotech.ot/applied-spec"
	// AnnotationAppliedGuest of a KubeVirt VirtualMachine is the digest of what the guest
	// was told at its first boot: name, users, interfaces and cloudInit, inline
	// userData included. Who reads it can try guesses at userData. Passwords and
	// what Secrets hold are no part of it.
	AnnotationAppliedGuest = "pelotech.ot/applied-guest"
	// AnnotationOverlaid of a KubeVirt VirtualMachine has the names, with commas
	// between them, of the disks, volumes, interfaces and networks that an overlay
	// has added: they go when it does not have them any more.
	AnnotationOverlaid = "pelotech.ot/overlaid"
	// AnnotationCreatedFor of a ImageNameForVersion names the VirtualMachine, as
	// namespace/name, from whose template it was made.
	AnnotationCreatedFor = "pelotech.ot/created-for"

	// FinalizerImage keeps a ImageNameForVersion until nothing of it runs or is stored.
	FinalizerImage = "pelotech.ot/teardown"
)
