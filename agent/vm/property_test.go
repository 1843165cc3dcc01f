package vm_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The checks are in decideChecked.
func TestDecisionInvariantsHoldForAnyView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		d := w.decide()
		w.VM.Status = d.Status
		if refused := rapid.Bool().Draw(t, "refused"); refused && !d.StoreStatusFirst {
			w.refuseRepeatedly(t, d)
		}
	})
}

// Nothing changes but by the agent itself.
func TestReconcileConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		for range 5 {
			w.reconcile()
		}
		stored := w.VM.Status.DeepCopy()
		w.Now = w.Now.Add(10 * time.Second)
		d := w.reconcile()
		require.Nil(t, d.ApplyKubeVirtVM, "it is applied again")
		require.Empty(t, d.RunStrategy)
		data := w.Disks["data"].DataVolume
		if (w.DataVolume == nil || w.DataVolume.Status.Phase != cdiv1.Failed) && (data == nil || data.Status.Phase != cdiv1.Failed) {
			require.Equal(t, *stored, w.VM.Status)
		}
	})
}

// refuseRepeatedly lets the API server refuse what is decided, twice.
func (w *world) refuseRepeatedly(t *rapid.T, d vm.Decision) {
	err := errors.New("no" + apitest.HostileText().Draw(t, "error"))
	d.SetRefused(w.VM.Generation, w.Now, v1alpha1.ReasonMachineRefused, "it", err)
	w.VM.Status = d.Status
	w.checkStatus(w.View, d)
	w.Now = w.Now.Add(3 * time.Second)
	again := w.decide()
	again.SetRefused(w.VM.Generation, w.Now, v1alpha1.ReasonMachineRefused, "it", err)
	require.Equal(t, d.Status, again.Status, "a repeated refusal does not change the status")
	require.LessOrEqual(t, again.RequeueAfter, 30*time.Second)
	require.NotZero(t, again.RequeueAfter)
}

// A pending prune does not affect the machines: the image still serves, and a reference ends the prune.
func TestPrunePendingImageStillServes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		if w.Image == nil || w.Image.Status.Serving == nil {
			return
		}
		decideWithPhase := func(phase v1alpha1.Phase) vm.Decision {
			v := w.View
			v.Image = w.Image.DeepCopy()
			v.Image.Status.Phase, v.Image.Status.TearDown = phase, false
			v.Live = w.Live
			d := vm.Decide(v)
			if d.NeedsLive || d.NeedsLiveImages {
				v.Live, v.SourceExists = true, w.sourceExists
				d = vm.Decide(v)
			}
			if img := d.Status.Image; img != nil {
				require.Equal(t, phase, img.Phase)
				img.Phase = ""
			}
			return d
		}
		require.Equal(t, decideWithPhase(v1alpha1.PhaseSucceeded), decideWithPhase(v1alpha1.PhasePrunePending))
	})
}

func drawWorld(t *rapid.T) *world {
	flip := func(what string) bool { return rapid.Bool().Draw(t, what) }
	b := apitest.VirtualMachine("ns", "vm").WithGeneration(rapid.Int64Range(1, 3).Draw(t, "generation")).
		WithResources("1", "1Gi", rapid.SampledFrom([]string{"", "1Mi", "1Gi", "4Gi"}).Draw(t, "diskSize")).
		WithRunStrategy(rapid.SampledFrom([]v1alpha1.RunStrategy{"", "Always", "Halted", "Manual", "Once", "RerunOnFailure"}).Draw(t, "runStrategy"))
	if flip("ignoreOnDeploy") {
		b.IgnoredOnDeploy()
	}
	if flip("template") {
		b.WithTemplate(apitest.Image("ns/golden").WithDiskSize(rapid.SampledFrom([]string{"1Gi", "2Gi"}).Draw(t, "template's size")).Obj().Spec)
	}
	if flip("two users of one Linux name") {
		b.WithUsers(v1alpha1.User{Name: "a b", PlainTextPasswd: "x"}, v1alpha1.User{Name: "a-b"})
	}
	b.WithImageMode(rapid.SampledFrom([]v1alpha1.ImageMode{"", v1alpha1.ImageModeFail}).Draw(t, "imageMode"))
	if flip("invalid overlay") {
		b.WithOverlay(`{"running":true}`)
	}
	w := newWorld(t, b)
	w.CDIServed, w.KubeVirtServed = !rapid.Bool().Draw(t, "no CDI"), !rapid.Bool().Draw(t, "no KubeVirt")
	w.sourceExists = flip("source exists")
	w.MissingSecret = rapid.SampledFrom([]string{"", "", "Secret ns/s does not exist"}).Draw(t, "missing")
	w.MissingNetwork = rapid.SampledFrom([]string{"", "", "ns/net"}).Draw(t, "network missing")
	w.drawImage(t)
	w.drawStatus(t)
	w.drawRootDisk(t)
	w.drawDataDisk(t)
	w.drawKubeVirtVM(t)
	return w
}

// drawDataDisk adds a data disk in any state: in the spec or removed, cloned or blank.
func (w *world) drawDataDisk(t *rapid.T) {
	flip := func(what string) bool { return rapid.Bool().Draw(t, "data disk "+what) }
	if flip("absent") {
		return
	}
	spec := v1alpha1.Disk{Name: "data", Size: ptr.To(resource.MustParse(rapid.SampledFrom([]string{"1Mi", "1Gi", "4Gi"}).Draw(t, "data disk's size")))}
	var view vm.DiskView
	if flip("of an image") {
		spec.Image = &v1alpha1.ImageReference{Name: "golden"}
		view.Image = w.Image
	}
	state := v1alpha1.DataDisk{Name: "data"}
	if flip("pinned") {
		state.Pinned = ptr.To(drawPin(t, "data disk"))
	}
	if flip("requested") {
		state.Volume = &v1alpha1.DiskVolume{DataVolume: kubevirt.DataDiskName(w.VM, "data"), Ready: flip("was ready")}
	}
	if w.CDIServed && flip("exists") {
		from := state.Pinned
		if flip("is of another source") {
			from = ptr.To(drawPin(t, "data disk cloned from"))
		}
		view.DataVolume = kubevirt.BuildDataDisk(w.VM, &spec, goldenImage(1), from, resource.MustParse("1Gi"))
		view.DataVolume.UID, view.DataVolume.ResourceVersion = "uid-of-data", "8"
		view.DataVolume.CreationTimestamp = metav1.NewTime(w.Now.Add(-time.Duration(rapid.SampledFrom([]int{0, 5, 40, 90}).Draw(t, "data disk's age")) * time.Second))
		view.DataVolume.Status.Phase = rapid.SampledFrom([]cdiv1.DataVolumePhase{
			"", cdiv1.Pending, cdiv1.CloneInProgress, cdiv1.WaitForFirstConsumer, cdiv1.Failed, cdiv1.Succeeded,
		}).Draw(t, "data disk's phase")
		drawOwner(t, "data disk", view.DataVolume)
		if flip("has a claim") {
			view.Claim = rootDiskClaim(view.DataVolume, rapid.SampledFrom([]corev1.PersistentVolumeClaimPhase{corev1.ClaimPending, corev1.ClaimBound, corev1.ClaimLost}).Draw(t, "data disk's claim"))
			drawOwner(t, "data disk's claim", view.Claim)
		}
	}
	if flip("in the spec") {
		w.VM.Spec.Disks = []v1alpha1.Disk{spec}
	}
	if flip("in the status") {
		w.VM.Status.Disks = []v1alpha1.DataDisk{state}
	}
	w.changeDisk("data", func(v *vm.DiskView) { *v = view })
	w.refreshPinned()
}

func (w *world) drawImage(t *rapid.T) {
	if rapid.Bool().Draw(t, "no image") {
		return
	}
	w.Image = goldenImage(rapid.Int32Range(1, 3).Draw(t, "serving"))
	st := &w.Image.Status
	st.Phase = rapid.SampledFrom([]v1alpha1.Phase{
		"", v1alpha1.PhaseQueued, v1alpha1.PhaseSyncing, v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed, v1alpha1.PhasePrunePending, v1alpha1.PhaseTerminating, v1alpha1.PhaseDeleting,
	}).Draw(t, "image's phase")
	st.Message = apitest.HostileText().Draw(t, "image's message")
	st.Progress = rapid.OneOf(rapid.Just("12.3%"), apitest.HostileText()).Draw(t, "progress")
	st.TearDown = st.Phase == v1alpha1.PhaseDeleting && rapid.Bool().Draw(t, "torn down")
	if rapid.Bool().Draw(t, "serves nothing") {
		st.Serving = nil
	}
}

func (w *world) drawStatus(t *rapid.T) {
	st := &w.VM.Status
	st.Phase = rapid.SampledFrom([]v1alpha1.MachinePhase{"", v1alpha1.MachineProvisioning, v1alpha1.MachineReady, v1alpha1.MachineFailed}).Draw(t, "phase")
	if rapid.Bool().Draw(t, "nothing pinned") {
		return
	}
	p := drawPin(t, "pinned")
	st.Pinned = &p
	if w.refreshPinned(); w.Pinned == nil && rapid.Bool().Draw(t, "pinned another") {
		w.Pinned = apitest.Image("ns/another").WithUID(p.UID).WithStatus(goldenImage(1).Status).Obj()
	}
}

func drawPin(t *rapid.T, what string) v1alpha1.PinnedImage {
	p := pinServedBy(goldenImage(rapid.Int32Range(1, 3).Draw(t, what+" attempt")), rapid.Bool().Draw(t, what+" acquired"))
	if rapid.Bool().Draw(t, what+" of another image") {
		p.UID, p.Name = "uid-of-another", "another"
	}
	return p
}

func (w *world) drawRootDisk(t *rapid.T) {
	if w.CDIServed && rapid.Bool().Draw(t, "root disk") {
		from := drawPin(t, "cloned from")
		if p := w.VM.Status.Pinned; p != nil && rapid.Bool().Draw(t, "cloned from what is pinned") {
			from = *p
		}
		w.DataVolume = clonedRootDisk(w.VM, goldenImage(1), from, rapid.SampledFrom([]cdiv1.DataVolumePhase{
			"", cdiv1.Pending, cdiv1.CloneInProgress, cdiv1.WaitForFirstConsumer, cdiv1.Failed, cdiv1.Succeeded,
		}).Draw(t, "root disk's phase"))
		w.DataVolume.Status.Conditions = []cdiv1.DataVolumeCondition{{
			Type: cdiv1.DataVolumeRunning, Status: corev1.ConditionFalse, Reason: "Error", Message: apitest.HostileText().Draw(t, "CDI's message"),
		}}
		w.DataVolume.CreationTimestamp = metav1.NewTime(w.Now.Add(-time.Duration(rapid.IntRange(0, 90).Draw(t, "age")) * time.Second))
		drawOwner(t, "root disk", w.DataVolume)
		if rapid.Bool().Draw(t, "root disk was ready") {
			w.VM.Status.RootDisk = &v1alpha1.DiskVolume{DataVolume: w.DataVolume.Name, Ready: true}
		}
	}
	if rapid.Bool().Draw(t, "claim") {
		w.Claim = rootDiskClaim(clonedRootDisk(w.VM, goldenImage(1), drawPin(t, "claim of"), ""), rapid.SampledFrom([]corev1.PersistentVolumeClaimPhase{corev1.ClaimPending, corev1.ClaimBound, corev1.ClaimLost}).Draw(t, "claim's phase"))
		if rapid.Bool().Draw(t, "claim by itself") {
			w.Claim.OwnerReferences = nil
		}
		drawOwner(t, "claim", w.Claim)
	}
}

func (w *world) drawKubeVirtVM(t *rapid.T) {
	if !w.KubeVirtServed || !rapid.Bool().Draw(t, "machine") {
		return
	}
	obj := w.VM.DeepCopy()
	obj.Spec.Users, obj.Spec.Overlay = nil, nil
	if rapid.Bool().Draw(t, "machine of another spec") {
		obj.Spec.Version = "1"
	}
	cfg, err := cloudinit.Render(obj, w.Inputs)
	require.NoError(t, err)
	built, err := kubevirt.BuildVirtualMachine(obj, cfg)
	require.NoError(t, err)
	w.KubeVirtVM = asStoredByKubeVirt(built)
	drawOwner(t, "machine", w.KubeVirtVM)
	run := rapid.SampledFrom([]string{"", "Always", "Halted", "Manual", "Once", "RerunOnFailure"}).Draw(t, "machine's runStrategy")
	if run != "" {
		require.NoError(t, unstructured.SetNestedField(w.KubeVirtVM.Object, run, "spec", "runStrategy"))
	}
	w.setKubeVirtStatus(rapid.OneOf(rapid.SampledFrom([]string{
		"", "Running", "Migrating", "Paused", "Stopped", "Stopping", "Starting", "Provisioning", "Terminating", "WaitingForVolumeBinding",
		"CrashLoopBackOff", "ErrorUnschedulable", "DataVolumeError", "Unknown", "of a later KubeVirt",
	}), apitest.HostileText()).Draw(t, "printableStatus"), map[string]any{
		"created": rapid.Bool().Draw(t, "created"), "ready": rapid.Bool().Draw(t, "ready"),
		"runStrategy": rapid.SampledFrom([]string{"", run}).Draw(t, "has run"),
		"conditions": []any{map[string]any{
			"type": rapid.SampledFrom([]string{"Ready", "Failure"}).Draw(t, "condition"), "status": rapid.SampledFrom([]string{"True", "False"}).Draw(t, "holds"),
			"message": apitest.HostileText().Draw(t, "KubeVirt's message"),
		}},
	})
}

// drawOwner makes an object one of this machine, of a former one or of nobody, and sometimes being
// deleted.
func drawOwner(t *rapid.T, what string, o metav1.Object) {
	switch rapid.SampledFrom([]string{"this one", "this one", "this one", "former", "nobody"}).Draw(t, what+" of") {
	case "former":
		labelAsFormer(o)
	case "nobody":
		o.SetLabels(nil)
	}
	if rapid.IntRange(0, 4).Draw(t, what+" deleted") == 0 {
		o.SetDeletionTimestamp(ptr.To(metav1.NewTime(apitest.Epoch)))
	}
}
