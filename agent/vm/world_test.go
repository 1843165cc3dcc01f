package vm_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// world is a cluster with one machine, in the form of a View.
type world struct {
	t require.TestingT
	vm.View
	// sourceExists: the pinned source can be cloned.
	sourceExists bool
	lastDecision vm.Decision
	// withoutCDI: nothing takes up DataVolumes that are created.
	withoutCDI bool
	// firstSeen is when DataVolumes were found first, where CDI is absent.
	firstSeen map[types.UID]time.Time
	// created counts DataVolumes.
	created int
	// unlabelled has claims that the cache does not have, by the disk's name.
	unlabelled map[string]*corev1.PersistentVolumeClaim
	// cloudInitSecret is the stored one, which no View has.
	cloudInitSecret *corev1.Secret
}

func newWorld(t require.TestingT, b *apitest.MachineBuilder) *world {
	return &world{t: t, sourceExists: true, View: vm.View{Now: apitest.Epoch.Add(time.Hour), VM: b.Obj(), CDIServed: true, KubeVirtServed: true}}
}

// goldenImage returns the image that machines of apitest name. It serves the attempt.
func goldenImage(attempt int32) *v1alpha1.VMDiskImage {
	return apitest.Image("ns/golden").WithStatus(v1alpha1.VMDiskImageStatus{
		Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonReady, Serving: servingStatus("golden", attempt),
	}).Obj()
}

func servingStatus(name string, attempt int32) *v1alpha1.Serving {
	return &v1alpha1.Serving{
		Revision: fmt.Sprintf("rev-%d", attempt), Attempt: attempt, PersistentVolumeClaim: fmt.Sprintf("%s-%d", name, attempt),
		DiskSize: ptr.To(resource.MustParse("1Gi")),
	}
}

// pinServedBy returns a pin of what an image serves.
func pinServedBy(img *v1alpha1.VMDiskImage, acquired bool) v1alpha1.PinnedImage {
	s := img.Status.Serving
	p := v1alpha1.PinnedImage{
		ImageKey: v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID},
		Revision: s.Revision, Attempt: s.Attempt, SourceNamespace: s.Namespace, PersistentVolumeClaim: s.PersistentVolumeClaim, VolumeSnapshot: s.VolumeSnapshot,
		Architecture: s.Architecture, DiskSize: s.DiskSize, RestoreSize: s.RestoreSize,
	}
	if acquired {
		p.AcquiredAt = ptr.To(metav1.NewTime(apitest.Epoch))
	}
	return p
}

// clonedRootDisk returns the root disk of a machine, cloned from p.
func clonedRootDisk(obj *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage, p v1alpha1.PinnedImage, phase cdiv1.DataVolumePhase) *cdiv1.DataVolume {
	size, _ := kubevirt.RootDiskSize(obj, img)
	dv := kubevirt.BuildRootDisk(obj, img, p, size)
	dv.UID, dv.ResourceVersion = "uid-of-disk", "7"
	dv.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add(time.Hour))
	dv.Status.Phase = phase
	return dv
}

func rootDiskClaim(dv *cdiv1.DataVolume, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	claim := apitest.PersistentVolumeClaim(dv.Namespace+"/"+dv.Name).OwnedBy("DataVolume", dv.Name).Bound("1Gi").Phase(phase).Obj()
	claim.Labels, claim.OwnerReferences[0].UID = dv.Labels, dv.UID
	return claim
}

// withPin adds an image and pins it.
func (w *world) withPin(img *v1alpha1.VMDiskImage, acquired bool) *world {
	w.Image, w.Pinned = img, img
	w.VM.Status.Pinned = ptr.To(pinServedBy(img, acquired))
	return w
}

// withRootDisk adds an image that is pinned and acquired, and a root disk cloned from it.
func (w *world) withRootDisk(img *v1alpha1.VMDiskImage, phase cdiv1.DataVolumePhase) *world {
	w.withPin(img, true)
	w.DataVolume = clonedRootDisk(w.VM, img, *w.VM.Status.Pinned, phase)
	return w
}

// withKubeVirtVM reconciles until there is a KubeVirt VirtualMachine, and sets its status.
func (w *world) withKubeVirtVM(printable string, status map[string]any) *world {
	w.reconcile()
	require.NotNil(w.t, w.KubeVirtVM, "it is not created: %s", w.VM.Status.Message)
	return w.setKubeVirtStatus(printable, status)
}

func (w *world) setKubeVirtStatus(printable string, status map[string]any) *world {
	full := map[string]any{"printableStatus": printable}
	for k, v := range status {
		full[k] = v
	}
	w.KubeVirtVM.Object["status"] = full
	return w
}

func (w *world) withRunningVM() *world {
	return w.withKubeVirtVM("Running", map[string]any{"created": true, "ready": true, "runStrategy": "Always"})
}

// decide decides on the current world, with a live View where one is needed.
func (w *world) decide() vm.Decision {
	if w.withoutCDI {
		w.recordSeenFor()
	}
	v := w.View
	v.VM = w.VM.DeepCopy()
	d := w.decideChecked(v)
	for d.NeedsLive || d.NeedsLiveImages {
		v.Live, v.LiveImages = d.NeedsLive, true
		v.SourceExists = v.VM.Status.Pinned != nil && w.sourceExists
		readClaimLive(&v.DiskView, v.Live, w.unlabelled[""])
		v.Disks = maps.Clone(v.Disks)
		for name, disk := range v.Disks {
			disk.SourceExists = disk.Pinned != nil && w.sourceExists
			readClaimLive(&disk, v.Live, w.unlabelled[name])
			v.Disks[name] = disk
		}
		d = w.decideChecked(v)
	}
	w.lastDecision = d
	return d
}

// readClaimLive reads a claim as the controller does: unlabelled is one that the cache does not have.
func readClaimLive(disk *vm.DiskView, live bool, unlabelled *corev1.PersistentVolumeClaim) {
	if live && disk.DataVolume != nil && (disk.Claim == nil || disk.Claim.Status.Phase == corev1.ClaimPending) {
		disk.LiveClaim = cmp.Or(disk.Claim, unlabelled)
	}
}

// reconcile decides and applies the decisions until no status is to be stored first.
func (w *world) reconcile() vm.Decision {
	for range 4 {
		d := w.decide()
		w.applyDecision(d)
		w.VM.Status = d.Status
		w.refreshPinned()
		if !d.StoreStatusFirst {
			return d
		}
	}
	require.Fail(w.t, "each decision stores another status first")
	return w.lastDecision
}

// refreshPinned reads the pinned image, as the controller does.
func (w *world) refreshPinned() {
	w.Pinned = nil
	if p := w.VM.Status.Pinned; p != nil && w.Image != nil && w.Image.UID == p.UID {
		w.Pinned = w.Image
	}
	for i := range w.VM.Status.Disks {
		disk := &w.VM.Status.Disks[i]
		w.changeDisk(disk.Name, func(v *vm.DiskView) {
			v.Pinned = nil
			if disk.Pinned != nil && v.Image != nil && v.Image.UID == disk.Pinned.UID {
				v.Pinned = v.Image
			}
		})
	}
}

func (w *world) applyDecision(d vm.Decision) {
	if d.CreateImage != nil {
		w.Image = d.CreateImage.DeepCopy()
		w.Image.UID = "uid-of-created"
	}
	for _, target := range d.Adopt {
		for _, o := range w.children() {
			if o.kind == target.Kind.Kind && o.GetName() == target.Name {
				require.Equal(w.t, []any{target.Name, target.UID, target.ResourceVersion}, []any{o.GetName(), o.GetUID(), o.GetResourceVersion()})
				o.SetOwnerReferences(target.Owners)
			}
		}
	}
	if target := d.RecordMigrations; target != nil {
		require.Equal(w.t, vm.MigrationTarget{UID: w.KubeVirtVM.GetUID(), ResourceVersion: w.KubeVirtVM.GetResourceVersion(), Volumes: target.Volumes}, *target)
		annotations := w.KubeVirtVM.GetAnnotations()
		annotations[v1alpha1.AnnotationMigratedVolumes] = target.Volumes
		w.KubeVirtVM.SetAnnotations(annotations)
	}
	for _, target := range d.DeleteDisks {
		if w.DataVolume != nil && w.DataVolume.Name == target.Name {
			w.DataVolume, w.Claim = nil, nil
		}
		for name, disk := range w.Disks {
			if disk.DataVolume != nil && disk.DataVolume.Name == target.Name {
				w.changeDisk(name, func(v *vm.DiskView) { v.DataVolume, v.Claim = nil, nil })
			}
		}
	}
	for _, disk := range d.CreateDisks {
		dv := disk.DeepCopy()
		dv.UID, dv.ResourceVersion = types.UID("uid-of-disk"+disk.Disk), "7"
		dv.CreationTimestamp = metav1.NewTime(w.Now)
		if w.created++; w.withoutCDI {
			dv.UID = types.UID(fmt.Sprintf("uid-of-disk%s-%d", disk.Disk, w.created))
		} else {
			takeUp(dv)
		}
		if disk.Disk == "" {
			w.DataVolume = dv
		} else {
			w.changeDisk(disk.Disk, func(v *vm.DiskView) { v.DataVolume = dv })
		}
	}
	if d.ApplySecret != nil {
		w.cloudInitSecret = d.ApplySecret
	}
	if d.ApplyKubeVirtVM != nil {
		status := map[string]any{}
		if w.KubeVirtVM != nil {
			status, _, _ = unstructured.NestedMap(w.KubeVirtVM.Object, "status")
		}
		w.KubeVirtVM = asStoredByKubeVirt(d.ApplyKubeVirtVM)
		w.KubeVirtVM.Object["status"] = status
	}
	if d.RunStrategy != "" {
		require.NoError(w.t, unstructured.SetNestedField(w.KubeVirtVM.Object, string(d.RunStrategy), "spec", "runStrategy"))
	}
}

// asStoredByKubeVirt returns what the API server and KubeVirt's webhook and controller make of an
// applied object (KubeVirt 1.8).
func asStoredByKubeVirt(applied *unstructured.Unstructured) *unstructured.Unstructured {
	u := applied.DeepCopy()
	u.SetUID("uid-of-machine")
	u.SetResourceVersion("11")
	u.SetCreationTimestamp(metav1.NewTime(apitest.Epoch))
	u.SetFinalizers([]string{"kubevirt.io/virtualMachineControllerFinalize"})
	for value, path := range map[string][]string{
		"q35":                    {"spec", "template", "spec", "domain", "machine", "type"},
		"amd64":                  {"spec", "template", "spec", "architecture"},
		"0d2a1f2e-uuid-firmware": {"spec", "template", "spec", "domain", "firmware", "uuid"},
	} {
		if _, found, _ := unstructured.NestedString(u.Object, path...); found {
			continue
		}
		if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
			panic(err)
		}
	}
	if err := unstructured.SetNestedMap(u.Object, map[string]any{}, "spec", "template", "spec", "domain", "resources"); err != nil {
		panic(err)
	}
	return u
}

var allConditions = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionImageAcquired,
	v1alpha1.ConditionRootDiskReady, v1alpha1.ConditionMachineCreated, v1alpha1.ConditionSpecAdjusted,
	v1alpha1.ConditionImageDiffers, v1alpha1.ConditionRestartRequired, v1alpha1.ConditionPlainTextPassword,
}

var allReasons = []v1alpha1.Reason{
	v1alpha1.ReasonImageMissing, v1alpha1.ReasonImageNamespaceMissing, v1alpha1.ReasonImageRefused, v1alpha1.ReasonWaitingForImage,
	v1alpha1.ReasonImageFailed, v1alpha1.ReasonImageDeleting, v1alpha1.ReasonAcquiringImage, v1alpha1.ReasonIgnoredOnDeploy,
	v1alpha1.ReasonSpecInvalid, v1alpha1.ReasonNameTaken, v1alpha1.ReasonRootDiskRefused, v1alpha1.ReasonRootDiskFailed,
	v1alpha1.ReasonCloningRootDisk, v1alpha1.ReasonKubeVirtMissing, v1alpha1.ReasonMachineRefused, v1alpha1.ReasonNetworkMissing,
	v1alpha1.ReasonStarting, v1alpha1.ReasonMachineError, v1alpha1.ReasonRunning, v1alpha1.ReasonStopped,
	v1alpha1.ReasonInstancetypeMissing, v1alpha1.ReasonPreferenceMissing, v1alpha1.ReasonQuotaExceeded,
	v1alpha1.ReasonDataDiskFailed, v1alpha1.ReasonDataDiskLost, v1alpha1.ReasonPreparingDataDisk,
	v1alpha1.ReasonCDIMissing, v1alpha1.ReasonSecretMissing, v1alpha1.ReasonSecretForbidden, v1alpha1.ReasonArchitectureMismatch,
}

// decideChecked decides and checks the invariants of every decision.
func (w *world) decideChecked(v vm.View) vm.Decision {
	t, before := w.t, v.VM.DeepCopy()
	d := vm.Decide(v)
	require.True(t, equality.Semantic.DeepEqual(before, v.VM), "the View is not modified")
	hasActions := len(d.Adopt) > 0 || d.RecordMigrations != nil || d.CreateImage != nil || len(d.DeleteDisks) > 0 || len(d.CreateDisks) > 0 || d.ApplySecret != nil || d.ApplyKubeVirtVM != nil || d.RunStrategy != ""
	if d.NeedsLive || d.NeedsLiveImages {
		require.False(t, v.Live || (v.LiveImages && d.NeedsLiveImages), "the View is live already")
		require.False(t, hasActions || d.StoreStatusFirst, "nothing else is decided")
		return d
	}
	if d.StoreStatusFirst {
		require.False(t, hasActions, "the status is stored before anything else is done")
		require.False(t, equality.Semantic.DeepEqual(before.Status, d.Status), "the status has changed")
	}
	require.False(t, d.RecordMigrations != nil && d.ApplyKubeVirtVM != nil, "a migration is recorded before anything else is applied")
	schemacheck.RequireStorable(t, "VirtualMachine", &d.Status)
	require.NotContains(t, fmt.Sprintf("%+v", d.Status.Conditions)+d.Status.Message, apitest.Secret)
	w.checkPins(v, d)
	w.checkDisks(v, d)
	w.checkRunStrategy(v, d)
	if !d.StoreStatusFirst || before.Status.Phase == "" {
		w.checkStatus(v, d)
	}
	w.checkIdempotence(v, d)
	return d
}

// checkRunStrategy checks that RerunOnFailure is not set while KubeVirt is ending an instance: it would
// not start another.
func (w *world) checkRunStrategy(v vm.View, d vm.Decision) {
	if v.KubeVirtVM == nil {
		return
	}
	current, _, _ := unstructured.NestedString(v.KubeVirtVM.Object, "spec", "runStrategy")
	created, _, _ := unstructured.NestedBool(v.KubeVirtVM.Object, "status", "created")
	status, _, _ := unstructured.NestedString(v.KubeVirtVM.Object, "status", "printableStatus")
	if !created || current == "" || current == "RerunOnFailure" || (current != "Halted" && status != "Stopping") {
		return
	}
	require.NotEqual(w.t, v1alpha1.RunStrategy("RerunOnFailure"), d.RunStrategy)
	if d.ApplyKubeVirtVM != nil {
		run, _, _ := unstructured.NestedString(d.ApplyKubeVirtVM.Object, "spec", "runStrategy")
		require.NotEqual(w.t, "RerunOnFailure", run)
	}
}

// checkStatus checks the invariants of phase, reason, message and conditions.
func (w *world) checkStatus(v vm.View, d vm.Decision) {
	t, st := w.t, d.Status
	require.Contains(t, allReasons, st.Reason)
	require.NotEmpty(t, st.Message)
	require.LessOrEqual(t, len(st.Message), 4096)
	require.Equal(t, v.VM.Generation, st.ObservedGeneration)
	conditions := allConditions
	if len(v.VM.Spec.Disks) > 0 {
		conditions = append(slices.Clone(conditions), v1alpha1.ConditionDisksReady)
	}
	require.Len(t, st.Conditions, len(conditions))
	for _, name := range conditions {
		c := meta.FindStatusCondition(st.Conditions, name)
		require.NotNil(t, c, name)
		require.NotEmpty(t, c.Reason, name)
		require.NotEmpty(t, c.Message, name)
		require.LessOrEqual(t, len(c.Message), 4096)
		require.Equal(t, v.VM.Generation, c.ObservedGeneration, name)
	}
	statuscheck.RequireOneTrue(t, st.Conditions)
	holds := func(c string) bool { return meta.IsStatusConditionTrue(st.Conditions, c) }
	require.Equal(t, st.Phase == v1alpha1.MachineReady, holds(v1alpha1.ConditionReady))
	require.Equal(t, st.Phase == v1alpha1.MachineProvisioning, holds(v1alpha1.ConditionReconciling))
	require.Equal(t, st.Phase == v1alpha1.MachineFailed, holds(v1alpha1.ConditionStalled))
	if st.Phase != v1alpha1.MachineReady {
		return
	}
	require.Contains(t, []v1alpha1.Reason{v1alpha1.ReasonRunning, v1alpha1.ReasonStopped, v1alpha1.ReasonIgnoredOnDeploy}, st.Reason)
	if st.Reason == v1alpha1.ReasonIgnoredOnDeploy {
		require.True(t, v.VM.Spec.IgnoreOnDeploy && v.KubeVirtVM == nil && v.Image != nil && v.Image.Status.Serving != nil)
		require.True(t, holds(v1alpha1.ConditionImageAcquired))
		return
	}
	require.True(t, holds(v1alpha1.ConditionMachineCreated))
	late := awaitingStart(v)
	require.Equal(t, !late[""], holds(v1alpha1.ConditionRootDiskReady))
	require.Equal(t, len(v.VM.Spec.Disks) > 0 && !slices.ContainsFunc(v.VM.Spec.Disks, func(disk v1alpha1.Disk) bool { return late[disk.Name] }), holds(v1alpha1.ConditionDisksReady))
	require.True(t, len(late) == 0 || st.Reason == v1alpha1.ReasonStopped)
	require.True(t, v.KubeVirtVM != nil && v.KubeVirtVM.GetLabels()[v1alpha1.LabelMachineUID] == string(v.VM.UID) && v.KubeVirtVM.GetDeletionTimestamp() == nil)
}

// checkIdempotence checks that the status stays the same while nothing else changes.
func (w *world) checkIdempotence(v vm.View, d vm.Decision) {
	if d.StoreStatusFirst {
		return
	}
	v.VM = v.VM.DeepCopy()
	v.VM.Status = d.Status
	v.Now = v.Now.Add(3 * time.Second)
	again := vm.Decide(v)
	require.False(w.t, (again.NeedsLive && v.Live) || (again.NeedsLiveImages && v.LiveImages))
	if !again.NeedsLive && !again.NeedsLiveImages {
		require.Equal(w.t, d.Status, again.Status)
		require.False(w.t, again.StoreStatusFirst)
	}
}

// hasCondition reports whether a stored condition is True.
func (w *world) hasCondition(condition string) bool {
	return meta.IsStatusConditionTrue(w.VM.Status.Conditions, condition)
}

// requireState checks phase, reason and parts of the message of the last decision.
func (w *world) requireState(phase v1alpha1.MachinePhase, reason v1alpha1.Reason, parts ...string) {
	st := w.lastDecision.Status
	require.Equal(w.t, []any{phase, reason}, []any{st.Phase, st.Reason}, st.Message)
	for _, part := range parts {
		require.Contains(w.t, st.Message, part)
	}
}

// labelAsFormer makes an object one of a former machine with the same name.
func labelAsFormer(o metav1.Object) {
	o.SetLabels(map[string]string{v1alpha1.LabelMachineUID: "uid-of-former"})
}

func markDeleted(o metav1.Object) {
	o.SetDeletionTimestamp(ptr.To(metav1.NewTime(apitest.Epoch)))
}
