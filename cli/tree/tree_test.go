package tree_test

import (
	"fmt"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	"github.com/pelotech/ot-fleet/cli/tree"
	"github.com/pelotech/ot-fleet/cli/why"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-d))) }

func rollingOut() *v1alpha1.FleetDiskImage {
	return observed(apitest.FleetDiskImage("ubuntu").WithVersion("2.1.0").WithStatus(v1alpha1.FleetDiskImageStatus{
		Phase: v1alpha1.RolloutProgressing, Reason: v1alpha1.ReasonMaxConcurrency, CurrentWave: "production",
		Versions: []v1alpha1.VersionStatus{{Version: "2.1.0", Namespace: "vmdi-farm", Image: "ubuntu-2.1.0"}},
		Clusters: v1alpha1.ClusterCounts{Total: 8, Succeeded: 4, Progressing: 1, ToApply: 1, Failed: 1, Deferred: 1},
		Waves: []v1alpha1.WaveStatus{
			{Name: "canary", Clusters: v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}, DoneAt: ago(4 * time.Hour)},
			{Name: "production", Clusters: v1alpha1.ClusterCounts{Total: 5, Succeeded: 2, Progressing: 1, ToApply: 1, Failed: 1}},
			{Name: v1alpha1.WaveRest, Clusters: v1alpha1.ClusterCounts{Total: 1, Deferred: 1}},
		},
	}).Obj())
}

func observed(image *v1alpha1.FleetDiskImage) *v1alpha1.FleetDiskImage {
	image.Status.ObservedGeneration = image.Generation
	return image
}

// Right after a publish the status is of the version before: it says nothing of this one.
func TestStatusOfFormerSpecIsNotShown(t *testing.T) {
	published := rollingOut()
	published.Generation++
	assert.Equal(t, &tree.Node{Kind: "FleetDiskImage", Name: "ubuntu", Version: "2.1.0", State: tree.Waiting, Words: "unprocessed"}, tree.NewRollout(tree.RolloutSnapshot{Now: now, Image: published}))
}

func TestRollout(t *testing.T) {
	s := tree.RolloutSnapshot{Now: now, Image: rollingOut(), Clusters: []tree.RolloutCluster{
		{Cluster: "bergen", Wave: "canary", State: v1alpha1.ClusterSucceeded}, {Cluster: "kiel", Wave: "canary", State: v1alpha1.ClusterSucceeded},
		{Cluster: "aarhus", Wave: "production", State: v1alpha1.ClusterSucceeded}, {Cluster: "bremen", Wave: "production", State: v1alpha1.ClusterSucceeded},
		{Cluster: "frankfurt", Wave: "production", State: v1alpha1.ClusterProgressing}, {Cluster: "oslo", Wave: "production", State: v1alpha1.ClusterToApply},
		{Cluster: "lab", Wave: "production", State: v1alpha1.ClusterFailed, Reason: "NotFound", Message: `the source answered "404 Not Found"`},
		{Cluster: "edge-3", Wave: "rest", State: v1alpha1.ClusterDeferred, Message: "silent for 2h"},
	}}
	view := tree.New(now, tree.NewRollout(s), "", 0)
	rendertest.Golden(t, "rollout", now, view)
	assert.Equal(t, exit.NotYet, view.ExitCode())
	s.All = true
	rendertest.Golden(t, "rollout-all", now, tree.New(now, tree.NewRollout(s), "", 2))
	s.Clusters = nil
	rendertest.Golden(t, "rollout-of-kinds", now, tree.New(now, tree.NewRollout(s), "The clusters are counted only.", 0))
}

func TestExitCodes(t *testing.T) {
	for name, test := range map[string]struct {
		status   v1alpha1.FleetDiskImageStatus
		wantCode exit.Code
	}{
		"new":               {wantCode: exit.NotYet},
		"in progress":       {status: v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing}, wantCode: exit.NotYet},
		"offline":           {status: v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonOfflineClusters}, wantCode: exit.Unknown},
		"done":              {status: v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutSucceeded}},
		"failed":            {status: v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutFailed}, wantCode: exit.No},
		"awaiting approval": {status: v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval}, wantCode: exit.Held},
		"stalled":           {status: v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutWaiting, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}}, wantCode: exit.No},
	} {
		t.Run(name, func(t *testing.T) {
			image := observed(apitest.FleetDiskImage("a").WithStatus(test.status).Obj())
			assert.Equal(t, test.wantCode, tree.New(now, tree.NewRollout(tree.RolloutSnapshot{Now: now, Image: image}), "", 0).ExitCode())
		})
	}
}

func labels(revision string) map[string]string {
	return map[string]string{v1alpha1.LabelRevision: revision}
}

func newClaim(name, revision string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(revision)},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("gp3")},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("24Gi")}},
	}
}

func newImage() *v1alpha1.VMDiskImage {
	img := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: "vmdi-farm", Name: "ubuntu-22"}}
	img.Spec.DiskSize = resource.MustParse("24Gi")
	img.Status = v1alpha1.VMDiskImageStatus{
		Phase: v1alpha1.PhaseSyncing, Reason: "Importing", Progress: "81%", Revision: "9f3c", Serving: &v1alpha1.Serving{Revision: "1b77"},
		References: v1alpha1.References{Count: 7, Holders: []string{"workspace-7/desk-1", "workspace-9/build-1"}},
	}
	return img
}

func TestImage(t *testing.T) {
	s := tree.ImageSnapshot{
		Now: now, Image: newImage(),
		DataVolumes: []cdiv1.DataVolume{
			{ObjectMeta: metav1.ObjectMeta{Name: "vmdi-ubuntu-22-9f3c-1", Labels: labels("9f3c")}, Status: cdiv1.DataVolumeStatus{Phase: cdiv1.ImportInProgress, Progress: "81.0%"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "vmdi-ubuntu-22-1b77-1", Labels: labels("1b77")}, Status: cdiv1.DataVolumeStatus{Phase: cdiv1.Succeeded}},
		},
		Claims:    []corev1.PersistentVolumeClaim{newClaim("vmdi-ubuntu-22-1b77-1", "1b77"), newClaim("left-over", "0000")},
		Snapshots: []snapshotv1.VolumeSnapshot{{ObjectMeta: metav1.ObjectMeta{Name: "vmdi-ubuntu-22-1b77-1", Labels: labels("1b77")}, Spec: snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: ptr.To("ebs-snapshot")}, Status: &snapshotv1.VolumeSnapshotStatus{ReadyToUse: ptr.To(true)}}},
		Pods:      []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "importer-prime-1", Labels: labels("9f3c")}, Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ago(90 * time.Second)}}},
		Machines: []v1alpha1.VirtualMachine{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "workspace-9", Name: "build-1"},
			Status:     v1alpha1.VirtualMachineStatus{Phase: v1alpha1.MachineReady, PrintableStatus: "Stopped", Pinned: &v1alpha1.PinnedImage{Revision: "0000"}},
		}},
	}
	rendertest.Golden(t, "image", now, tree.New(now, tree.NewImage(s), "", 0))
	unused := newImage()
	unused.Status.References = v1alpha1.References{UnreferencedSince: ago(94 * 24 * time.Hour)}
	rendertest.Golden(t, "image-unused", now, tree.New(now, tree.NewImage(tree.ImageSnapshot{Now: now, Image: unused}), "", 0))
}

func TestMachine(t *testing.T) {
	m := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "workspace-7", Name: "desk-2"}}
	m.Spec.VMDiskImageRef = v1alpha1.ImageReference{Namespace: "vmdi-farm", Name: "ubuntu-22"}
	m.Status = v1alpha1.VirtualMachineStatus{Phase: v1alpha1.MachineProvisioning, Reason: "WaitingForImage", Message: "the image is imported"}
	rendertest.Golden(t, "machine-waits", now, tree.New(now, tree.NewMachine(tree.MachineSnapshot{Now: now, Machine: m, Image: newImage()}), "", 0))

	m.Status = v1alpha1.VirtualMachineStatus{Phase: v1alpha1.MachineReady, Reason: "Running", PrintableStatus: "Running"}
	s := tree.MachineSnapshot{
		Now: now, Machine: m,
		DataVolumes: []cdiv1.DataVolume{
			{ObjectMeta: metav1.ObjectMeta{Name: "desk-2"}, Status: cdiv1.DataVolumeStatus{Phase: cdiv1.Succeeded}},
			{ObjectMeta: metav1.ObjectMeta{Name: "desk-2-data", Labels: map[string]string{v1alpha1.LabelDisk: "data"}}, Status: cdiv1.DataVolumeStatus{Phase: cdiv1.Failed}},
		},
		Claims:   []corev1.PersistentVolumeClaim{newClaim("desk-2", "")},
		KubeVirt: &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "desk-2"}, Status: kubevirtv1.VirtualMachineStatus{PrintableStatus: kubevirtv1.VirtualMachineStatusRunning}},
		Instance: &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "desk-2"}, Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: kubevirtv1.Running, NodeName: "node-3"}},
		Pods:     []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "virt-launcher-desk-2"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ago(9 * 24 * time.Hour)}}},
	}
	rendertest.Golden(t, "machine-runs", now, tree.New(now, tree.NewMachine(s), "", 0))
}

// A wave of a thousand clusters is a few lines.
func TestAlikeIsOneLine(t *testing.T) {
	s := tree.RolloutSnapshot{Now: now, Image: rollingOut()}
	for i := range 1000 {
		s.Clusters = append(s.Clusters, tree.RolloutCluster{Cluster: fmt.Sprintf("c-%d", i), Wave: "production", State: v1alpha1.ClusterSucceeded})
	}
	root := tree.NewRollout(s)
	assert.Len(t, root.Children[1].Children, 1)
	assert.Equal(t, 1000, root.Children[1].Children[0].Count)
}

// TestExitCodesAreThoseOfWhy: a script that goes on with 3 ends where an image or a machine waits for a person.
func TestExitCodesAreThoseOfWhy(t *testing.T) {
	for name, test := range map[string]struct {
		image     v1alpha1.VMDiskImageStatus
		machine   v1alpha1.VirtualMachineStatus
		wantState tree.State
		wantCode  exit.Code
		// of the machine
		wantMachineState tree.State
		wantMachineCode  exit.Code
	}{
		"new":               {wantState: tree.Waiting, wantCode: exit.NotYet, wantMachineState: tree.Waiting, wantMachineCode: exit.NotYet},
		"in the queue":      {image: imageStatus(v1alpha1.PhaseQueued, v1alpha1.ReasonWaitingForSlot), wantState: tree.Waiting, wantCode: exit.NotYet, wantMachineState: tree.Waiting, wantMachineCode: exit.NotYet},
		"imports":           {image: imageStatus(v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting), wantState: tree.Running, wantCode: exit.NotYet, wantMachineState: tree.Waiting, wantMachineCode: exit.NotYet},
		"no policy":         {image: imageStatus(v1alpha1.PhaseQueued, v1alpha1.ReasonPolicyMissing), wantState: tree.Attention, wantCode: exit.Held, wantMachineState: tree.Attention, wantMachineCode: exit.Held},
		"no storage":        {image: imageStatus(v1alpha1.PhaseQueued, v1alpha1.ReasonInsufficientStorage), wantState: tree.Attention, wantCode: exit.Held, wantMachineState: tree.Attention, wantMachineCode: exit.Held},
		"paused":            {image: imageStatus(v1alpha1.PhaseQueued, v1alpha1.ReasonPaused), wantState: tree.Attention, wantCode: exit.Held, wantMachineState: tree.Attention, wantMachineCode: exit.Held},
		"stalled":           {image: stalled(imageStatus(v1alpha1.PhaseQueued, v1alpha1.ReasonPublishing)), wantState: tree.Attention, wantCode: exit.Held, wantMachineState: tree.Attention, wantMachineCode: exit.Held},
		"being pruned":      {image: imageStatus(v1alpha1.PhasePrunePending, v1alpha1.ReasonUndoWindow), wantState: tree.Attention, wantCode: exit.Yes, wantMachineState: tree.Waiting, wantMachineCode: exit.NotYet},
		"failed":            {image: imageStatus(v1alpha1.PhaseFailed, v1alpha1.ReasonNotFound), wantState: tree.Failed, wantCode: exit.No, wantMachineState: tree.Failed, wantMachineCode: exit.No},
		"ready":             {image: imageStatus(v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady), machine: machineStatus(v1alpha1.MachineReady, v1alpha1.ConditionReady), wantState: tree.Done, wantCode: exit.Yes, wantMachineState: tree.Done, wantMachineCode: exit.Yes},
		"a stalled machine": {image: imageStatus(v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady), machine: machineStatus(v1alpha1.MachineProvisioning, v1alpha1.ConditionStalled), wantState: tree.Done, wantCode: exit.Yes, wantMachineState: tree.Attention, wantMachineCode: exit.Held},
		"a failed machine":  {image: imageStatus(v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady), machine: machineStatus(v1alpha1.MachineFailed, v1alpha1.ConditionStalled), wantState: tree.Done, wantCode: exit.Yes, wantMachineState: tree.Failed, wantMachineCode: exit.No},
	} {
		t.Run(name, func(t *testing.T) {
			image, machine := newImage(), &v1alpha1.VirtualMachine{Status: test.machine}
			image.Status = test.image
			ofImage := tree.New(now, tree.NewImage(tree.ImageSnapshot{Now: now, Image: image}), "", 0)
			assert.Equal(t, test.wantState, ofImage.Root.State)
			assert.Equal(t, test.wantCode, ofImage.ExitCode())
			ofMachine := tree.New(now, tree.NewMachine(tree.MachineSnapshot{Now: now, Machine: machine, Image: image}), "", 0)
			assert.Equal(t, test.wantMachineState, ofMachine.Root.State)
			assert.Equal(t, test.wantMachineCode, ofMachine.ExitCode())
			explained := why.Member{Now: now, Images: []v1alpha1.VMDiskImage{*image}}.OfImage(image.Namespace, image.Name)
			assert.Equal(t, why.NewImage(explained).ExitCode(), ofImage.ExitCode())
			assert.Equal(t, why.NewMachine(why.MachineSnapshot{Now: now, Machine: machine, Image: &explained}).ExitCode(), ofMachine.ExitCode())
		})
	}
}

func imageStatus(phase v1alpha1.Phase, reason v1alpha1.Reason) v1alpha1.VMDiskImageStatus {
	return v1alpha1.VMDiskImageStatus{Phase: phase, Reason: reason}
}

func stalled(status v1alpha1.VMDiskImageStatus) v1alpha1.VMDiskImageStatus {
	status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}
	return status
}

func machineStatus(phase v1alpha1.MachinePhase, condition string) v1alpha1.VirtualMachineStatus {
	return v1alpha1.VirtualMachineStatus{Phase: phase, Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue}}}
}
