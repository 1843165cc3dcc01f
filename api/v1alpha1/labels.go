package v1alpha1

// Labels, annotations and finalizers of images and VMs in a member.
const (
	// LabelImageUID is set on every DataVolume, PersistentVolumeClaim, importer Pod and
	// VolumeSnapshot of a VMDiskImage, and on the DataSource that points at it; its value is the image's UID. Children are found
	// by this label only: names can be reused and can be longer than a label value. CDI
	// 1.65 copies a DataVolume's labels to its claims and importer Pods.
	LabelImageUID = "pelotech.ot/image-uid"
	// LabelRevision is the revision of the image that a child belongs to.
	LabelRevision = "pelotech.ot/revision"
	// LabelAttempt is the attempt that a child belongs to, a decimal number.
	LabelAttempt = "pelotech.ot/attempt"

	// AnnotationImageName is the name of the VMDiskImage that a child belongs to, for
	// people: a name can be longer than a label value.
	AnnotationImageName = "pelotech.ot/image-name"
	// AnnotationSourceDigest is the digest of the source that a DataVolume was created from. It shows
	// whether the spec was corrected since.
	AnnotationSourceDigest = "pelotech.ot/source-digest"
	// AnnotationRetry restarts a VMDiskImage whenever its value changes: its retries
	// and resyncs are counted from 0 again.
	AnnotationRetry = "pelotech.ot/retry"

	// AnnotationIgnoreOrphanedDisks of a VMDiskImage lists, separated by commas, the namespaces
	// whose orphaned disks no longer hold it; * stands for all. Whoever may create claims in a
	// namespace can make one look like an orphaned disk.
	AnnotationIgnoreOrphanedDisks = "pelotech.ot/ignore-orphaned-disks"

	// LabelMachineUID is set on everything the agent creates for a VirtualMachine: the
	// root disk with its claim, the cloud-init Secret and the KubeVirt VirtualMachine.
	// Its value is the UID of the VirtualMachine.
	LabelMachineUID = "pelotech.ot/machine-uid"
	// LabelDisk is set on a disk of spec.disks of a VirtualMachine, its claim and the Pods
	// that fill it. Its value is the name of the disk.
	LabelDisk = "pelotech.ot/disk"
	// LabelBaseVM is set on the KubeVirt VirtualMachine and its instances, with
	// spec.baseVm.
	LabelBaseVM = "pelotech.ot/base-vm"
	// LabelBaseVMVersion is set likewise, with spec.baseVmVersion.
	LabelBaseVMVersion = "pelotech.ot/base-vm-version"
	// LabelVersion is set likewise, with spec.version.
	LabelVersion = "pelotech.ot/version"
	// AnnotationClonedFrom of a root disk says what it was cloned from: image UID,
	// revision, attempt and the name of the claim or snapshot, separated by slashes.
	AnnotationClonedFrom = "pelotech.ot/cloned-from"
	// AnnotationRequestedStorage of a disk says what the agent asked for: size and StorageClass,
	// separated by a slash. A webhook may have changed the DataVolume at its creation.
	AnnotationRequestedStorage = "pelotech.ot/requested-storage"
	// AnnotationAcceptClaim of the PersistentVolumeClaim of a data disk accepts it in the place of
	// a former one that is lost. Its value is the UID of the claim, so a copy accepts nothing.
	AnnotationAcceptClaim = "pelotech.ot/accept-claim"
	// AnnotationAppliedDigest of a KubeVirt VirtualMachine is the digest of the labels
	// and spec that the agent applied, without the run strategy; of a DataSource that of
	// the labels.
	AnnotationAppliedDigest = "pelotech.ot/applied"
	// AnnotationAppliedSpec of a KubeVirt VirtualMachine is the digest of the author's
	// input: the fields of the VirtualMachine that its spec is made from. It does not
	// change when another version of the agent renders the same input differently.
	AnnotationAppliedSpec = "pelotech.ot/applied-spec"
	// AnnotationAppliedGuest of a KubeVirt VirtualMachine is the digest of what the
	// guest got at its first boot: name, users, interfaces and cloudInit with inline
	// userData. Anybody who can read it can test guesses of userData. It does not cover
	// passwords or the content of Secrets.
	AnnotationAppliedGuest = "pelotech.ot/applied-guest"
	// AnnotationAppliedInstancetype of a KubeVirt VirtualMachine has the names of the
	// instancetype and the preference that the agent applied, separated by a comma. It is
	// missing where there are neither.
	AnnotationAppliedInstancetype = "pelotech.ot/applied-instancetype"
	// AnnotationOverlaid of a KubeVirt VirtualMachine lists, separated by commas, the
	// disks, volumes, interfaces and networks that spec.disks or an overlay added. The
	// agent removes them when the spec no longer has them.
	AnnotationOverlaid = "pelotech.ot/overlaid"
	// AnnotationMigratedVolumes of a KubeVirt VirtualMachine lists, separated by commas, the volumes
	// whose disk KubeVirt has migrated to another claim, as volume=claim. The agent keeps them,
	// also while the disk is detached, and then also those that KubeVirt has restored.
	AnnotationMigratedVolumes = "pelotech.ot/migrated-volumes"
	// AnnotationCreatedFor of a VMDiskImage names the VirtualMachine, as
	// namespace/name, whose template it was created from.
	AnnotationCreatedFor = "pelotech.ot/created-for"

	// FinalizerImage keeps a VMDiskImage until none of its imports run and none of its
	// storage is left.
	FinalizerImage = "pelotech.ot/teardown"

	// GateOneDownload is the scheduling gate of an importer Pod that CDI created because
	// its predecessor ran out of memory. An admission policy of the chart sets it; nothing
	// removes it, since the agent ends the attempt.
	GateOneDownload = "pelotech.ot/one-download"
)

// Labels, annotations and finalizers of the fleet.
const (
	// LabelPlanned is set on a VMDiskImage that the agent created for a ClusterPlan.
	// The plan changes only such images.
	LabelPlanned = "pelotech.ot/planned"
	// LabelMember on a Secret in the hub's namespace names a member whose kubeconfig
	// the Secret has in key kubeconfig. The hub creates the MemberCluster.
	LabelMember = "pelotech.ot/member"
	// LabelDiscovered is set on a MemberCluster that the hub created from a Secret
	// (value secret) or a Cluster of Cluster API (value cluster-api). The hub deletes
	// the MemberCluster together with its origin.
	LabelDiscovered = "pelotech.ot/discovered"
	// LabelInstallAgent with value "true" on a MemberCluster, or on the Cluster or
	// Secret it is created from, lets the hub install and upgrade the agent there.
	LabelInstallAgent = "pelotech.ot/install-agent"
	// LabelPolicyPreview on a ConfigMap beside the fleet's policy requests a preview:
	// the hub writes to AnnotationPreview what the policy would change and applies
	// nothing.
	LabelPolicyPreview = "pelotech.ot/policy-preview"

	// LabelPruneReport on a PruneReportPage is the UID of its PruneReport.
	LabelPruneReport = "pelotech.ot/prune-report"

	// AnnotationAcceptCluster of a MemberCluster accepts the cluster with that UID
	// under this name, instead of the cluster that the hub knew.
	AnnotationAcceptCluster = "pelotech.ot/accept-cluster"
	// AnnotationJoinToken of a MemberCluster in pull mode: each new value makes the hub
	// issue a new join token and invalidate the one before.
	AnnotationJoinToken = "pelotech.ot/join-token"
	// AnnotationAdoptAgent with value "true" on a MemberCluster lets the hub take over
	// an agent that somebody else installed.
	AnnotationAdoptAgent = "pelotech.ot/adopt-agent"
	// AnnotationDowngradeAgent of a MemberCluster names the agent version that the hub
	// may install even if the installed agent may be newer.
	AnnotationDowngradeAgent = "pelotech.ot/downgrade-agent"
	// AnnotationInstallAttempts of a MemberCluster is the hub's counter of install
	// attempts. Removing it resets the counter.
	AnnotationInstallAttempts = "pelotech.ot/install-attempts"
	// AnnotationPausedBy of a FleetDiskImage names who paused its rollout with kubectl ot, and
	// AnnotationPausedBecause why, for people.
	AnnotationPausedBy      = "pelotech.ot/paused-by"
	AnnotationPausedBecause = "pelotech.ot/paused-because"
	// AnnotationPreview is the hub's answer to a preview of a policy.
	AnnotationPreview = "pelotech.ot/preview"

	// FinalizerMember keeps a MemberCluster until the hub has cleaned up in the member.
	FinalizerMember = "pelotech.ot/member"
	// FinalizerFleetDiskImage keeps a FleetDiskImage with deletionPolicy Delete until
	// its images are gone, or will be deleted by the members alone.
	FinalizerFleetDiskImage = "pelotech.ot/fleet-disk-image"
)
