package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// All that a machine can wait for.
func TestPhaseAndReasonByState(t *testing.T) {
	const (
		provisioning = v1alpha1.MachineProvisioning
		ready        = v1alpha1.MachineReady
		failed       = v1alpha1.MachineFailed
	)
	template := apitest.Image("ns/golden").Obj().Spec
	image := func(phase v1alpha1.Phase, reason v1alpha1.Reason, message string) func(*world) {
		return func(w *world) {
			w.Image = apitest.Image("ns/golden").WithStatus(v1alpha1.VMDiskImageStatus{Phase: phase, Reason: reason, Message: message, Progress: "12.3%"}).Obj()
		}
	}
	disk := func(phase cdiv1.DataVolumePhase) func(*world) {
		return func(w *world) { w.withRootDisk(goldenImage(1), phase) }
	}
	kubeVirtStatus := func(status string, more map[string]any) func(*world) {
		return func(w *world) { w.withRootDisk(goldenImage(1), cdiv1.Succeeded).withKubeVirtVM(status, more) }
	}
	failure := map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "False", "message": "VMI does not exist"},
		map[string]any{"type": "Failure", "status": "True", "message": "no such thing"},
	}}
	for name, tt := range map[string]struct {
		vm      *apitest.MachineBuilder
		setup   func(*world)
		phase   v1alpha1.MachinePhase
		reason  v1alpha1.Reason
		want    []string
		requeue time.Duration
	}{
		"image missing":                 {phase: failed, reason: v1alpha1.ReasonImageMissing, want: []string{"ns/golden", "vmDiskImageTemplate"}},
		"image missing, FailIfNotExist": {vm: apitest.VirtualMachine("ns", "vm").WithTemplate(template).WithImageMode(v1alpha1.ImageModeFail), phase: failed, reason: v1alpha1.ReasonImageMissing},
		"image to be created":           {vm: apitest.VirtualMachine("ns", "vm").WithTemplate(template), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage},
		"image without status":          {setup: image("", "", ""), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, want: []string{"was just created"}},
		"image queued":                  {setup: image(v1alpha1.PhaseQueued, v1alpha1.ReasonPaused, "paused"), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, want: []string{"Queued", "paused"}},
		"image syncing":                 {setup: image(v1alpha1.PhaseSyncing, "Importing", ""), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, want: []string{"12.3%"}},
		"image failed":                  {setup: image(v1alpha1.PhaseFailed, "NotFound", "404"), phase: failed, reason: v1alpha1.ReasonImageFailed, want: []string{"NotFound", "404"}},
		"image needs a person": {setup: func(w *world) {
			image(v1alpha1.PhaseSyncing, v1alpha1.ReasonDataSourceForbidden, "run this")(w)
			w.Image.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, ObservedGeneration: w.Image.Generation}}
		}, phase: failed, reason: v1alpha1.ReasonImageFailed, want: []string{"VMDiskImage ns/golden needs a person: Syncing, DataSourceForbidden 12.3%: run this"}},
		"image needed a person before its last edit": {setup: func(w *world) {
			image(v1alpha1.PhaseSyncing, v1alpha1.ReasonDataSourceForbidden, "run this")(w)
			w.Image.Generation = 2
			w.Image.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
		}, phase: provisioning, reason: v1alpha1.ReasonWaitingForImage},
		"image deleting":                {setup: image(v1alpha1.PhaseDeleting, "Deleting", ""), phase: provisioning, reason: v1alpha1.ReasonImageDeleting},
		"image deleting, with template": {vm: apitest.VirtualMachine("ns", "vm").WithTemplate(template), setup: image(v1alpha1.PhaseDeleting, "Deleting", ""), phase: provisioning, reason: v1alpha1.ReasonImageDeleting, want: []string{"from spec.vmDiskImageTemplate"}},
		"image torn down": {setup: func(w *world) {
			w.Image = goldenImage(1)
			w.Image.Status.TearDown = true
		}, phase: provisioning, reason: v1alpha1.ReasonImageDeleting},
		"image released, queued before": {setup: func(w *world) {
			image(v1alpha1.PhaseQueued, v1alpha1.ReasonWaitingForSlot, "waits for a slot")(w)
			releaseImage(w.Image)
		}, phase: provisioning, reason: v1alpha1.ReasonImageDeleting},
		"image released, still serves": {setup: func(w *world) {
			w.Image = goldenImage(1)
			releaseImage(w.Image)
		}, phase: provisioning, reason: v1alpha1.ReasonImageDeleting},
		"image failed, still serves": {setup: func(w *world) {
			w.Image = goldenImage(1)
			w.Image.Status.Phase = v1alpha1.PhaseFailed
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk},
		"image terminating, still serves": {setup: func(w *world) {
			w.Image = goldenImage(1)
			w.Image.Status.Phase = v1alpha1.PhaseTerminating
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk},
		"image prune pending": {setup: func(w *world) {
			w.Image = goldenImage(1)
			w.Image.Status.Phase, w.Image.Status.Reason = v1alpha1.PhasePrunePending, v1alpha1.ReasonUndoWindowOpen
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk},
		"image prune pending, serves nothing": {setup: image(v1alpha1.PhasePrunePending, v1alpha1.ReasonUndoWindowOpen, "it has failed: 404"), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, want: []string{"404"}},
		"served storage is gone":              {setup: func(w *world) { w.Image, w.sourceExists = goldenImage(1), false }, phase: provisioning, reason: v1alpha1.ReasonAcquiringImage, want: []string{"is gone"}, requeue: time.Second},

		"ignoreOnDeploy":                {vm: apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy(), setup: func(w *world) { w.Image = goldenImage(1) }, phase: ready, reason: v1alpha1.ReasonIgnoredOnDeploy},
		"ignoreOnDeploy, image missing": {vm: apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy(), phase: failed, reason: v1alpha1.ReasonImageMissing},
		"ignoreOnDeploy, image syncing": {vm: apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy(), setup: image(v1alpha1.PhaseSyncing, "Importing", ""), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage},
		"ignoreOnDeploy, no KubeVirt":   {vm: apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy(), setup: func(w *world) { w.Image, w.CDIServed, w.KubeVirtServed = goldenImage(1), false, false }, phase: ready, reason: v1alpha1.ReasonIgnoredOnDeploy},

		"Secret missing": {setup: func(w *world) { w.Image, w.MissingSecret = goldenImage(1), "Secret ns/s does not exist" }, phase: failed, reason: v1alpha1.ReasonSecretMissing, want: []string{"ns/s"}, requeue: 30 * time.Second},
		"Secret forbidden": {setup: func(w *world) {
			w.Image, w.MissingSecret, w.SecretForbidden = goldenImage(1), "the agent may not read Secret ns/s", true
		}, phase: failed, reason: v1alpha1.ReasonSecretForbidden, want: []string{"ns/s"}, requeue: 30 * time.Second},
		"Secret missing, image syncing": {setup: func(w *world) { image(v1alpha1.PhaseSyncing, "", "")(w); w.MissingSecret = "Secret ns/s" }, phase: failed, reason: v1alpha1.ReasonSecretMissing, requeue: 30 * time.Second},
		"Secret missing, machine runs": {setup: func(w *world) {
			w.withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
			w.MissingSecret = "Secret ns/s"
		}, phase: ready, reason: v1alpha1.ReasonRunning, requeue: 30 * time.Second},
		"invalid spec": {vm: apitest.VirtualMachine("ns", "vm").WithOverlay(`{"running":true}`), setup: image(v1alpha1.PhaseSyncing, "", ""), phase: failed, reason: v1alpha1.ReasonSpecInvalid, want: []string{"spec.runStrategy"}},
		"no CDI":       {setup: func(w *world) { w.withPin(goldenImage(1), true).CDIServed = false }, phase: failed, reason: v1alpha1.ReasonCDIMissing},
		"no KubeVirt":  {setup: func(w *world) { w.withRootDisk(goldenImage(1), cdiv1.Succeeded).KubeVirtServed = false }, phase: failed, reason: v1alpha1.ReasonKubeVirtMissing},

		"clone in progress": {setup: func(w *world) {
			w.withRootDisk(goldenImage(1), cdiv1.CloneInProgress)
			w.DataVolume.Status.Progress = "7.5%"
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, want: []string{"7.5%"}},
		"clone without a storage class": {setup: func(w *world) {
			w.withRootDisk(goldenImage(1), cdiv1.Pending)
			w.DataVolume.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Message: "no class"}}
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, want: []string{"no class"}},
		"clone failed":        {setup: func(w *world) { disk(cdiv1.Failed)(w); w.Now = w.Now.Add(20 * time.Second) }, phase: failed, reason: v1alpha1.ReasonRootDiskFailed, requeue: 40 * time.Second},
		"clone being deleted": {setup: func(w *world) { disk(cdiv1.CloneInProgress)(w); markDeleted(w.DataVolume) }, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, want: []string{"is being deleted"}},
		"disk being deleted":  {setup: func(w *world) { disk(cdiv1.Succeeded)(w); markDeleted(w.DataVolume) }, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, want: []string{"is being deleted"}},
		"clone without its source": {setup: func(w *world) {
			w.withPin(goldenImage(1), true)
			w.sourceExists, w.Image.Status.Serving = false, nil
		}, phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, want: []string{"is gone"}},
		"clone without its source, still served": {setup: func(w *world) { w.withPin(goldenImage(1), true).sourceExists = false }, phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, requeue: time.Second},

		"root disk of a former machine": {setup: func(w *world) { disk(cdiv1.Succeeded)(w); labelAsFormer(w.DataVolume) }, phase: provisioning, reason: v1alpha1.ReasonNameTaken, requeue: 30 * time.Second},
		"root disk of others":           {setup: func(w *world) { disk(cdiv1.Succeeded)(w); w.DataVolume.Labels = nil }, phase: failed, reason: v1alpha1.ReasonNameTaken, requeue: 30 * time.Second},
		"claim of a former machine": {setup: func(w *world) {
			disk("")(w)
			w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
			w.DataVolume = nil
			labelAsFormer(w.Claim)
		}, phase: provisioning, reason: v1alpha1.ReasonNameTaken, requeue: 30 * time.Second},
		"claim of a former disk": {setup: func(w *world) {
			disk("")(w)
			w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
			w.DataVolume = nil
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, want: []string{"former root disk"}},
		"KubeVirt VirtualMachine of a former machine": {setup: func(w *world) { kubeVirtStatus("Running", nil)(w); labelAsFormer(w.KubeVirtVM) }, phase: provisioning, reason: v1alpha1.ReasonNameTaken, requeue: 30 * time.Second},
		"KubeVirt VirtualMachine being deleted":       {setup: func(w *world) { kubeVirtStatus("Running", nil)(w); markDeleted(w.KubeVirtVM) }, phase: provisioning, reason: v1alpha1.ReasonStarting, want: []string{"is created again"}},

		"no printableStatus":            {setup: kubeVirtStatus("", nil), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"running":                       {setup: kubeVirtStatus("Running", map[string]any{"ready": true}), phase: ready, reason: v1alpha1.ReasonRunning, want: []string{"running"}},
		"running, not ready":            {setup: kubeVirtStatus("Running", nil), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"migrating":                     {setup: kubeVirtStatus("Migrating", map[string]any{"ready": true}), phase: ready, reason: v1alpha1.ReasonRunning},
		"paused":                        {setup: kubeVirtStatus("Paused", nil), phase: ready, reason: v1alpha1.ReasonRunning, want: []string{"paused"}},
		"about to be started":           {setup: kubeVirtStatus("Stopped", nil), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"stopped":                       {vm: apitest.VirtualMachine("ns", "vm").WithRunStrategy("Halted"), setup: kubeVirtStatus("Stopped", nil), phase: ready, reason: v1alpha1.ReasonStopped, want: []string{"Halted"}},
		"about to run once":             {vm: apitest.VirtualMachine("ns", "vm").WithRunStrategy("Once"), setup: kubeVirtStatus("Stopped", nil), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"has run once":                  {vm: apitest.VirtualMachine("ns", "vm").WithRunStrategy("Once"), setup: kubeVirtStatus("Stopped", map[string]any{"runStrategy": "Once"}), phase: ready, reason: v1alpha1.ReasonStopped},
		"about to run again":            {vm: apitest.VirtualMachine("ns", "vm").WithRunStrategy("RerunOnFailure"), setup: kubeVirtStatus("Stopped", map[string]any{"runStrategy": "Halted"}), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"crash loop":                    {setup: kubeVirtStatus("CrashLoopBackOff", failure), phase: failed, reason: v1alpha1.ReasonMachineError, want: []string{"CrashLoopBackOff", "no such thing"}},
		"unschedulable after the clone": {setup: kubeVirtStatus("ErrorUnschedulable", nil), phase: provisioning, reason: v1alpha1.ReasonStarting, requeue: 30 * time.Second},
		"unknown printableStatus":       {setup: kubeVirtStatus("Pondering", nil), phase: provisioning, reason: v1alpha1.ReasonStarting, want: []string{"KubeVirt reports Pondering"}},
		"network missing":               {setup: func(w *world) { kubeVirtStatus("Starting", nil)(w); w.MissingNetwork = "ns/net" }, phase: failed, reason: v1alpha1.ReasonNetworkMissing, want: []string{"ns/net"}, requeue: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.vm == nil {
				tt.vm = apitest.VirtualMachine("ns", "vm")
			}
			w := newWorld(t, tt.vm)
			if tt.setup != nil {
				tt.setup(w)
			}
			w.reconcile()
			w.requireState(tt.phase, tt.reason, tt.want...)
			assert.Equal(t, tt.requeue, w.lastDecision.RequeueAfter)
		})
	}
}

// The scheduler retries a Pod some time after its volume became ready.
func TestUnschedulableToleratedAfterClone(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
	w.withRootDisk(goldenImage(1), cdiv1.Succeeded).withKubeVirtVM("ErrorUnschedulable", nil)
	w.reconcile()
	w.Now = w.Now.Add(26 * time.Second)
	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting, "has just become ready", "ErrorUnschedulable")
	w.Now = w.Now.Add(4 * time.Second)
	w.reconcile()
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonMachineError, "ErrorUnschedulable")
	assert.Zero(t, w.lastDecision.RequeueAfter)

	w.VM.Status = v1alpha1.VirtualMachineStatus{Pinned: w.VM.Status.Pinned} // without conditions the disk counts as just ready
	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonStarting, "has just become ready", "ErrorUnschedulable")
}

func TestImageProgressShownOnlyWhileWaiting(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
	img := goldenImage(1)
	img.Status.Progress, img.Status.QueuePosition = "12.3%", ptr.To[int32](4)
	w.Image = img.DeepCopy()
	w.Image.Status.Serving = nil
	w.reconcile()
	assert.Equal(t, &v1alpha1.MachineImage{Phase: img.Status.Phase, Reason: img.Status.Reason, Progress: "12.3%", QueuePosition: ptr.To[int32](4)}, w.VM.Status.Image)

	w.withRootDisk(img, cdiv1.Succeeded).reconcile()
	assert.Equal(t, &v1alpha1.MachineImage{Phase: img.Status.Phase, Reason: img.Status.Reason}, w.VM.Status.Image, "a later import does not write every machine")
}

func TestFailedCloneIsRetried(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Failed)
	w.Now = w.Now.Add(59 * time.Second)
	assert.Empty(t, w.reconcile().DeleteDisks)
	w.Now = w.Now.Add(time.Second)
	require.NotEmpty(t, w.reconcile().DeleteDisks)
	require.NotEmpty(t, w.reconcile().CreateDisks)
}

func TestRootDiskRestoredFromBackupIsKept(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), "")
	w.VM.Status, w.Image = v1alpha1.VirtualMachineStatus{}, goldenImage(2)
	w.Image.Status.Revisions = []v1alpha1.RevisionStatus{olderRevision(1)}
	w.Pinned, w.Claim = nil, rootDiskClaim(w.DataVolume, corev1.ClaimBound)
	assert.Empty(t, w.reconcile().DeleteDisks, "CDI has not processed it yet")
	w.DataVolume.Status.Phase = cdiv1.Succeeded
	w.reconcile()
	require.NotNil(t, w.VM.Status.Pinned)
	assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt, "the source is recovered")
	assert.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
	assert.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady))
}

func TestBoundClaimWithoutDataVolumeIsRootDisk(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
	w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
	w.DataVolume, w.Claim.OwnerReferences = nil, []metav1.OwnerReference{{Kind: "VirtualMachine", Name: "vm", Controller: ptr.To(true)}}
	w.reconcile()
	assert.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady), "older CDI deletes finished DataVolumes")
}
