//go:build linux

// Package acquire has machines and images come and go in every order, with
// agents killed before and after their writes, frozen past their lease, and kept
// from news. The judge is the observer.
package acquire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/pelotech/ot-fleet/agent/machine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/binaries"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/observer"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

var place *scene.Scene

// CDI, storage and the collector of garbage are played, and of KubeVirt there is
// the kind: what counts here is what the agent writes, and when.
func TestMain(m *testing.M) {
	scene.Main(m, &place, member.Options{
		Name: "acquire", Instant: true, InstantSnapshots: true, InstantTakes: 100 * time.Millisecond, Prepare: kubeVirtKinds,
		// Nobody would remove its finalizers.
		APIServerArgs: []string{"--disable-admission-plugins=StorageObjectInUseProtection"},
		LogDir:        os.Getenv("OT_FLEET_LOG_DIR"),
	}, false)
}

func kubeVirtKinds(ctx context.Context, cfg *rest.Config) error {
	paths, err := binaries.Ensure(ctx, binaries.KubeVirt)
	if err != nil {
		return err
	}
	text, err := exec.CommandContext(ctx, paths[binaries.KubeVirt], "-print-crds").Output()
	if err != nil {
		return fmt.Errorf("printing KubeVirt's kinds: %w", err)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		err := decoder.Decode(crd)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading KubeVirt's kinds: %w", err)
		}
		if crd.Spec.Names.Kind == machine.Kind.Kind {
			crds = append(crds, crd)
		}
	}
	_, err = envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{CRDs: crds, MaxTime: scene.Patience, PollInterval: 50 * time.Millisecond})
	return err
}

// long tells whether there is time for everything.
func long() bool { return os.Getenv("OT_FLEET_LONG") != "" }

// begin makes a namespace for a test and has it observed, and garbage collected.
func begin(t *testing.T) (string, *observer.Observer) {
	t.Helper()
	place.StorePolicy(t, map[string]string{"concurrency": "8", "retryLimit": "2", "retryBackoffDuration": "1s"})
	place.Instant().Allow(100)
	ns := place.Namespace(t)
	o := place.Observe(t)
	collectGarbage(t, ns)
	return ns, o
}

// wantKept is the judgement on S2, and on what imports promise.
func wantKept(t *testing.T, o *observer.Observer) {
	t.Helper()
	h := scene.History(t, o)
	assert.Empty(t, h.TakenAway(), "S2")
	assert.Empty(t, h.OverBudget(), "S1")
	assert.Empty(t, h.Reused(), "S4")
	_, err := place.Instant().Finished()
	require.NoError(t, err, "the simulated CDI")
}

// wantEmpty deletes all machines and images of a namespace, and wants nothing to
// stay of them.
func wantEmpty(t *testing.T, ns string, o *observer.Observer, meanwhile func()) {
	t.Helper()
	var (
		machines v1alpha1.VirtualMachineList
		images   v1alpha1.VMDiskImageList
		left     []string
	)
	require.NoError(t, place.Client().List(t.Context(), &images, client.InNamespace(ns)))
	require.NoError(t, place.Client().List(t.Context(), &machines, client.InNamespace(ns)))
	for i := range images.Items {
		remove(t, &images.Items[i])
	}
	for i := range machines.Items {
		remove(t, &machines.Items[i])
	}
	require.True(t, scene.Await(t, func() bool {
		if meanwhile != nil {
			meanwhile()
		}
		left = leftOf(t, ns)
		return len(left) == 0
	}), "left behind: %v", &left)
	assert.Empty(t, scene.History(t, o).Strays())
}

// leftOf is what there is of machines and images in a namespace.
func leftOf(t *testing.T, ns string) []string {
	t.Helper()
	var left []string
	for _, list := range []client.ObjectList{
		&v1alpha1.VirtualMachineList{}, &v1alpha1.VMDiskImageList{}, &cdiv1.DataVolumeList{}, &corev1.PersistentVolumeClaimList{}, &snapshotv1.VolumeSnapshotList{},
	} {
		require.NoError(t, place.Client().List(t.Context(), list, client.InNamespace(ns)))
		left = append(left, namesOf(t, list)...)
	}
	return left
}

func remove(t *testing.T, o client.Object) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(place.Client().Delete(t.Context(), o)))
}

// templated has an image made from a template.
func templated(vm *v1alpha1.VirtualMachine, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	vm.Spec.VMDiskImageTemplate = &img.Spec
	return vm
}

// read reads an object again; false where it does not exist.
func read[T client.Object](t *testing.T, ns, name string, o T) bool {
	t.Helper()
	err := place.Client().Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, o)
	require.NoError(t, client.IgnoreNotFound(err))
	return !apierrors.IsNotFound(err)
}

// runs tells whether KubeVirt has what a machine is to run from: its root disk,
// complete, and its own VirtualMachine. Which one follows is for KubeVirt.
func runs(t *testing.T, vm *v1alpha1.VirtualMachine) bool {
	t.Helper()
	now := &v1alpha1.VirtualMachine{}
	if !read(t, vm.Namespace, vm.Name, now) || now.UID != vm.UID || now.Status.Pinned == nil || now.Status.Pinned.AcquiredAt == nil {
		return false
	}
	disk, theirs := diskOf(t, vm), &unstructuredMachine{}
	theirs.SetGroupVersionKind(machine.Kind)
	return disk != nil && disk.Status.Phase == cdiv1.Succeeded && disk.Annotations[v1alpha1.AnnotationClonedFrom] == machine.ClonedFrom(*now.Status.Pinned) &&
		now.Status.RootDisk != nil && now.Status.RootDisk.Ready &&
		read(t, vm.Namespace, vm.Name, theirs) && theirs.GetLabels()[v1alpha1.LabelMachineUID] == string(vm.UID)
}

// diskOf is the root disk of a machine; nil where it has none.
func diskOf(t *testing.T, vm *v1alpha1.VirtualMachine) *cdiv1.DataVolume {
	t.Helper()
	disk := &cdiv1.DataVolume{}
	if !read(t, vm.Namespace, machine.RootDiskName(vm), disk) || disk.Labels[v1alpha1.LabelMachineUID] != string(vm.UID) {
		return nil
	}
	return disk
}

// serves tells what an image serves, and from which attempt on it is wanted.
func serving(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.Serving {
	t.Helper()
	now := &v1alpha1.VMDiskImage{}
	if !read(t, img.Namespace, img.Name, now) || now.UID != img.UID {
		return nil
	}
	return now.Status.Serving
}

// byHand deletes an object as a person does.
func byHand(t *testing.T, o *observer.Observer, obj client.Object) {
	t.Helper()
	o.ByHand(obj.GetUID())
	remove(t, obj)
}
