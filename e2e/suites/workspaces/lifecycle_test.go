//go:build linux

package workspaces

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestDeletedVMLeavesNothing(t *testing.T) {
	t.Parallel()
	ns := env.CreateNamespace(t)
	vm := createAndAwaitRunning(t, testenv.NewMachine(ns, "vm", sharedImage(t)))
	deleteAndAwaitNothingLeft(t, vm)
}

// TestRecreatedVM creates a VM while a former one of its name is being deleted.
func TestRecreatedVM(t *testing.T) {
	testenv.RunInTurn(t, 23)
	t.Parallel()
	ns := env.CreateNamespace(t)
	old := testenv.NewMachine(ns, "vm", sharedImage(t))
	createAndAwaitRunning(t, old)
	disk := requireObject(t, rootDiskOf(old))
	deleteObject(t, old)
	again := testenv.NewMachine(ns, "vm", sharedImage(t))
	require.True(t, testenv.AwaitCondition(t, func() bool { return env.Client().Create(t.Context(), again) == nil }))
	awaitRunning(t, again)
	require.NotEqual(t, old.UID, again.UID)
	for _, o := range []client.Object{kubeVirtVMOf(again), rootDiskOf(again), cloudInitSecretOf(again)} {
		assert.Equal(t, string(again.UID), requireObject(t, o).GetLabels()[v1alpha1.LabelMachineUID], "%T", o)
	}
	assert.NotEqual(t, disk.UID, requireObject(t, rootDiskOf(again)).UID, "a guest's data is not the next one's")
}

// TestDeletedImageServesUntilReleased wants a deleted image to be served, also to new VMs,
// until the last VM is gone.
func TestDeletedImageServesUntilReleased(t *testing.T) {
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.ImportImage(t, env.NewSnapshottedImage(farm, "image", "/ok/100ms/a"))
	first, halted := testenv.NewMachine(ns, "first", img), testenv.NewMachine(ns, "halted", img)
	halted.Spec.RunStrategy = "Halted"
	env.Create(t, halted)
	createAndAwaitRunning(t, first)
	awaitReason(t, halted, v1alpha1.ReasonStopped)

	deleteObject(t, img)
	leaving := env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
	assert.Equal(t, v1alpha1.ReasonReferenced, leaving.Status.Reason)
	assert.Contains(t, leaving.Status.Message, "stays available while it is referenced by "+ns+"/first, "+ns+"/halted")
	later := testenv.NewMachine(ns, "later", img)
	createAndAwaitRunning(t, later)
	awaitHolders(t, img, first, halted, later)

	for _, vm := range []*v1alpha1.VirtualMachine{first, later} {
		deleteObject(t, vm)
		env.AwaitGone(t, vm)
	}
	still := awaitHolders(t, img, halted)
	assert.Equal(t, v1alpha1.PhaseTerminating, still.Status.Phase)
	assert.NotNil(t, still.Status.Serving)
	deleteObject(t, halted)
	env.AwaitGone(t, img)
	awaitNothingLeft(t, farm)
	awaitNothingLeft(t, ns)
}

// TestVMCreatedDuringImageTearDown wants the VM to wait until the image is gone and to create
// it again from its template.
func TestVMCreatedDuringImageTearDown(t *testing.T) {
	testenv.RunInTurn(t, 24)
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	fresh := env.NewSnapshottedImage(farm, "image", "/ok/100ms/a")
	img := env.ImportImage(t, fresh.DeepCopy())
	snap := snapshotOf(farm, img.Status.Serving.VolumeSnapshot)
	env.Update(t, snap, func() { snap.Finalizers = append(snap.Finalizers, "pelotech.ot/held-by-test") })
	deleteObject(t, img)
	env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return img.Status.TearDown })

	able, unable := withImageTemplate(ns, "able", fresh), testenv.NewMachine(ns, "unable", fresh)
	env.Create(t, able, unable)
	assert.Contains(t, awaitReason(t, able, v1alpha1.ReasonImageDeleting).Status.Message, "is being deleted; this machine continues once it is recreated from spec.vmDiskImageTemplate")
	late := awaitReason(t, unable, v1alpha1.ReasonImageDeleting)
	assert.Equal(t, v1alpha1.MachineProvisioning, late.Status.Phase)
	assert.Nil(t, late.Status.Pinned)
	assert.True(t, env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseDeleting)).Status.TearDown, "the deletion is irreversible")

	env.Update(t, snap, func() {
		snap.Finalizers = slices.DeleteFunc(snap.Finalizers, func(f string) bool { return f == "pelotech.ot/held-by-test" })
	})
	got := awaitRunning(t, able)
	assert.NotEqual(t, img.UID, got.Status.Pinned.UID)
	assert.Equal(t, got.Status.Pinned.UID, awaitRunning(t, unable).Status.Pinned.UID)
}

func newNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestVMNamespaceDeleted deletes the namespace of running VMs: it goes, and images are
// released.
func TestVMNamespaceDeleted(t *testing.T) {
	testenv.RunInTurn(t, 0)
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.ImportImage(t, env.NewSnapshottedImage(farm, "image", "/ok/100ms/a"))
	own := withImageTemplate(ns, "own", env.NewSnapshottedImage(ns, "own", "/ok/1s/b"))
	env.Create(t, own)
	vm := testenv.NewMachine(ns, "vm", img)
	createAndAwaitRunning(t, vm)
	deleteObject(t, newNamespace(ns))
	env.AwaitGone(t, newNamespace(ns))
	assert.Equal(t, v1alpha1.PhaseSucceeded, awaitHolders(t, img).Status.Phase)
}

// TestImageNamespaceDeleted deletes the namespace of images that VMs elsewhere use: it goes.
// VMs with a disk keep running and can be restarted; others wait.
func TestImageNamespaceDeleted(t *testing.T) {
	testenv.RunInTurn(t, 5)
	t.Parallel()
	ns, farm := env.CreateNamespace(t), env.CreateNamespace(t)
	img := env.ImportImage(t, env.NewSnapshottedImage(farm, "image", "/ok/100ms/a"))
	vm := withImageTemplate(ns, "vm", img)
	createAndAwaitRunning(t, vm)
	deleteObject(t, newNamespace(farm))
	env.AwaitGone(t, newNamespace(farm))

	disk, kubeVirt := requireObject(t, rootDiskOf(vm)), requireObject(t, kubeVirtVMOf(vm))
	late := withImageTemplate(ns, "late", img)
	env.Create(t, late)
	assert.Contains(t, awaitReason(t, late, v1alpha1.ReasonImageNamespaceMissing).Status.Message, farm)
	deleteAndAwaitGone(t, kubeVirtVMOf(vm))
	awaitObject(t, kubeVirtVMOf(vm), "recreated", func(o *kubevirtv1.VirtualMachine) bool { return o.UID != kubeVirt.UID && o.Status.Ready })
	assert.Equal(t, disk.UID, requireObject(t, rootDiskOf(vm)).UID)
	awaitRunning(t, vm)

	env.Create(t, newNamespace(farm))
	awaitRunning(t, late)
	assert.Equal(t, img.UID, awaitRunning(t, vm).Status.Pinned.UID, "the pin of a deleted image")
}

// TestDeletedKubeVirtVMIsRecreated wants the new KubeVirt VM to use the existing disk.
func TestDeletedKubeVirtVMIsRecreated(t *testing.T) {
	t.Parallel()
	vm := createAndAwaitRunning(t, testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t)))
	first, disk, guest := requireObject(t, kubeVirtVMOf(vm)), requireObject(t, rootDiskOf(vm)), requireObject(t, kubeVirtVMIOf(vm))
	deleteAndAwaitGone(t, kubeVirtVMOf(vm))
	awaitObject(t, kubeVirtVMOf(vm), "recreated", func(o *kubevirtv1.VirtualMachine) bool { return o.UID != first.UID && o.Status.Ready })
	awaitRunning(t, vm)
	assert.Equal(t, disk.UID, requireObject(t, rootDiskOf(vm)).UID)
	assert.NotEqual(t, guest.UID, requireObject(t, kubeVirtVMIOf(vm)).UID)
}

// TestDeletedCloudInitSecretIsRecreated wants the Secret back at the next start of the VM: the
// agent does not watch Secrets.
func TestDeletedCloudInitSecretIsRecreated(t *testing.T) {
	testenv.RunInTurn(t, 6)
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.Users = []v1alpha1.User{{Name: "demo", PlainTextPasswd: "demo-pwd"}}
	createAndAwaitRunning(t, vm)
	former := requireObject(t, cloudInitSecretOf(vm))
	deleteAndAwaitGone(t, cloudInitSecretOf(vm))
	stopVM(t, vm)
	again := awaitObject(t, cloudInitSecretOf(vm), "recreated", func(*corev1.Secret) bool { return true })
	assert.Equal(t, former.Data, again.Data)
	assert.Equal(t, former.Labels, again.Labels)
	setRunStrategy(t, vm, kubevirtv1.RunStrategyAlways)
	awaitRunning(t, vm)
}

// TestDriftIsReverted wants the fields that the agent owns to be restored, and others kept.
func TestDriftIsReverted(t *testing.T) {
	t.Parallel()
	vm := testenv.NewMachine(env.CreateNamespace(t), "vm", sharedImage(t))
	vm.Spec.BaseVM = "ubuntu"
	createAndAwaitRunning(t, vm)
	guest := requireObject(t, kubeVirtVMIOf(vm))
	kubeVirtVM := kubeVirtVMOf(vm)
	env.Update(t, kubeVirtVM, func() {
		kubeVirtVM.Labels["foreign"], kubeVirtVM.Labels[v1alpha1.LabelBaseVM] = "stays", "drifts"
		kubeVirtVM.Annotations["foreign"] = "stays"
		kubeVirtVM.Spec.Template.Spec.Domain.CPU.Cores = 7
		kubeVirtVM.Spec.Template.Spec.Domain.Devices.Disks[0].BootOrder = nil
		kubeVirtVM.Spec.Template.Spec.Domain.Devices.Disks = append(kubeVirtVM.Spec.Template.Spec.Domain.Devices.Disks, kubevirtv1.Disk{Name: "hot", DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{}}})
		kubeVirtVM.Spec.Template.Spec.Volumes = append(kubeVirtVM.Spec.Template.Spec.Volumes, kubevirtv1.Volume{Name: "hot", VolumeSource: kubevirtv1.VolumeSource{EmptyDisk: &kubevirtv1.EmptyDiskSource{Capacity: *vm.Spec.Resources.Memory}}})
		kubeVirtVM.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
	})
	got := awaitObject(t, kubeVirtVMOf(vm), "as the spec says", func(o *kubevirtv1.VirtualMachine) bool {
		return o.Spec.Template.Spec.Domain.CPU.Cores == 1 && o.Spec.Template.Spec.Domain.Devices.Disks[0].BootOrder != nil
	})
	assert.Equal(t, "hot", got.Spec.Template.Spec.Domain.Devices.Disks[2].Name, "as virtctl addvolume adds it")
	assert.Equal(t, "hot", got.Spec.Template.Spec.Volumes[2].Name)
	assert.Equal(t, "ubuntu", got.Labels[v1alpha1.LabelBaseVM])
	assert.Equal(t, "stays", got.Labels["foreign"])
	assert.Equal(t, "stays", got.Annotations["foreign"])
	assert.Equal(t, map[string]string{"kubernetes.io/os": "linux"}, got.Spec.Template.Spec.NodeSelector, "the agent has no field for it")
	assert.Equal(t, guest.UID, requireObject(t, kubeVirtVMIOf(vm)).UID)
	awaitRunning(t, vm)
}

func TestLongAndUnusualNames(t *testing.T) {
	testenv.RunInTurn(t, 25)
	t.Parallel()
	ns := env.CreateNamespace(t)
	var machines []*v1alpha1.VirtualMachine
	for _, name := range []string{
		"a", "9", "with.a.dot",
		strings.Repeat("long-", 12) + "end", // 63
		strings.Repeat("dots.", 12) + "end",
	} {
		vm := testenv.NewMachine(ns, name, sharedImage(t))
		vm.Spec.RunStrategy = "Halted"
		env.Create(t, vm)
		machines = append(machines, vm)
	}
	disks := map[string]bool{}
	for _, vm := range machines {
		got := awaitReason(t, vm, v1alpha1.ReasonStopped)
		disks[got.Status.RootDisk.DataVolume] = true
		if strings.Contains(vm.Name, ".") {
			assert.Contains(t, awaitCondition(t, vm, v1alpha1.ConditionSpecAdjusted, metav1.ConditionTrue), "is not a host name of one label")
		}
		env.Update(t, vm, func() { vm.Spec.RunStrategy = "Always" })
	}
	assert.Len(t, disks, len(machines))
	for _, vm := range machines {
		awaitRunning(t, vm)
	}
	require.ErrorContains(t, env.Client().Create(t.Context(), testenv.NewMachine(ns, strings.Repeat("x", 64), sharedImage(t))), "at most 63 characters")
}

// TestTakenNamesAreLeftAlone wants foreign objects under the names of a VM's children to be left
// alone, and the VM to go on when they are deleted.
func TestTakenNamesAreLeftAlone(t *testing.T) {
	testenv.RunInTurn(t, 3)
	t.Parallel()
	ns := env.CreateNamespace(t)
	byMachine, byDisk, bySecret := testenv.NewMachine(ns, "by-machine", sharedImage(t)), testenv.NewMachine(ns, "by-disk", sharedImage(t)), testenv.NewMachine(ns, "by-secret", sharedImage(t))
	foreign := kubeVirtVMOf(byMachine)
	foreign.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
	foreign.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	foreign.Spec.Template.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: byMachine.Spec.Resources.Memory}
	blank := rootDiskOf(byDisk)
	blank.Spec.Source = &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}
	blank.Spec.Storage = &cdiv1.StorageSpec{
		StorageClassName: ptr.To("sim-csi"), Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *byMachine.Spec.Resources.Memory}},
	}
	secret := cloudInitSecretOf(bySecret)
	secret.StringData = map[string]string{"userdata": "foreign"}
	env.Create(t, foreign, blank, secret)
	env.Create(t, byMachine, byDisk, bySecret)
	for vm, kind := range map[*v1alpha1.VirtualMachine]string{
		byMachine: "KubeVirt VirtualMachine by-machine", byDisk: "DataVolume by-disk-root", bySecret: "Secret by-secret-cloudinit",
	} {
		got := awaitReason(t, vm, v1alpha1.ReasonNameTaken)
		assert.Equal(t, v1alpha1.MachineFailed, got.Status.Phase)
		assert.Contains(t, got.Status.Message, kind+" exists and was not created for this machine")
	}
	spec := foreign.Spec.DeepCopy()
	for _, o := range []client.Object{foreign, blank, secret} {
		uid := o.GetUID()
		requireObject(t, o)
		assert.Equal(t, uid, o.GetUID())
		assert.Empty(t, o.GetLabels()[v1alpha1.LabelMachineUID])
		assert.Empty(t, o.GetOwnerReferences())
	}
	assert.Equal(t, "foreign", string(secret.Data["userdata"]))
	assert.Equal(t, spec, &foreign.Spec)
	for _, o := range []client.Object{foreign, blank, secret} {
		deleteObject(t, o)
	}
	for _, vm := range []*v1alpha1.VirtualMachine{byMachine, byDisk, bySecret} {
		awaitRunning(t, vm)
	}
}

// TestManyVMsShareOneMissingImage creates VMs of one missing image at once: 6 with real CDI,
// and with OT_FLEET_LONG 50 with a simulated one. Real clones of 50 VMs take minutes.
func TestManyVMsShareOneMissingImage(t *testing.T) {
	t.Run("real CDI", func(t *testing.T) { testManyVMs(t, env, 6) })
	t.Run("simulated CDI", func(t *testing.T) {
		if !testenv.IsLong() {
			t.Skip("takes long: set " + testenv.LongVariable)
		}
		s, err := testenv.Start(context.Background(), member.Options{Name: "many", InstantImporter: true, InstantSnapshots: true, KubeVirt: true})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, s.Stop()) })
		require.NoError(t, s.StartAgent())
		t.Cleanup(s.Agent.Kill)
		testManyVMs(t, s, 50)
	})
}

// testManyVMs wants one image, one import and n clones for n VMs, and nothing to be created or
// written twice.
func testManyVMs(t *testing.T, s *testenv.Env, n int) {
	t.Helper()
	s.SetPolicy(t, newPolicy())
	ns, farm := s.CreateNamespace(t), s.CreateNamespace(t)
	o := s.StartObserver(t)
	images, clones, machines := countObjects(t, s, &v1alpha1.VMDiskImageList{}, farm), countObjects(t, s, &cdiv1.DataVolumeList{}, ns), countObjects(t, s, &kubevirtv1.VirtualMachineList{}, ns)
	img := s.NewSnapshottedImage(farm, "image", "/ok/1s/a")
	vms := make([]*v1alpha1.VirtualMachine, n)
	errs := make([]error, n)
	var creating sync.WaitGroup
	for i := range n {
		creating.Add(1)
		go func() {
			defer creating.Done()
			vms[i] = withImageTemplate(ns, fmt.Sprintf("vm-%02d", i), img)
			errs[i] = s.Client().Create(t.Context(), vms[i])
		}()
	}
	creating.Wait()
	if s.InstantImporter() != nil {
		s.InstantImporter().AllowFinishes(1) // a second import would not finish
	}
	pins := map[types.UID]bool{}
	for i, vm := range vms {
		require.NoError(t, errs[i])
		got := s.AwaitMachine(t, vm, testenv.MachineHasReason(v1alpha1.ReasonRunning))
		pins[got.Status.Pinned.UID] = true
		if s.InstantImporter() != nil {
			continue // without webhooks, KubeVirt's controller sets defaults, which raises the generation
		}
		kubeVirtVM := kubeVirtVMOf(vm)
		require.NoError(t, s.Client().Get(t.Context(), client.ObjectKeyFromObject(vm), kubeVirtVM))
		assert.EqualValues(t, 1, kubeVirtVM.Generation, "the KubeVirt VM was written again after its creation")
	}
	assert.Len(t, pins, 1)
	got := s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return int(img.Status.References.Count) == n })
	assert.Len(t, got.Status.References.Holders, 5)
	h := testenv.History(t, o)
	assert.Equal(t, 1, h.Attempts(got.UID))
	assert.Empty(t, h.BudgetViolations())
	testenv.AwaitCondition(t, func() bool { return images() >= 1 && clones() >= n && machines() >= n }) // the watches may lag
	assert.Equal(t, 1, images())
	assert.Equal(t, n, clones())
	assert.Equal(t, n, machines())
}

// countObjects counts the objects of a kind that a namespace has or gets from now on.
func countObjects(t *testing.T, s *testenv.Env, list client.ObjectList, ns string) func() int {
	t.Helper()
	var mu sync.Mutex
	seen := map[types.UID]bool{}
	stop, err := controlplane.WatchObjects(t.Context(), s.Client(), list, func(c controlplane.Change[client.Object]) {
		mu.Lock()
		defer mu.Unlock()
		seen[c.Object.GetUID()] = true
	}, client.InNamespace(ns))
	require.NoError(t, err)
	t.Cleanup(stop)
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
}

// TestOperatorsInstalledLater installs CDI, the snapshot CRDs and KubeVirt while the agent
// runs. The API server ignores admission policies, which the agent reports once imports are
// possible.
func TestOperatorsInstalledLater(t *testing.T) {
	testenv.RunInTurn(t, 0) // it starts a cluster of its own
	s, err := testenv.Start(context.Background(), member.Options{
		Name: "bare", WithoutCDI: true, WithoutSnapshots: true,
		APIServerArgs: []string{"--disable-admission-plugins=ValidatingAdmissionPolicy"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Stop()) })
	require.NoError(t, s.StartAgent())
	t.Cleanup(s.Agent.Kill)
	s.SetPolicy(t, newPolicy())

	ns := s.CreateNamespace(t)
	img, snapshotted := s.NewImage(ns, "image", "/ok/100ms/a"), s.NewSnapshottedImage(ns, "snapshotted", "/ok/100ms/b")
	vm, ignored := withImageTemplate(ns, "vm", img), withImageTemplate(ns, "ignored", img)
	ignored.Spec.IgnoreOnDeploy = true
	s.Create(t, snapshotted, vm, ignored)
	waiting := s.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Reason == v1alpha1.ReasonCDIMissing
	})
	assert.Equal(t, v1alpha1.ReasonCDIMissing, waiting.Status.Reason)
	assert.Contains(t, waiting.Status.Message, "install CDI")
	queued := s.AwaitImage(t, snapshotted, testenv.HasReason(v1alpha1.ReasonCDIMissing))
	assert.Equal(t, v1alpha1.PhaseQueued, queued.Status.Phase)
	s.AwaitLedgerCondition(t, v1alpha1.ConditionBudgetGuarded, metav1.ConditionUnknown, "NotTried")
	dropped := s.NewImage(ns, "dropped", "/ok/100ms/c")
	s.Create(t, dropped)
	s.AwaitImage(t, dropped, testenv.HasReason(v1alpha1.ReasonCDIMissing))
	require.NoError(t, s.Client().Delete(t.Context(), dropped))
	s.AwaitGone(t, dropped)

	require.NoError(t, s.InstallCDI(t.Context()))
	o := s.StartObserver(t)
	lacking := s.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Reason == v1alpha1.ReasonKubeVirtMissing && vm.Status.RootDisk != nil && vm.Status.RootDisk.Ready
	})
	assert.Equal(t, v1alpha1.MachineFailed, lacking.Status.Phase)
	assert.Contains(t, lacking.Status.Message, "install KubeVirt")
	acquired, message := testenv.IsConditionTrue(lacking, v1alpha1.ConditionImageAcquired)
	assert.True(t, acquired, message)
	s.AwaitMachine(t, ignored, testenv.MachineHasReason(v1alpha1.ReasonIgnoredOnDeploy))
	ready := s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
	assert.Empty(t, ready.Status.Serving.VolumeSnapshot)
	s.AwaitLedgerCondition(t, v1alpha1.ConditionBudgetGuarded, metav1.ConditionFalse, "PolicyNotInForce")
	failed := s.AwaitImage(t, snapshotted, testenv.HasReason(v1alpha1.ReasonSnapshotClassMissing))
	assert.Contains(t, failed.Status.Message, "does not serve VolumeSnapshots")
	h := testenv.History(t, o)
	assert.Empty(t, h.BudgetViolations())

	require.NoError(t, s.InstallSnapshotCRDs(t.Context()))
	s.Create(t, &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: snapshotted.Spec.SnapshotClass}, Driver: simulator.ProvisionerForClass(simulator.ClassCSI), DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	})
	// No controller serves snapshots here; the agent only has to create one.
	s.AwaitImage(t, snapshotted, testenv.HasReason(v1alpha1.ReasonSnapshotting))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var list snapshotv1.VolumeSnapshotList
		return s.Client().List(t.Context(), &list, client.InNamespace(ns)) == nil && len(list.Items) == 1
	}))

	require.NoError(t, s.InstallKubeVirt(t.Context()))
	s.AwaitMachine(t, vm, testenv.MachineHasReason(v1alpha1.ReasonRunning))
}
