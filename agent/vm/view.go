// Package vm decides the next step for a VirtualMachine: what to create, apply or delete,
// and its status. It is pure; agent/controllers/vm carries the decisions out.
package vm

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// View is the input of Decide.
type View struct {
	Now time.Time
	VM  *v1alpha1.VirtualMachine
	// DiskView is that of the root disk.
	DiskView
	// Disks has the other disks, by name: those of spec.disks and of status.disks.
	Disks map[string]DiskView
	// LiveImages: the images were read from the API server after the pins of VM were stored, and
	// VM was stored as it is here since, or found so.
	LiveImages bool
	// Live: so were sources and DataVolumes. LiveImages holds too.
	Live bool

	// LateWrites is for how long the API server may still carry out what a former leader has sent;
	// 0 if it no longer may.
	LateWrites time.Duration

	// CDIServed, KubeVirtServed: the cluster serves their kinds.
	CDIServed, KubeVirtServed bool

	// KubeVirtVM is KubeVirt's VirtualMachine; nil if it does not exist.
	KubeVirtVM *unstructured.Unstructured

	// Pods are those of the machine's instance and those that fill its disks. Set only while
	// KubeVirtVM or a disk is not ready.
	Pods []corev1.Pod

	// MissingNetwork is a NetworkAttachmentDefinition that an interface names and that does
	// not exist. Set only while KubeVirtVM is not ready.
	MissingNetwork string
	// NetworkUnknown: whether such a network exists could not be read.
	NetworkUnknown bool

	// AddressConflict is a sentence about an address that another machine has, too; see
	// FindAddressConflict.
	AddressConflict string

	// Inputs of cloud-init, read from Secrets.
	Inputs cloudinit.Inputs
	// MissingSecret is a sentence about a Secret, or a key of one, that the spec names and
	// that does not exist or, with SecretForbidden, that the agent may not read.
	MissingSecret   string
	SecretForbidden bool
	// AppliedSecret is the cloud-init Secret that this process applied last.
	AppliedSecret AppliedSecret
	// MessageStoredAt is when this process last stored a change of the message of Ready or
	// SpecAdjusted; zero for never.
	MessageStoredAt time.Time
}

// DiskView is what there is of a disk.
type DiskView struct {
	// Image is the image that the spec names; nil if it does not exist, and for a blank disk.
	Image *v1alpha1.VMDiskImage
	// Pinned is the image that the disk's pin names, with that UID; nil if it does not exist
	// or nothing is pinned.
	Pinned *v1alpha1.VMDiskImage
	// SourceExists: the pinned claim or snapshot exists and is not being deleted. Set where
	// LiveImages holds. Only a live View can tell that it does not: otherwise a cache may know
	// the source of a pin that it has seen.
	SourceExists bool
	// DataVolume and Claim are nil if they do not exist.
	DataVolume *cdiv1.DataVolume
	Claim      *corev1.PersistentVolumeClaim
	// SeenFor is for how long this process has known DataVolume, whatever the clocks say.
	SeenFor time.Duration
	// LiveClaim is the claim of an existing DataVolume that a live read found, whatever its labels: no
	// cache has one without the machine's. Read where Live holds and the cache has none, or a Pending
	// one, which it replaces as Claim.
	LiveClaim *corev1.PersistentVolumeClaim
	// ClaimProblem is a sentence about why the claim cannot be created, which CDI does not say;
	// empty for nothing.
	ClaimProblem string
}

// CreateDisk is a DataVolume to create.
type CreateDisk struct {
	*cdiv1.DataVolume
	// Disk is the name of a data disk; empty for the root disk.
	Disk string
}

// DeleteTarget is a DataVolume to delete. UID and ResourceVersion are preconditions.
type DeleteTarget struct {
	// Disk is the name of a data disk; empty for the root disk.
	Disk            string
	Name            string
	UID             types.UID
	ResourceVersion string
}

// AdoptTarget is an object to get owners. UID and ResourceVersion are preconditions.
type AdoptTarget struct {
	Kind            schema.GroupVersionKind
	Name            string
	UID             types.UID
	ResourceVersion string
	Owners          []metav1.OwnerReference
}

// MigrationTarget is what the KubeVirt VirtualMachine is to record. UID and ResourceVersion are
// preconditions.
type MigrationTarget struct {
	UID             types.UID
	ResourceVersion string
	// Volumes is the value of AnnotationMigratedVolumes.
	Volumes string
}

// Decision is the next step for a machine. The caller carries it out in the order of the
// fields.
type Decision struct {
	// NeedsLive: decide again with a live View. No other field is set.
	NeedsLive bool
	// NeedsLiveImages: decide again with LiveImages. No other field is set.
	NeedsLiveImages bool
	// StoreStatusFirst: store the status, then decide again. Nothing else is to be done.
	// Invariant: a pin is stored before its image is read live, and the volume of a data disk
	// before it is requested.
	StoreStatusFirst bool

	// Adopt has what was made for the machine and has no owner.
	Adopt []AdoptTarget
	// RecordMigrations is nil for nothing. ApplyKubeVirtVM is nil with it.
	RecordMigrations *MigrationTarget

	CreateImage *v1alpha1.VMDiskImage
	DeleteDisks []DeleteTarget
	CreateDisks []CreateDisk
	// ApplySecret replaces the cloud-init Secret, which the agent may not read: decided also where
	// it is stored as it is here, unless this process has just applied it.
	ApplySecret *corev1.Secret
	// ApplyKubeVirtVM is applied server-side. Its resourceVersion, if set, is the one that
	// the decision is based on.
	ApplyKubeVirtVM *unstructured.Unstructured
	// RunStrategy is set on the KubeVirt VirtualMachine without touching other fields.
	RunStrategy v1alpha1.RunStrategy

	Status v1alpha1.VirtualMachineStatus
	// previousConditions are the stored ones, and messageStoredAt is that of the View.
	previousConditions []metav1.Condition
	messageStoredAt    time.Time
	// RequeueAfter is when to decide again, for what no event announces; 0 for never.
	RequeueAfter time.Duration
}

// machineState is a phase with its reason and message.
type machineState struct {
	phase   v1alpha1.MachinePhase
	reason  v1alpha1.Reason
	message string
}

func provisioningState(reason v1alpha1.Reason, message string) machineState {
	return machineState{v1alpha1.MachineProvisioning, reason, message}
}

func failedState(reason v1alpha1.Reason, message string) machineState {
	return machineState{v1alpha1.MachineFailed, reason, message}
}

// decider computes one Decision.
type decider struct {
	View
	decision  Decision
	status    *v1alpha1.VirtualMachineStatus
	timestamp metav1.Time

	guestConfig cloudinit.Config
	desiredVM   *unstructured.Unstructured
	// specError says why the spec is invalid.
	specError error
	// addressProblem says why the addresses of the spec cannot be used.
	addressProblem string

	// disks: the root disk first, then those of spec.disks, then removed ones.
	disks []*diskDecider
	// guestConfigStored: the cloud-init Secret is up to date or about to be.
	guestConfigStored bool
	// comparedWithSpec: the KubeVirt VirtualMachine was compared with the spec.
	comparedWithSpec bool
	// changeNeedsRestart: a change of the spec waits for a restart.
	changeNeedsRestart bool
	// renderingChanged: this version of the agent renders the same spec differently, which
	// waits for the next start.
	renderingChanged bool
	// endingRunStrategy is the run strategy to keep until the current instance is gone.
	endingRunStrategy string
	// guestConfigOutdated: the guest booted with other cloud-init data than the spec's.
	guestConfigOutdated bool

	// architectureNote says that a running machine and its image are of two architectures, or that one is kept
	// that the spec does not say.
	architectureNote string

	generation int64
	// blocker is the first thing that keeps the machine from being ready.
	blocker *machineState
}

// setBlocker keeps an earlier blocker.
func (d *decider) setBlocker(state machineState) {
	if d.blocker == nil {
		d.blocker = &state
	}
}

// requeueWithin keeps an earlier requeue.
func (d *decider) requeueWithin(delay time.Duration) {
	delay = max(delay, 10*time.Millisecond)
	if d.decision.RequeueAfter == 0 || delay < d.decision.RequeueAfter {
		d.decision.RequeueAfter = delay
	}
}
