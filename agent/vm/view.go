// Package vm decides what becomes of a VirtualMachine.
package vm

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// View is everything that a decision on a machine rests on.
type View struct {
	Now time.Time
	VM  *v1alpha1.VirtualMachine
	// Image that the spec names; nil where it does not exist.
	Image *v1alpha1.VMDiskImage
	// Pinned is the image that status.pinned names, by its UID; nil where it does
	// not exist or nothing is pinned.
	Pinned *v1alpha1.VMDiskImage
	// SourceExists: what is pinned exists and is not being deleted. Known only in a
	// live View.
	SourceExists bool
	// Live: Image, Pinned, SourceExists and RootDisk were read from the API server
	// after VM was stored as it is.
	Live bool

	// CDIServed, KubeVirtServed: the cluster serves their kinds.
	CDIServed, KubeVirtServed bool

	// RootDisk and its claim; nil where they do not exist.
	RootDisk  *cdiv1.DataVolume
	RootClaim *corev1.PersistentVolumeClaim
	// CloudInitSecret of cloud-init; nil where it does not exist.
	CloudInitSecret *corev1.Secret
	// KubeVirtVM is KubeVirtServed's; nil where it does not exist.
	KubeVirtVM *unstructured.Unstructured

	// MissingNetwork names a NetworkAttachmentDefinition that an interface names
	// and that does not exist. It is looked for while Machine is not ready.
	MissingNetwork string

	// Inputs of the guest, read from Secrets.
	Inputs cloudinit.Inputs
	// MissingSecret says which Secret, or key of it, the spec names and is not there.
	MissingSecret string
}

// DeleteTarget is one object to delete. UID and resourceVersion are preconditions: it is
// deleted as it was decided on, or not at all.
type DeleteTarget struct {
	Name            string
	UID             types.UID
	ResourceVersion string
}

// Decision is what becomes of a machine. It is carried out in the order of its
// fields.
type Decision struct {
	// NeedsLive: decide again with a live View. Nothing else is decided.
	NeedsLive bool
	// StoreStatusFirst: status is stored before anything else is done, and then it is
	// decided again: what is pinned must be seen by whoever deletes images before
	// the image is looked at once more.
	StoreStatusFirst bool

	CreateImage    *v1alpha1.VMDiskImage
	DeleteRootDisk *DeleteTarget
	CreateRootDisk *cdiv1.DataVolume
	ApplySecret    *corev1.Secret
	// ApplyKubeVirtVM is applied server-side. Its resourceVersion, where it has one,
	// is what it was decided on.
	ApplyKubeVirtVM *unstructured.Unstructured
	// RunStrategy to set on the KubeVirtServed VirtualMachine without touching the rest.
	RunStrategy v1alpha1.RunStrategy

	Status v1alpha1.VirtualMachineStatus
	// previousConditions are the conditions that are stored.
	previousConditions []metav1.Condition
	// RequeueAfter is when to look again for what no event tells of; 0 for never.
	RequeueAfter time.Duration
}

// machineState is what a machine does or waits for.
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

// decider works out one Decision.
type decider struct {
	View
	decision  Decision
	status    *v1alpha1.VirtualMachineStatus
	timestamp metav1.Time

	guestConfig cloudinit.Config
	desiredVM   *unstructured.Unstructured
	// specError says why the spec cannot be carried out.
	specError error

	// replaced: the root disk is incomplete and goes before anything else is pinned.
	replacesRootDisk bool
	// foreignDiskNote says that the root disk is of something else than what is pinned.
	foreignDiskNote string
	// lostDiskMessage says what became of a root disk that had been cloned.
	lostDiskMessage string
	// rootDiskRequested: the root disk is there, or being cloned.
	rootDiskRequested bool
	// told: what the guest is told is stored, or about to be.
	guestConfigStored bool
	// compared: what KubeVirtServed has was held against the spec.
	comparedWithSpec bool
	// changeNeedsRestart: a change of the spec waits for a restart.
	changeNeedsRestart bool
	// reworded: this agent makes something else of the same spec, which waits for
	// the next start.
	renderingChanged bool
	// endingRunStrategy is the run strategy that the machine keeps until its instance is gone.
	endingRunStrategy string
	// untold: the spec has the guest told what it has not been told at its first boot.
	guestConfigOutdated bool

	generation int64
	// blocker is the first thing that keeps the machine from being ready.
	blocker *machineState
	// imageState is what there is to say of the image, whatever else is waited for.
	imageState machineState
}

// setBlocker notes what is waited for, unless something before it is.
func (s *decider) setBlocker(w machineState) {
	if s.blocker == nil {
		s.blocker = &w
	}
}

// requeueWithin asks for another look after d, at the latest.
func (s *decider) requeueWithin(d time.Duration) {
	d = max(d, 10*time.Millisecond)
	if s.decision.RequeueAfter == 0 || d < s.decision.RequeueAfter {
		s.decision.RequeueAfter = d
	}
}
