// Package vm decides what becomes of a VirtualMachine.
package vm

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/guest"
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
	// SourceThere: what is pinned exists and is not being deleted. Known only in a
	// live View.
	SourceThere bool
	// Live: Image, Pinned, SourceThere and RootDisk were read from the API server
	// after VM was stored as it is.
	Live bool

	// CDI, KubeVirt: the cluster serves their kinds.
	CDI, KubeVirt bool

	// RootDisk and its claim; nil where they do not exist.
	RootDisk  *cdiv1.DataVolume
	RootClaim *corev1.PersistentVolumeClaim
	// Secret of cloud-init; nil where it does not exist.
	Secret *corev1.Secret
	// Machine is KubeVirt's; nil where it does not exist.
	Machine *unstructured.Unstructured

	// NetworkMissing names a NetworkAttachmentDefinition that an interface names
	// and that does not exist. It is looked for while Machine is not ready.
	NetworkMissing string

	// Inputs of the guest, read from Secrets.
	Inputs guest.Inputs
	// Missing says which Secret, or key of it, the spec names and is not there.
	Missing string
}

// Target is one object to delete. UID and resourceVersion are preconditions: it is
// deleted as it was decided on, or not at all.
type Target struct {
	Name            string
	UID             types.UID
	ResourceVersion string
}

// Decision is what becomes of a machine. It is carried out in the order of its
// fields.
type Decision struct {
	// NeedsLive: decide again with a live View. Nothing else is decided.
	NeedsLive bool
	// StoreFirst: status is stored before anything else is done, and then it is
	// decided again: what is pinned must be seen by whoever deletes images before
	// the image is looked at once more.
	StoreFirst bool

	CreateImage    *v1alpha1.VMDiskImage
	DeleteRootDisk *Target
	CreateRootDisk *cdiv1.DataVolume
	ApplySecret    *corev1.Secret
	// ApplyMachine is applied server-side. Its resourceVersion, where it has one,
	// is what it was decided on.
	ApplyMachine *unstructured.Unstructured
	// RunStrategy to set on the KubeVirt VirtualMachine without touching the rest.
	RunStrategy v1alpha1.RunStrategy

	Status v1alpha1.VirtualMachineStatus
	// before are the conditions that are stored.
	before []metav1.Condition
	// After is when to look again for what no event tells of; 0 for never.
	After time.Duration
}

// wait is what a machine does or waits for.
type wait struct {
	phase   v1alpha1.MachinePhase
	reason  v1alpha1.Reason
	message string
}

func provisioning(reason v1alpha1.Reason, message string) wait {
	return wait{v1alpha1.MachineProvisioning, reason, message}
}

func failed(reason v1alpha1.Reason, message string) wait {
	return wait{v1alpha1.MachineFailed, reason, message}
}

// step works out one Decision.
type step struct {
	View
	d   Decision
	st  *v1alpha1.VirtualMachineStatus
	now metav1.Time

	guest  guest.Config
	wanted *unstructured.Unstructured
	// invalid says why the spec cannot be carried out.
	invalid error

	// replaced: the root disk is incomplete and goes before anything else is pinned.
	replaced bool
	// foreign says that the root disk is of something else than what is pinned.
	foreign string
	// lost says what became of a root disk that had been cloned.
	lost string
	// diskMade: the root disk is there, or being cloned.
	diskMade bool
	// told: what the guest is told is stored, or about to be.
	told bool
	// compared: what KubeVirt has was held against the spec.
	compared bool
	// heldBack: a change of the spec waits for a restart.
	heldBack bool
	// reworded: this agent makes something else of the same spec, which waits for
	// the next start.
	reworded bool
	// ending is the run strategy that the machine keeps until its instance is gone.
	ending string
	// untold: the spec has the guest told what it has not been told at its first boot.
	untold bool

	generation int64
	// wait is the first thing that keeps the machine from being ready.
	wait *wait
	// image is what there is to say of the image, whatever else is waited for.
	image wait
}

// blocked notes what is waited for, unless something before it is.
func (s *step) blocked(w wait) {
	if s.wait == nil {
		s.wait = &w
	}
}

// within asks for another look after d, at the latest.
func (s *step) within(d time.Duration) {
	d = max(d, 10*time.Millisecond)
	if s.d.After == 0 || d < s.d.After {
		s.d.After = d
	}
}
