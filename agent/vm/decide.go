package vm

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// missingRecheckInterval is how often missing Secrets and namespaces are read, which have no
// watch, and how often a refused request is repeated.
const missingRecheckInterval = 30 * time.Second

// Decide returns the next step for a machine. It does not modify v.
func Decide(v View) Decision {
	v.LiveImages = v.LiveImages || v.Live
	d := &decider{View: v, timestamp: storedtime.Truncate(v.Now)}
	v.VM.Status.DeepCopyInto(&d.decision.Status)
	d.decision.previousConditions, d.decision.messageStoredAt = v.VM.Status.Conditions, v.MessageStoredAt
	d.status = &d.decision.Status

	d.renderGuestAndMachine()
	d.collectDisks()
	d.reportInputErrors()
	d.forEachDisk((*diskDecider).evaluateImage)
	d.forEachDisk((*diskDecider).pinImage)
	if !d.decision.StoreStatusFirst {
		d.forEachDisk((*diskDecider).acquireImage)
	}
	if !d.decision.StoreStatusFirst {
		d.forEachDisk((*diskDecider).reconcile)
		d.forEachDisk((*diskDecider).reportProgress)
		d.reconcileCloudInitSecret()
		d.reconcileKubeVirtVM()
		d.recordMigrations()
		d.adoptChildren()
		d.awaitPodEvents()
	} else {
		d.forEachDisk((*diskDecider).keepVolume)
	}
	d.storeDisks()
	switch {
	case d.decision.NeedsLive && !v.Live:
		return Decision{NeedsLive: true}
	case d.decision.NeedsLiveImages && !v.LiveImages:
		return Decision{NeedsLiveImages: true}
	}
	if d.decision.StoreStatusFirst {
		d.decision.CreateImage = nil
	}
	if d.decision.StoreStatusFirst && d.status.Phase != "" {
		return d.decision // the next decision updates phase and conditions
	}
	d.writeStatus()
	return d.decision
}

func (d *decider) renderGuestAndMachine() {
	if d.MissingSecret != "" {
		d.guestConfig, d.specError = cloudinit.RenderWithoutSecrets(d.VM, d.Inputs.ClusterUID)
	} else {
		d.guestConfig, d.specError = cloudinit.Render(d.VM, d.Inputs)
	}
	d.addressProblem = d.AddressConflict
	if err := cloudinit.CheckAddresses(d.VM); err != nil {
		d.addressProblem = err.Error()
	}
	if d.specError == nil && d.addressProblem != "" && (d.KubeVirtVM == nil || !d.ownsObject(d.KubeVirtVM)) {
		d.specError = errors.New(d.addressProblem) // a machine that exists already shows it in SpecAdjusted
	}
	if d.specError != nil {
		return
	}
	d.buildKubeVirtVM()
}

// reportInputErrors comes before all other blockers: these errors need a person.
func (d *decider) reportInputErrors() {
	if d.deployIgnored() {
		return
	}
	if d.MissingSecret != "" {
		d.requeueWithin(missingRecheckInterval)
		if d.KubeVirtVM == nil { // an existing one was created with the Secret
			reason := v1alpha1.ReasonSecretMissing
			if d.SecretForbidden {
				reason = v1alpha1.ReasonSecretForbidden
			}
			d.setBlocker(d.missingDependency(reason, d.MissingSecret))
		}
	}
	if d.specError != nil {
		if d.namesSecret() { // what is wrong may be its content, and Secrets are not watched
			d.requeueWithin(missingRecheckInterval)
		}
		d.setBlocker(failedState(v1alpha1.ReasonSpecInvalid, v1alpha1.SanitizeText(d.specError.Error(), maxQuotedBytes)))
	}
}

// cannotBeBuilt reports whether a person has to correct the spec, or a right, before there is a machine:
// disks would take storage and quota for nothing. A Secret that is missing may just follow.
func (d *decider) cannotBeBuilt() bool {
	return d.KubeVirtVM == nil && (d.specError != nil || d.SecretForbidden)
}

// namesSecret reports whether cloud-init data is read from a Secret.
func (d *decider) namesSecret() bool {
	cloudInit := d.VM.Spec.CloudInit
	return (cloudInit != nil && cloudInit.UserDataSecretRef != nil) ||
		slices.ContainsFunc(d.VM.Spec.Users, func(u v1alpha1.User) bool { return u.PasswordSecretRef != nil })
}

// deployIgnored: only the image is created.
func (d *decider) deployIgnored() bool { return d.VM.Spec.IgnoreOnDeploy && d.KubeVirtVM == nil }

func (d *decider) forEachDisk(act func(*diskDecider)) {
	for _, disk := range d.disks {
		act(disk)
	}
}

// keepVolume keeps the state of the volume while a pin is stored first.
func (d *diskDecider) keepVolume() { d.volume = d.previous }

// isComplete also accepts a bound claim without a DataVolume: older CDI deletes finished
// DataVolumes and makes their owner the owner of the claim. A claim that a DataVolume owns is
// garbage-collected with it.
func (d *diskDecider) isComplete() bool {
	switch {
	case d.DataVolume != nil:
		return d.ownsObject(d.DataVolume) && d.DataVolume.DeletionTimestamp == nil && d.DataVolume.Status.Phase == cdiv1.Succeeded
	case d.Claim != nil:
		controller := metav1.GetControllerOf(d.Claim)
		return d.ownsObject(d.Claim) && d.Claim.DeletionTimestamp == nil && d.Claim.Status.Phase == corev1.ClaimBound &&
			(controller == nil || controller.Kind != "DataVolume")
	default:
		return false
	}
}

// ownsObject reports whether an object was created for this machine, or given to it.
func (d *decider) ownsObject(o metav1.Object) bool { return kubevirt.IsMadeFor(o, d.VM) }

// adoptChildren makes the machine the owner of each object that was made for it and has lost
// its owner, as by a restored backup, or never had it, for example when a person has given it the
// machine's label. Without an owner it would remain when the machine is deleted.
func (d *decider) adoptChildren() {
	adopt := func(kind schema.GroupVersionKind, o, disk metav1.Object) {
		if owners := kubevirt.AdoptedOwners(o, d.VM, disk); owners != nil {
			d.decision.Adopt = append(d.decision.Adopt, AdoptTarget{kind, o.GetName(), o.GetUID(), o.GetResourceVersion(), owners})
		}
	}
	// First: a policy may refuse to record a migration in one without an owner. To apply it sets the owner.
	if d.KubeVirtVM != nil && d.decision.ApplyKubeVirtVM == nil {
		adopt(kubevirt.VirtualMachineGVK, d.KubeVirtVM, nil)
	}
	for _, disk := range d.disks {
		var dataVolume metav1.Object
		if disk.DataVolume != nil {
			adopt(cdiv1.SchemeGroupVersion.WithKind("DataVolume"), disk.DataVolume, nil)
			dataVolume = disk.DataVolume
		}
		if disk.Claim != nil {
			adopt(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), disk.Claim, dataVolume)
		}
	}
}

// awaitPodEvents decides again when the Events of a Pod that does not start are due.
func (d *decider) awaitPodEvents() {
	for i := range d.Pods {
		if in, awaits := importcause.AwaitsEvents(&d.Pods[i], d.Now); awaits && in > 0 {
			d.requeueWithin(in)
		} else if awaits {
			d.requeueWithin(importcause.EventsInterval)
		}
	}
}

// NameTakenMessage says that an object with a required name belongs to others.
func NameTakenMessage(kind, name string) string {
	return fmt.Sprintf("%s %s exists and was not created for this machine: rename or delete it, or rename this machine", kind, name)
}

func nameTakenState(kind, name string) machineState {
	return failedState(v1alpha1.ReasonNameTaken, NameTakenMessage(kind, name))
}

const (
	// maxQuotedBytes bounds what a message quotes of others.
	maxQuotedBytes = 768
	// maxStateBytes bounds a state or a progress, which others report in a word.
	maxStateBytes = 64
	// maxMessageBytes bounds a whole message. The API server accepts 32 KiB.
	maxMessageBytes = 4096
)
