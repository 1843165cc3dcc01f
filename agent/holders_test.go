//go:build linux

package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// holderRecorder lists holders live, and calls a function before.
type holderRecorder struct {
	imageHolders
	mu sync.Mutex
	// atLive is called before every live list.
	atLive func()
}

func (h *holderRecorder) listHolders(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
	h.mu.Lock()
	atLive := h.atLive
	h.mu.Unlock()
	if live && atLive != nil {
		atLive()
	}
	return h.listLive(ctx, img)
}

func (h *holderRecorder) beforeLiveList(do func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.atLive = do
}

// provisioningVM returns a VirtualMachine that names an image and creates no KubeVirt VM.
func provisioningVM(ns, name string, img *v1alpha1.VMDiskImage) *v1alpha1.VirtualMachine {
	vm := testenv.NewMachine(ns, name, img)
	vm.Spec.IgnoreOnDeploy = true
	return vm
}

func hasRootDisk(vm *v1alpha1.VirtualMachine) bool {
	return vm.Status.RootDisk != nil && vm.Status.RootDisk.Ready && vm.Status.Pinned != nil && vm.Status.Pinned.AcquiredAt != nil
}

// TestHeldImageIsNotDeleted judges the agent's reads and deletions: CDI and storage are simulated, and
// garbage collection is the cluster's own. Of real CDI, the same is shown by the workspaces suite:
// TestDeletedImageServesUntilReleased, TestOrphanedDiskHoldsItsImage, TestImageNamespaceDeleted.
func TestHeldImageIsNotDeleted(t *testing.T) {
	s, err := testenv.Start(t.Context(), member.Options{
		Name: "held", InstantImporter: true, InstantSnapshots: true, InstantImportDuration: 100 * time.Millisecond,
		Controllers: []string{"garbage-collector-controller", "namespace-controller"},
		// No controller removes that plugin's finalizers.
		APIServerArgs: []string{"--disable-admission-plugins=StorageObjectInUseProtection"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	s.InstantImporter().AllowFinishes(100)
	c := &holderRecorder{imageHolders: imageHolders{live: s.Client(), disks: s.Client(), isServed: func(kind schema.GroupVersionKind) bool { return kind == image.DataVolumeGVK }}}

	cfg, err := s.ControlPlane.ServiceAccountConfig(t.Context(), program.AgentNamespace, "ot-agent")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	mgr, err := newManager(ctx, cfg, options{Options: startup.Options{
		Namespace: program.AgentNamespace, Policy: types.NamespacedName{Namespace: program.PolicyNamespace, Name: program.PolicyName},
		MetricsAddress: "0", HealthAddress: "0", PprofAddress: "0",
	}}, c.listHolders)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() { stop(); assert.NoError(t, <-done) })

	t.Run("a held image serves until its last holder is gone", func(t *testing.T) {
		ns := s.CreateNamespace(t)
		img := s.NewSnapshottedImage(ns, "image", "/ok/100ms/image.qcow2")
		holder := provisioningVM(ns, "vm-1", img)
		s.Create(t, img, holder)
		ready := s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
		assert.EqualValues(t, 1, ready.Status.References.Count)
		assert.Equal(t, []string{ns + "/vm-1"}, ready.Status.References.Holders)
		assert.Nil(t, ready.Status.References.UnreferencedSince)

		require.NoError(t, s.Client().Delete(t.Context(), img))
		held := s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
		assert.Equal(t, v1alpha1.ReasonReferenced, held.Status.Reason)
		assert.Contains(t, held.Status.Message, ns+"/vm-1")
		assert.NotNil(t, held.Status.Serving)
		dv := &cdiv1.DataVolume{}
		require.NoError(t, s.Client().Get(t.Context(), types.NamespacedName{Namespace: ns, Name: held.Status.Serving.PersistentVolumeClaim}, dv))
		assert.Nil(t, dv.DeletionTimestamp)

		require.NoError(t, s.Client().Delete(t.Context(), holder))
		s.AwaitGone(t, img)
		s.AwaitGone(t, dv)
	})

	t.Run("an image that a VirtualMachine waits for is imported although it is being deleted", func(t *testing.T) {
		s.SetPolicy(t, map[string]string{"concurrency": "0"})
		ns := s.CreateNamespace(t)
		img := s.NewImage(ns, "image", "/ok/100ms/image.qcow2")
		holder := provisioningVM(ns, "vm-1", img)
		s.Create(t, holder, img)
		// Its place is stored before its finalizer.
		s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.Reason == v1alpha1.ReasonPaused && slices.Contains(img.Finalizers, v1alpha1.FinalizerImage)
		})
		require.NoError(t, s.Client().Delete(t.Context(), img))
		s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
		s.SetPolicy(t, map[string]string{"concurrency": "1"})
		s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return img.Status.Serving != nil })
		require.NoError(t, s.Client().Delete(t.Context(), holder))
		s.AwaitGone(t, img)
	})

	t.Run("Deleting is stored before holders are listed, and a new holder is seen", func(t *testing.T) {
		ns := s.CreateNamespace(t)
		img := s.NewImage(ns, "image", "/ok/100ms/image.qcow2")
		holder := provisioningVM(ns, "late", img)
		s.Create(t, img)
		s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
		var mu sync.Mutex
		marks := map[v1alpha1.Phase]bool{}
		var once sync.Once
		c.beforeLiveList(func() {
			now := &v1alpha1.VMDiskImage{}
			if s.Client().Get(context.Background(), client.ObjectKeyFromObject(img), now) == nil {
				mu.Lock()
				marks[now.Status.Phase] = true
				mu.Unlock()
			}
			once.Do(func() { _ = s.Client().Create(context.Background(), holder) })
		})
		require.NoError(t, s.Client().Delete(t.Context(), img))
		held := s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
		c.beforeLiveList(nil)
		mu.Lock()
		assert.Equal(t, map[v1alpha1.Phase]bool{v1alpha1.PhaseDeleting: true}, marks, "phase when the holders were listed")
		mu.Unlock()
		assert.NotNil(t, held.Status.Serving, "nothing was deleted")
		require.NoError(t, s.Client().Delete(t.Context(), holder))
		s.AwaitGone(t, img)
	})

	t.Run("a pinned revision stays until its VirtualMachine is gone", func(t *testing.T) {
		for name, make := range map[string]func(ns, name, path string) *v1alpha1.VMDiskImage{"claim": s.NewImage, "snapshot": s.NewSnapshottedImage} {
			t.Run(name, func(t *testing.T) {
				ns := s.CreateNamespace(t)
				img := make(ns, "image", "/ok/100ms/image.qcow2")
				first, second := testenv.NewMachine(ns, "first", img), testenv.NewMachine(ns, "second", img)
				s.Create(t, img, first)
				pin := *s.AwaitMachine(t, first, hasRootDisk).Status.Pinned
				s.Update(t, img, func() { img.Spec.URL += "?another" })
				s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
					return img.Status.Phase == v1alpha1.PhaseSucceeded && img.Status.Serving.Attempt > pin.Attempt && strings.Contains(img.Status.Message, ns+"/first")
				})
				s.Create(t, second)
				newer := *s.AwaitMachine(t, second, hasRootDisk).Status.Pinned
				assert.Greater(t, newer.Attempt, pin.Attempt)
				assert.Equal(t, pin, *s.AwaitMachine(t, first, hasRootDisk).Status.Pinned)
				objectsOf := func(pin v1alpha1.PinnedImage) []client.Object {
					objects := []client.Object{
						&cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pin.PersistentVolumeClaim}},
						&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pin.PersistentVolumeClaim}},
					}
					if pin.VolumeSnapshot != "" {
						objects = append(objects, &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pin.VolumeSnapshot}})
					}
					return objects
				}
				for _, o := range append(objectsOf(pin), objectsOf(newer)...) {
					require.NoError(t, s.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o))
					assert.Nil(t, o.GetDeletionTimestamp(), "%T %s", o, o.GetName())
				}
				require.NoError(t, s.Client().Delete(t.Context(), first))
				for _, o := range objectsOf(pin) {
					s.AwaitGone(t, o)
				}
				for _, o := range objectsOf(newer) {
					require.NoError(t, s.Client().Get(t.Context(), client.ObjectKeyFromObject(o), o))
					assert.Nil(t, o.GetDeletionTimestamp(), "%T %s", o, o.GetName())
				}
			})
		}
	})

	t.Run("an orphaned disk holds its image, and what it was cloned from", func(t *testing.T) {
		ns, farm := s.CreateNamespace(t), s.CreateNamespace(t)
		img := s.NewImage(farm, "image", "/ok/100ms/image.qcow2")
		machine := testenv.NewMachine(ns, "vm", img)
		s.Create(t, img, machine)
		pin := *s.AwaitMachine(t, machine, hasRootDisk).Status.Pinned
		require.NoError(t, s.Client().Delete(t.Context(), machine, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		s.AwaitGone(t, machine)
		s.Update(t, img, func() { img.Spec.URL += "?another" })
		s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.Phase == v1alpha1.PhaseSucceeded && img.Status.Serving.Attempt > pin.Attempt && strings.Contains(img.Status.Message, "(orphaned disk)")
		})
		require.NoError(t, s.Client().Delete(t.Context(), img))
		held := s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
		assert.Equal(t, []string{ns + "/vm-root (orphaned disk)"}, held.Status.References.Holders)
		assert.Contains(t, held.Status.Message, "delete its DataVolume and PersistentVolumeClaim if nothing uses it")

		// A claim that KubeVirt makes for a clone of the machine keeps labels and annotations.
		restored := &corev1.PersistentVolumeClaim{}
		require.NoError(t, s.Client().Get(t.Context(), types.NamespacedName{Namespace: ns, Name: "vm-root"}, restored))
		restored.ObjectMeta = metav1.ObjectMeta{Namespace: ns, Name: "clone-root", Labels: restored.Labels, Annotations: map[string]string{
			v1alpha1.AnnotationClonedFrom: restored.Annotations[v1alpha1.AnnotationClonedFrom], "restore.kubevirt.io/name": "clone",
		}}
		restored.Spec.VolumeName, restored.Spec.DataSource, restored.Spec.DataSourceRef = "", nil, nil
		s.Create(t, restored)
		source := &corev1.PersistentVolumeClaim{}
		require.NoError(t, s.Client().Get(t.Context(), types.NamespacedName{Namespace: farm, Name: pin.PersistentVolumeClaim}, source))
		assert.Nil(t, source.DeletionTimestamp)

		disk := metav1.ObjectMeta{Namespace: ns, Name: "vm-root"}
		require.NoError(t, s.Client().Delete(t.Context(), &cdiv1.DataVolume{ObjectMeta: disk}, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		s.AwaitGone(t, &cdiv1.DataVolume{ObjectMeta: disk})
		s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
		require.NoError(t, s.Client().Delete(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: disk}))
		s.AwaitGone(t, img)
	})

	t.Run("a held image is deleted with its namespace", func(t *testing.T) {
		ns, other := s.CreateNamespace(t), s.CreateNamespace(t)
		img := s.NewImage(ns, "image", "/ok/100ms/image.qcow2")
		s.Create(t, img, provisioningVM(other, "vm", img))
		s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
		require.NoError(t, s.Client().Delete(t.Context(), img))
		s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseTerminating))
		require.NoError(t, s.Client().Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		s.AwaitGone(t, img)
	})

	t.Run("an image that is unreferenced for long enough is deleted", func(t *testing.T) {
		ns := s.CreateNamespace(t)
		img := s.NewImage(ns, "image", "/ok/100ms/image.qcow2")
		img.Spec.DeleteUnreferencedAfter = &metav1.Duration{Duration: time.Hour}
		holder := provisioningVM(ns, "vm", img)
		s.Create(t, img, holder)
		setUnreferencedLongAgo := func() {
			require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
				now := s.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
				at := metav1.NewTime(time.Now().Add(-2 * time.Hour))
				now.Status.References.UnreferencedSince = &at
				return s.Client().Status().Update(t.Context(), now)
			}))
		}
		setUnreferencedLongAgo()
		s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return img.Status.References.UnreferencedSince == nil })
		require.NoError(t, s.Client().Delete(t.Context(), holder))
		s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return img.Status.References.UnreferencedSince != nil })
		setUnreferencedLongAgo()
		s.AwaitGone(t, img)
		s.AwaitEvent(t, img, "Unreferenced", "spec.deleteUnreferencedAfter, 1h0m0s")
	})
}
