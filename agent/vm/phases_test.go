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

// TestPhaseAndReasonByState goes through all that a machine can wait for.
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
	kubevirt := func(status string, more map[string]any) func(*world) {
		return func(w *world) { w.withRootDisk(goldenImage(1), cdiv1.Succeeded).withKubeVirtVM(status, more) }
	}
	failure := map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "False", "message": "VMI does not exist"},
		map[string]any{"type": "Failure", "status": "True", "message": "no such thing"},
	}}
	for name, tt := range map[string]struct {
		vm     *apitest.MachineBuilder
		given  func(*world)
		phase  v1alpha1.MachinePhase
		reason v1alpha1.Reason
		says   []string
		after  time.Duration
	}{
		"no image":                     {phase: failed, reason: v1alpha1.ReasonImageMissing, says: []string{"ns/golden", "vmDiskImageTemplate"}},
		"no image, and not to be made": {vm: apitest.VirtualMachine("ns", "vm").WithTemplate(template).WithImageMode(v1alpha1.ImageModeFail), phase: failed, reason: v1alpha1.ReasonImageMissing},
		"image to be made":             {vm: apitest.VirtualMachine("ns", "vm").WithTemplate(template), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage},
		"image without status":         {given: image("", "", ""), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, says: []string{"just been created"}},
		"image queued":                 {given: image(v1alpha1.PhaseQueued, v1alpha1.ReasonPaused, "paused"), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, says: []string{"Queued", "paused"}},
		"image syncing":                {given: image(v1alpha1.PhaseSyncing, "Importing", ""), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, says: []string{"12.3%"}},
		"image failed":                 {given: image(v1alpha1.PhaseFailed, "NotFound", "404"), phase: failed, reason: v1alpha1.ReasonImageFailed, says: []string{"NotFound", "404"}},
		"image deleting":               {given: image(v1alpha1.PhaseDeleting, "Deleting", ""), phase: provisioning, reason: v1alpha1.ReasonImageDeleting},
		"image deleting, of template":  {vm: apitest.VirtualMachine("ns", "vm").WithTemplate(template), given: image(v1alpha1.PhaseDeleting, "Deleting", ""), phase: provisioning, reason: v1alpha1.ReasonImageDeleting, says: []string{"from spec.vmDiskImageTemplate"}},
		"image torn down": {given: func(w *world) {
			w.Image = goldenImage(1)
			w.Image.Status.TearDown = true
		}, phase: provisioning, reason: v1alpha1.ReasonImageDeleting},
		"image failed and serves": {given: func(w *world) {
			w.Image = goldenImage(1)
			w.Image.Status.Phase = v1alpha1.PhaseFailed
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk},
		"image terminating and serves": {given: func(w *world) {
			w.Image = goldenImage(1)
			w.Image.Status.Phase = v1alpha1.PhaseTerminating
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk},
		"image to be pruned": {given: func(w *world) {
			w.Image = goldenImage(1)
			w.Image.Status.Phase, w.Image.Status.Reason = v1alpha1.PhasePrunePending, v1alpha1.ReasonUndoWindowOpen
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk},
		"image to be pruned, serves nothing": {given: image(v1alpha1.PhasePrunePending, v1alpha1.ReasonUndoWindowOpen, "it has failed: 404"), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, says: []string{"404"}},
		"what is served is gone":             {given: func(w *world) { w.Image, w.sourceExists = goldenImage(1), false }, phase: provisioning, reason: v1alpha1.ReasonAcquiringImage, says: []string{"is gone"}, after: time.Second},

		"ignored":                   {vm: apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy(), given: func(w *world) { w.Image = goldenImage(1) }, phase: ready, reason: v1alpha1.ReasonIgnoredOnDeploy},
		"ignored, no image":         {vm: apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy(), phase: failed, reason: v1alpha1.ReasonImageMissing},
		"ignored, image on its way": {vm: apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy(), given: image(v1alpha1.PhaseSyncing, "Importing", ""), phase: provisioning, reason: v1alpha1.ReasonWaitingForImage},
		"ignored, no KubeVirt":      {vm: apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy(), given: func(w *world) { w.Image, w.CDIServed, w.KubeVirtServed = goldenImage(1), false, false }, phase: ready, reason: v1alpha1.ReasonIgnoredOnDeploy},

		"no Secret":                        {given: func(w *world) { w.Image, w.MissingSecret = goldenImage(1), "Secret ns/s does not exist" }, phase: failed, reason: v1alpha1.ReasonSecretMissing, says: []string{"ns/s"}, after: 30 * time.Second},
		"no Secret, while the image comes": {given: func(w *world) { image(v1alpha1.PhaseSyncing, "", "")(w); w.MissingSecret = "Secret ns/s" }, phase: failed, reason: v1alpha1.ReasonSecretMissing, after: 30 * time.Second},
		"no Secret, and it runs": {given: func(w *world) {
			w.withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
			w.MissingSecret = "Secret ns/s"
		}, phase: ready, reason: v1alpha1.ReasonRunning, after: 30 * time.Second},
		"a spec that does not do": {vm: apitest.VirtualMachine("ns", "vm").WithOverlay(`{"running":true}`), given: image(v1alpha1.PhaseSyncing, "", ""), phase: failed, reason: v1alpha1.ReasonSpecInvalid, says: []string{"spec.runStrategy"}},
		"no CDI":                  {given: func(w *world) { w.withPin(goldenImage(1), true).CDIServed = false }, phase: failed, reason: v1alpha1.ReasonCDIMissing},
		"no KubeVirt":             {given: func(w *world) { w.withRootDisk(goldenImage(1), cdiv1.Succeeded).KubeVirtServed = false }, phase: failed, reason: v1alpha1.ReasonKubeVirtMissing},

		"clone": {given: func(w *world) {
			w.withRootDisk(goldenImage(1), cdiv1.CloneInProgress)
			w.RootDisk.Status.Progress = "7.5%"
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, says: []string{"7.5%"}},
		"clone that is stuck": {given: func(w *world) {
			w.withRootDisk(goldenImage(1), cdiv1.Pending)
			w.RootDisk.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeBound, Status: corev1.ConditionFalse, Message: "no class"}}
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, says: []string{"no class"}},
		"clone that failed":     {given: func(w *world) { disk(cdiv1.Failed)(w); w.Now = w.Now.Add(20 * time.Second) }, phase: failed, reason: v1alpha1.ReasonRootDiskFailed, after: 40 * time.Second},
		"clone that is deleted": {given: func(w *world) { disk(cdiv1.CloneInProgress)(w); markDeleted(w.RootDisk) }, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, says: []string{"is being deleted"}},
		"disk that is deleted":  {given: func(w *world) { disk(cdiv1.Succeeded)(w); markDeleted(w.RootDisk) }, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, says: []string{"is being deleted"}},
		"clone of a source that is gone": {given: func(w *world) {
			w.withPin(goldenImage(1), true)
			w.sourceExists, w.Image.Status.Serving = false, nil
		}, phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, says: []string{"is gone"}},
		"clone of a source that is gone and still served": {given: func(w *world) { w.withPin(goldenImage(1), true).sourceExists = false }, phase: provisioning, reason: v1alpha1.ReasonWaitingForImage, after: time.Second},

		"root disk of a former": {given: func(w *world) { disk(cdiv1.Succeeded)(w); labelAsFormer(w.RootDisk) }, phase: provisioning, reason: v1alpha1.ReasonNameTaken, after: 30 * time.Second},
		"root disk of others":   {given: func(w *world) { disk(cdiv1.Succeeded)(w); w.RootDisk.Labels = nil }, phase: failed, reason: v1alpha1.ReasonNameTaken, after: 30 * time.Second},
		"claim of a former": {given: func(w *world) {
			disk("")(w)
			w.RootClaim = rootDiskClaim(w.RootDisk, corev1.ClaimBound)
			w.RootDisk = nil
			labelAsFormer(w.RootClaim)
		}, phase: provisioning, reason: v1alpha1.ReasonNameTaken, after: 30 * time.Second},
		"claim of a former disk": {given: func(w *world) {
			disk("")(w)
			w.RootClaim = rootDiskClaim(w.RootDisk, corev1.ClaimBound)
			w.RootDisk = nil
		}, phase: provisioning, reason: v1alpha1.ReasonCloningRootDisk, says: []string{"former root disk"}},
		"Secret of a former":  {given: func(w *world) { kubevirt("Running", nil)(w); labelAsFormer(w.CloudInitSecret) }, phase: provisioning, reason: v1alpha1.ReasonNameTaken, after: 30 * time.Second},
		"Secret of others":    {given: func(w *world) { kubevirt("Running", nil)(w); w.CloudInitSecret.Labels = nil }, phase: failed, reason: v1alpha1.ReasonNameTaken, after: 30 * time.Second},
		"machine of a former": {given: func(w *world) { kubevirt("Running", nil)(w); labelAsFormer(w.KubeVirtVM) }, phase: provisioning, reason: v1alpha1.ReasonNameTaken, after: 30 * time.Second},
		"machine deleted":     {given: func(w *world) { kubevirt("Running", nil)(w); markDeleted(w.KubeVirtVM) }, phase: provisioning, reason: v1alpha1.ReasonStarting, says: []string{"is made again"}},

		"machine not looked at": {given: kubevirt("", nil), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"running":               {given: kubevirt("Running", map[string]any{"ready": true}), phase: ready, reason: v1alpha1.ReasonRunning, says: []string{"running"}},
		"running, not ready":    {given: kubevirt("Running", nil), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"migrating":             {given: kubevirt("Migrating", map[string]any{"ready": true}), phase: ready, reason: v1alpha1.ReasonRunning},
		"paused":                {given: kubevirt("Paused", nil), phase: ready, reason: v1alpha1.ReasonRunning, says: []string{"paused"}},
		"about to be started":   {given: kubevirt("Stopped", nil), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"stopped":               {vm: apitest.VirtualMachine("ns", "vm").WithRunStrategy("Halted"), given: kubevirt("Stopped", nil), phase: ready, reason: v1alpha1.ReasonStopped, says: []string{"Halted"}},
		"about to run once":     {vm: apitest.VirtualMachine("ns", "vm").WithRunStrategy("Once"), given: kubevirt("Stopped", nil), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"has run once":          {vm: apitest.VirtualMachine("ns", "vm").WithRunStrategy("Once"), given: kubevirt("Stopped", map[string]any{"runStrategy": "Once"}), phase: ready, reason: v1alpha1.ReasonStopped},
		"about to run again":    {vm: apitest.VirtualMachine("ns", "vm").WithRunStrategy("RerunOnFailure"), given: kubevirt("Stopped", map[string]any{"runStrategy": "Halted"}), phase: provisioning, reason: v1alpha1.ReasonStarting},
		"crashes":               {given: kubevirt("CrashLoopBackOff", failure), phase: failed, reason: v1alpha1.ReasonMachineError, says: []string{"CrashLoopBackOff", "no such thing"}},
		"not placed yet":        {given: kubevirt("ErrorUnschedulable", nil), phase: provisioning, reason: v1alpha1.ReasonStarting, after: 30 * time.Second},
		"of a later KubeVirt":   {given: kubevirt("Pondering", failure), phase: provisioning, reason: v1alpha1.ReasonStarting, says: []string{"Pondering", "no such thing"}},
		"a network is missing":  {given: func(w *world) { kubevirt("Starting", nil)(w); w.MissingNetwork = "ns/net" }, phase: failed, reason: v1alpha1.ReasonNetworkMissing, says: []string{"ns/net"}, after: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.vm == nil {
				tt.vm = apitest.VirtualMachine("ns", "vm")
			}
			w := newWorld(t, tt.vm)
			if tt.given != nil {
				tt.given(w)
			}
			w.reconcile()
			w.requireState(tt.phase, tt.reason, tt.says...)
			assert.Equal(t, tt.after, w.lastDecision.RequeueAfter)
		})
	}
}

// A Pod that waits for the root disk is unschedulable for a while longer than the
// disk is not there.
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

	w.VM.Status = v1alpha1.VirtualMachineStatus{Pinned: w.VM.Status.Pinned} // whoever knows nothing of it has just seen it
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
	assert.Equal(t, &v1alpha1.MachineImage{Phase: img.Status.Phase, Reason: img.Status.Reason}, w.VM.Status.Image, "a later import is no reason to write each machine")
}

func TestFailedCloneIsRetried(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Failed)
	w.Now = w.Now.Add(59 * time.Second)
	assert.Nil(t, w.reconcile().DeleteRootDisk)
	w.Now = w.Now.Add(time.Second)
	require.NotNil(t, w.reconcile().DeleteRootDisk)
	require.NotNil(t, w.reconcile().CreateRootDisk)
}

func TestRootDiskRestoredFromBackupIsKept(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), "")
	w.VM.Status, w.Image = v1alpha1.VirtualMachineStatus{}, goldenImage(2)
	w.Image.Status.Revisions = []v1alpha1.RevisionStatus{olderRevision(1)}
	w.Pinned, w.RootClaim = nil, rootDiskClaim(w.RootDisk, corev1.ClaimBound)
	assert.Nil(t, w.reconcile().DeleteRootDisk, "CDI has not looked at it yet")
	w.RootDisk.Status.Phase = cdiv1.Succeeded
	w.reconcile()
	require.NotNil(t, w.VM.Status.Pinned)
	assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt, "what it was cloned from is found again")
	assert.NotNil(t, w.VM.Status.Pinned.AcquiredAt)
	assert.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady))
}

func TestBoundClaimWithoutDataVolumeIsRootDisk(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
	w.RootClaim = rootDiskClaim(w.RootDisk, corev1.ClaimBound)
	w.RootDisk, w.RootClaim.OwnerReferences = nil, []metav1.OwnerReference{{Kind: "VirtualMachine", Name: "vm", Controller: ptr.To(true)}}
	w.reconcile()
	assert.True(t, w.hasCondition(v1alpha1.ConditionRootDiskReady), "older CDI collects DataVolumes that are complete")
}
