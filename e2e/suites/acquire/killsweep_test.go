//go:build linux

package acquire

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// writeKinds are the kinds of writes that the agent makes for VMs and their images. The
// scenario must have each of them.
var writeKinds = []string{
	"acquire", "add finalizer", "delete datavolumes", "delete volumesnapshots", "patch virtualmachines", "pin", "post secrets",
	"post datavolumes", "post vmdiskimages", "post volumesnapshots", "remove finalizer",
	"store Deleting image", "store Queued image", "store Succeeded image", "store Syncing image", "store Terminating image",
	"store VM with nothing pinned", "store VM with root disk", "tear down image",
}

// TestAgentKilledAtEveryWrite runs a scenario undisturbed to learn its writes, and then
// again with the agent killed before or after the writes of this run's share. With
// OT_FLEET_LONG it covers all points.
func TestAgentKilledAtEveryWrite(t *testing.T) {
	s := &scenario{KillSweep: faults.KillSweep{Env: env, StepsOf: func(w faults.Write) []faults.Step { return []faults.Step{stepOf(w)} }}}
	steps := slices.DeleteFunc(s.LearnSteps(t, s.run), isIrrelevantStep)
	var kinds []string
	for _, step := range steps {
		kinds = append(kinds, step.Kind())
	}
	require.Subset(t, kinds, writeKinds, "kinds of writes in the scenario, whose steps are\n%v", steps)
	s.KillAtEach(t, testenv.SweepShare(faults.KillPoints(steps)), s.run)
}

// scenario has images in every situation that a VM can meet: alpha is created from a
// template and deleted under VMs, beta changes its source, gamma its snapshots, and delta is
// deleted just when a VM is created.
type scenario struct {
	faults.KillSweep
	namespace string // of the current run
}

// otherSnapshotClass is a second VolumeSnapshotClass of the simulated CSI driver.
const otherSnapshotClass = "another-snapclass"

func createOtherSnapshotClass(t *testing.T) {
	t.Helper()
	class := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: otherSnapshotClass}, Driver: simulator.ClassCSI + ".pelotech.ot", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
	if err := env.Client().Create(t.Context(), class); !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

// run plays the scenario in a namespace of its own, whatever happens to the agents.
func (s *scenario) run(t *testing.T) {
	t.Helper()
	createOtherSnapshotClass(t)
	ns, o := beginTest(t)
	s.namespace = ns

	alpha := env.NewSnapshottedImage(ns, "alpha", "/ok/alpha.qcow2")
	beta := env.NewImage(ns, "beta", "/ok/beta-1.qcow2")
	gamma := env.NewSnapshottedImage(ns, "gamma", "/ok/gamma.qcow2")
	delta := env.NewImage(ns, "delta", "/ok/delta.qcow2")
	newVM := func(name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
		return testenv.NewMachine(ns, name, img)
	}
	early, wanders := withImageTemplate(newVM("early", alpha), alpha), newVM("wanders", env.NewImage(ns, "nothing", "/"))
	b1, b2, b3 := newVM("b1", beta), newVM("b2", beta), newVM("b3", beta)
	g1, g2 := newVM("g1", gamma), newVM("g2", gamma)
	b1.Spec.Disks = []v1alpha1.Disk{
		{Name: "gamma", Image: &v1alpha1.ImageReference{Name: gamma.Name}}, {Name: "blank", Size: ptr.To(resource.MustParse("64Mi")), StorageClass: simulator.ClassCSI},
	}
	g2.Spec.Disks = []v1alpha1.Disk{{Name: "beta", Image: &v1alpha1.ImageReference{Name: beta.Name}}}

	env.Create(t, early, wanders, beta, b1, b2, gamma, g1, delta)
	s.awaitVMsComplete(t, early, b1, b2, g1)
	s.awaitWithAgent(t, "delta", func() bool { return readServing(t, delta) != nil })
	require.True(t, getObject(t, ns, "alpha", alpha))

	// Images change under VMs, and one is deleted.
	deleteObject(t, alpha.DeepCopy())
	late, again := newVM("late", alpha), withImageTemplate(newVM("again", alpha), env.NewSnapshottedImage(ns, "alpha", "/ok/alpha.qcow2"))
	env.Create(t, late)
	env.Update(t, beta, func() { beta.Spec.URL = env.Source.URL + "/ok/beta-2.qcow2" })
	first := readServing(t, gamma).VolumeSnapshot
	deleteByHand(t, o, s.createSnapshot(t, ns, first))
	second := s.awaitNewSnapshot(t, gamma, first)
	env.Create(t, g2)
	s.awaitWithAgent(t, "beta's second source", func() bool { sv := readServing(t, beta); return sv != nil && sv.Attempt == 2 })
	env.Create(t, b3)
	s.awaitVMsComplete(t, late, g2, b3)
	env.Update(t, gamma, func() { gamma.Spec.SnapshotClass = otherSnapshotClass })
	s.awaitNewSnapshot(t, gamma, second)
	env.Update(t, wanders, func() { wanders.Spec.VMDiskImageRef.Name = "gamma" })
	env.Update(t, b3, func() { b3.Spec.VMDiskImageRef.Name = "gamma" })
	deleteByHand(t, o, findRootDisk(t, g1))
	s.awaitVMsComplete(t, early, late, b1, b2, b3, g1, g2, wanders)
	assert.Equal(t, int32(1), s.awaitPinned(t, b1).Attempt)
	assert.Equal(t, int32(2), s.awaitPinned(t, b3).Attempt)
	assert.Equal(t, second, s.awaitPinned(t, g2).VolumeSnapshot)
	s.createSnapshot(t, ns, second)

	// VMs are deleted, and the storage that was kept for them.
	deleteObject(t, early)
	deleteObject(t, late)
	deleteObject(t, b1)
	deleteObject(t, b2)
	deleteObject(t, g2)
	deleteObject(t, beta.DeepCopy())
	deleteObject(t, delta.DeepCopy())
	d1 := withImageTemplate(newVM("d1", delta), env.NewImage(ns, "delta", "/ok/delta.qcow2"))
	env.Create(t, d1)
	s.awaitWithAgent(t, "alpha to be deleted", func() bool { return !getObject(t, ns, "alpha", &v1alpha1.VMDiskImage{}) })
	env.Create(t, again)
	s.awaitWithAgent(t, "the snapshot of g2 to be deleted", func() bool { return !getObject(t, ns, second, &snapshotv1.VolumeSnapshot{}) })
	s.awaitWithAgent(t, "the first source of beta to be deleted", func() bool {
		var claims corev1.PersistentVolumeClaimList
		require.NoError(t, env.Client().List(t.Context(), &claims, client.InNamespace(ns), client.MatchingLabels{v1alpha1.LabelImageUID: string(beta.UID)}))
		return len(claims.Items) == 1
	})
	s.awaitVMsComplete(t, again, b3, g1, wanders, d1)
	require.True(t, getObject(t, ns, "beta", beta))
	assert.NotNil(t, beta.DeletionTimestamp, "b3 holds beta although it references another image")
	deleteObject(t, b3)
	s.awaitWithAgent(t, "beta to be deleted", func() bool { return !getObject(t, ns, "beta", &v1alpha1.VMDiskImage{}) })

	requireNothingLeft(t, ns, o, func() { s.EnsureAgent(t) })
	requirePromisesKept(t, o)
}

func (s *scenario) awaitVMsComplete(t *testing.T, vms ...*v1alpha1.VirtualMachine) {
	t.Helper()
	for _, vm := range vms {
		s.awaitWithAgent(t, vm.Name+" to run", func() bool { return isVMComplete(t, vm) })
	}
}

func (s *scenario) awaitPinned(t *testing.T, vm *v1alpha1.VirtualMachine) v1alpha1.PinnedImage {
	t.Helper()
	current := &v1alpha1.VirtualMachine{}
	require.True(t, getObject(t, vm.Namespace, vm.Name, current))
	require.NotNil(t, current.Status.Pinned)
	return *current.Status.Pinned
}

func (s *scenario) createSnapshot(t *testing.T, ns, name string) *snapshotv1.VolumeSnapshot {
	t.Helper()
	snap := &snapshotv1.VolumeSnapshot{}
	require.True(t, getObject(t, ns, name, snap), "VolumeSnapshot %s", name)
	return snap
}

// awaitNewSnapshot waits until an image serves another snapshot, and returns its name.
func (s *scenario) awaitNewSnapshot(t *testing.T, img *v1alpha1.VMDiskImage, than string) (name string) {
	t.Helper()
	s.awaitWithAgent(t, img.Name+" to have another snapshot", func() bool {
		if sv := readServing(t, img); sv != nil {
			name = sv.VolumeSnapshot
		}
		return name != "" && name != than
	})
	return name
}

func (s *scenario) awaitWithAgent(t *testing.T, what string, holds func() bool) {
	t.Helper()
	s.AwaitCondition(t, what, holds, func() string { return s.describeSituation(t) })
}

// reportedWrites is how many of the last writes describeSituation lists.
const reportedWrites = 12

// describeSituation returns the leader, the agent's last writes, and all objects, for a
// scenario that is stuck.
func (s *scenario) describeSituation(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "the Lease is held by: %q\n", program.AgentLeaseHolder(t.Context(), env.Client()))
	if s.Agent() != nil {
		writes := s.Agent().Proxy.Writes()
		fmt.Fprintf(&text, "the agent is gone: %t; its last writes of %d:\n", s.Agent().HasEnded(), len(writes))
		for _, w := range writes[max(0, len(writes)-reportedWrites):] {
			fmt.Fprintf(&text, "  %s: %d\n", w, w.Status)
		}
	}
	for _, of := range []struct {
		ns   string
		list client.ObjectList
	}{
		{program.AgentNamespace, &v1alpha1.SyncLedgerList{}},
		{s.namespace, &v1alpha1.VMDiskImageList{}}, {s.namespace, &v1alpha1.VirtualMachineList{}},
		{s.namespace, &cdiv1.DataVolumeList{}}, {s.namespace, &corev1.PersistentVolumeClaimList{}}, {s.namespace, &snapshotv1.VolumeSnapshotList{}},
	} {
		for _, o := range listObjects(t, of.ns, of.list) {
			o.SetManagedFields(nil)
			content, err := json.Marshal(o)
			if err != nil {
				content = []byte(err.Error())
			}
			fmt.Fprintf(&text, "%T %s: %s\n", o, o.GetName(), content)
		}
	}
	return text.String()
}

// isIrrelevantStep matches writes of ledger and report, which suites/crash covers, and
// replacements of Secrets, of which any number are identical.
func isIrrelevantStep(s faults.Step) bool {
	return s.Kind() == "put secrets" || strings.Contains(s.Kind(), "syncledgers") || strings.Contains(s.Kind(), "clusterreports")
}

func stepOf(w faults.Write) faults.Step {
	resource, name, status := w.Target()
	switch {
	case resource == "virtualmachines" && status:
		return vmStatusStep(w.Body)
	case resource == "vmdiskimages" && status:
		return imageStatusStep(w.Body)
	case resource == "vmdiskimages" && w.Method == "PATCH":
		if strings.Contains(string(w.Body), v1alpha1.FinalizerImage) {
			return faults.Step("add finalizer: " + name)
		}
		return faults.Step("remove finalizer: " + name)
	case w.Method == "POST":
		var created struct{ Metadata struct{ Name string } }
		_ = json.Unmarshal(w.Body, &created)
		name = created.Metadata.Name
	}
	return faults.Step(strings.ToLower(w.Method) + " " + resource + ": " + faults.ChildRole(name))
}

// vmStatusWrite returns the VM whose status a write stores; nil for none.
func vmStatusWrite(w faults.Write) *v1alpha1.VirtualMachine {
	resource, _, status := w.Target()
	vm := &v1alpha1.VirtualMachine{}
	if resource != "virtualmachines" || !status || json.Unmarshal(w.Body, vm) != nil {
		return nil
	}
	return vm
}

// imageStatusWrite returns the image whose status a write stores; nil for none.
func imageStatusWrite(w faults.Write) *v1alpha1.VMDiskImage {
	resource, _, status := w.Target()
	img := &v1alpha1.VMDiskImage{}
	if resource != "vmdiskimages" || !status || json.Unmarshal(w.Body, img) != nil {
		return nil
	}
	return img
}

// vmStatusStep names the state that a status write gives a VM.
func vmStatusStep(body []byte) faults.Step {
	var vm v1alpha1.VirtualMachine
	_ = json.Unmarshal(body, &vm)
	p, text := vm.Status.Pinned, ""
	switch {
	case p == nil:
		text = fmt.Sprintf("store VM with nothing pinned: %s %s", vm.Name, vm.Status.Reason)
	case p.AcquiredAt == nil:
		text = fmt.Sprintf("pin: %s %s#%d", vm.Name, p.Name, p.Attempt)
	case vm.Status.RootDisk == nil:
		text = fmt.Sprintf("acquire: %s %s#%d", vm.Name, p.Name, p.Attempt)
	default:
		text = fmt.Sprintf("store VM with root disk: %s %s#%d ready %t, %s", vm.Name, p.Name, p.Attempt, vm.Status.RootDisk.Ready, vm.Status.Reason)
	}
	for _, disk := range vm.Status.Disks {
		text += fmt.Sprintf(", disk %s pinned %t acquired %t", disk.Name, disk.Pinned != nil, disk.Pinned != nil && disk.Pinned.AcquiredAt != nil)
	}
	return faults.Step(text)
}

// imageStatusStep names the state that a status write gives an image.
func imageStatusStep(body []byte) faults.Step {
	var img v1alpha1.VMDiskImage
	_ = json.Unmarshal(body, &img)
	st := img.Status
	kind := fmt.Sprintf("store %s image", st.Phase)
	if st.TearDown {
		kind = "tear down image"
	}
	text := fmt.Sprintf("%s: %s %s held %d", kind, img.Name, st.Reason, min(st.References.Count, 1))
	return faults.Step(text + faults.DescribeAttempts(&st))
}
