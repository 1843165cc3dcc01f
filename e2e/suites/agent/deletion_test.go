//go:build linux

package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestDeletedImageLeavesNothing wants an image to be deleted with all of its objects and its
// slot to be freed, in whatever state and by whatever kind of delete. Each run takes its
// share of the cases.
func TestDeletedImageLeavesNothing(t *testing.T) {
	foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
	forced := client.GracePeriodSeconds(0)
	type deletion struct {
		name    string
		path    string
		change  func(*v1alpha1.VMDiskImage)
		until   func(*testing.T, *v1alpha1.VMDiskImage)
		options []client.DeleteOption
	}
	for _, tt := range testenv.SweepShare([]deletion{
		{name: "while queued", path: "/ok/a", change: setPaused, until: awaitReasonStep(v1alpha1.ReasonStorageClassMissing)},
		{name: "while importing", path: "/hang/a", until: awaitImportingStep},
		{name: "while importing, foreground", path: "/hang/a", until: awaitImportingStep, options: []client.DeleteOption{foreground}},
		{name: "while importing, by force", path: "/hang/a", until: awaitImportingStep, options: []client.DeleteOption{forced}},
		{name: "while importing into local storage", path: "/hang/a", change: useLocalClass, until: awaitImportingStep},
		{name: "before CDI has created anything", path: "/hang/a", until: func(*testing.T, *v1alpha1.VMDiskImage) {}},
		{name: "while snapshotting", path: "/ok/100ms/a", change: useNeverReadySnapshots, until: awaitReasonStep(v1alpha1.ReasonSnapshotting)},
		{name: "while snapshotting, foreground", path: "/ok/100ms/a", change: useNeverReadySnapshots, until: awaitReasonStep(v1alpha1.ReasonSnapshotting), options: []client.DeleteOption{foreground}},
		{name: "failed", path: "/notfound/100ms/a", until: awaitPhaseStep(v1alpha1.PhaseFailed)},
		{name: "backing off", path: "/servererror/100ms/a", until: awaitReasonStep(v1alpha1.ReasonBackingOff)},
		{name: "succeeded", path: "/ok/100ms/a", until: awaitPhaseStep(v1alpha1.PhaseSucceeded)},
		{name: "succeeded, foreground", path: "/ok/100ms/a", until: awaitPhaseStep(v1alpha1.PhaseSucceeded), options: []client.DeleteOption{foreground}},
		{name: "succeeded, by force", path: "/ok/100ms/a", until: awaitPhaseStep(v1alpha1.PhaseSucceeded), options: []client.DeleteOption{forced}},
	}) {
		t.Run(tt.name, func(t *testing.T) {
			history := observeUnderPolicy(t, "concurrency", "1", "retryBackoffDuration", "1h")
			ns := env.CreateHomeNamespace(t)
			img := env.NewSnapshottedImage(ns, "image", tt.path)
			if tt.change != nil {
				tt.change(img)
			}
			env.Create(t, img)
			tt.until(t, img)
			require.NoError(t, env.Client().Delete(t.Context(), img, tt.options...))
			env.AwaitGone(t, img.DeepCopy())
			awaitNothingStored(t, ns)
			require.True(t, testenv.AwaitCondition(t, func() bool { return len(slotsForUID(t, img.UID)) == 0 }))

			next := env.NewImage(ns, "next", "/ok/0s/a")
			env.Create(t, next)
			env.AwaitSucceeded(t, next)
			assert.LessOrEqual(t, history().Attempts(img.UID), 1)
		})
	}
}

func setPaused(img *v1alpha1.VMDiskImage) { img.Spec.StorageClass = "none-of-this-name" }
func useLocalClass(img *v1alpha1.VMDiskImage) {
	img.Spec.StorageClass = simulator.ClassLocal
	img.Spec.SnapshotClass = ""
}
func useNeverReadySnapshots(img *v1alpha1.VMDiskImage) {
	img.Spec.SnapshotClass = simulator.SnapshotClassNever
}

func awaitImportingStep(t *testing.T, img *v1alpha1.VMDiskImage) { env.AwaitImporting(t, img) }

func awaitReasonStep(r v1alpha1.Reason) func(*testing.T, *v1alpha1.VMDiskImage) {
	return func(t *testing.T, img *v1alpha1.VMDiskImage) { env.AwaitImage(t, img, testenv.HasReason(r)) }
}

func awaitPhaseStep(p v1alpha1.Phase) func(*testing.T, *v1alpha1.VMDiskImage) {
	return func(t *testing.T, img *v1alpha1.VMDiskImage) { env.AwaitImage(t, img, testenv.InPhase(p)) }
}

// TestForegroundDeletionTakesNoChildren deletes an image in the foreground while no agent
// runs: with owner references, the garbage collector would delete the storage.
func TestForegroundDeletionTakesNoChildren(t *testing.T) {
	testenv.RunInTurn(t, 27)
	env.SetPolicy(t, testenv.NewPolicy())
	ns := env.CreateHomeNamespace(t)
	img := env.ImportImage(t, env.NewSnapshottedImage(ns, "image", "/ok/100ms/a"))
	// CDI deletes importer and prime claim some time after the import.
	var before []string
	require.True(t, testenv.AwaitCondition(t, func() bool {
		before = listStored(t, ns)
		kinds := map[string]int{}
		for _, name := range before {
			kind, _, _ := strings.Cut(name, "/")
			kinds[kind]++
		}
		return kinds["PersistentVolumeClaim"] == 1 && kinds["PersistentVolume"] == 1 && kinds["Pod"] == 0
	}), "objects of the import are left: %v", &before)
	env.WithoutAgent(t, func() {
		require.NoError(t, env.Client().Delete(t.Context(), img, client.PropagationPolicy(metav1.DeletePropagationForeground)))
		env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return assert.ObjectsAreEqual([]string{v1alpha1.FinalizerImage}, img.Finalizers)
		})
		assert.ElementsMatch(t, before, listStored(t, ns))
	})
	env.AwaitGone(t, img.DeepCopy())
	awaitNothingStored(t, ns)
}

// removeFinalizers deletes an image and its finalizers, as a person may.
func removeFinalizers(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(env.Client().Delete(t.Context(), img)))
	require.NoError(t, client.IgnoreNotFound(env.Client().Patch(t.Context(), img, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
	env.AwaitGone(t, img.DeepCopy())
}

// releaseImage deletes an image and removes the agent's finalizer, where another one keeps the image.
func releaseImage(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also for the cleanup
	setFinalizers := func(list string) {
		require.NoError(t, client.IgnoreNotFound(env.Client().Patch(ctx, img, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":`+list+`}}`)))))
	}
	setFinalizers(`["example.com/hold","` + v1alpha1.FinalizerImage + `"]`)
	t.Cleanup(func() { setFinalizers("null") })
	require.NoError(t, env.Client().Delete(t.Context(), img))
	setFinalizers(`["example.com/hold"]`)
}

// awaitReleased waits until the image says what keeps it. Before, the agent may have begun to delete it.
func awaitReleased(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	env.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Phase == v1alpha1.PhaseDeleting && strings.Contains(img.Status.Message, "example.com/hold")
	})
}

func TestImageDeletedWithoutFinalizer(t *testing.T) {
	testenv.RunInTurn(t, 15)
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, img *v1alpha1.VMDiskImage)
	}{
		{"while the agent runs", removeFinalizers},
		{"while no agent runs", func(t *testing.T, img *v1alpha1.VMDiskImage) {
			env.WithoutAgent(t, func() { removeFinalizers(t, img) })
		}},
		{"while another finalizer keeps it", func(t *testing.T, img *v1alpha1.VMDiskImage) {
			releaseImage(t, img)
			awaitReleased(t, img)
		}},
		{"while another finalizer keeps it and no agent runs", func(t *testing.T, img *v1alpha1.VMDiskImage) {
			env.WithoutAgent(t, func() { releaseImage(t, img) })
			awaitReleased(t, img)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			history := observeUnderPolicy(t, "concurrency", "1")
			img := createImage(t, "/hang/a")
			env.AwaitImporting(t, img)
			next := env.NewImage(env.CreateHomeNamespace(t), "next", "/ok/0s/a")
			env.Create(t, next)
			tt.do(t, img)
			awaitNothingStored(t, img.Namespace)
			env.AwaitSucceeded(t, next)
			require.True(t, testenv.AwaitCondition(t, func() bool { return len(env.Ledger(t).Status.Slots) == 0 }))
			assert.Equal(t, 1, history().Attempts(img.UID))
		})
	}
}

// TestRecreatedImageTakesNothingOver wants an image to use nothing that a former image of its
// name has left.
func TestRecreatedImageTakesNothingOver(t *testing.T) {
	testenv.RunInTurn(t, 12)
	for _, tt := range []struct {
		name string
		path string
		until,
		remove func(*testing.T, *v1alpha1.VMDiskImage)
	}{
		{"while importing", "/hang/a", awaitImportingStep, func(t *testing.T, img *v1alpha1.VMDiskImage) {
			require.NoError(t, env.Client().Delete(t.Context(), img))
		}},
		{"when succeeded", "/ok/100ms/a", awaitPhaseStep(v1alpha1.PhaseSucceeded), func(t *testing.T, img *v1alpha1.VMDiskImage) {
			require.NoError(t, env.Client().Delete(t.Context(), img))
		}},
		{"without its finalizer", "/hang/a", awaitImportingStep, removeFinalizers},
		{"without its finalizer while no agent runs", "/hang/a", awaitImportingStep, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			history := observeUnderPolicy(t, "concurrency", "1")
			ns := env.CreateHomeNamespace(t)
			old := env.NewSnapshottedImage(ns, "image", tt.path)
			env.Create(t, old)
			tt.until(t, old)
			again := env.NewSnapshottedImage(ns, "image", "/ok/200ms/b")
			create := func() {
				require.True(t, testenv.AwaitCondition(t, func() bool { return env.Client().Create(t.Context(), again) == nil }))
			}
			if tt.remove == nil {
				env.WithoutAgent(t, func() { removeFinalizers(t, old); create() })
			} else {
				tt.remove(t, old)
				create()
			}
			got := env.AwaitSucceeded(t, again)
			require.NotEqual(t, old.UID, again.UID)
			h := history()
			assert.Equal(t, 1, h.Attempts(old.UID))
			assert.Equal(t, 1, h.Attempts(again.UID))
			require.True(t, testenv.AwaitCondition(t, func() bool { return len(env.ListDataVolumes(t, old)) == 0 }))
			for _, s := range h.Creations() {
				if s.Image == again.UID {
					assert.Equal(t, ns+"/"+got.Status.Serving.PersistentVolumeClaim, s.DataVolume)
				}
			}
		})
	}
}

func TestSameNameInTwoNamespaces(t *testing.T) {
	testenv.RunInTurn(t, 21)
	history := observeUnderPolicy(t)
	first, second := env.NewSnapshottedImage(env.CreateHomeNamespace(t), "image", "/ok/200ms/a"), env.NewSnapshottedImage(env.CreateHomeNamespace(t), "image", "/ok/200ms/b")
	env.Create(t, first, second)
	firstReady, secondReady := env.AwaitSucceeded(t, first), env.AwaitSucceeded(t, second)
	assert.NotEqual(t, firstReady.Status.Serving.PersistentVolumeClaim, secondReady.Status.Serving.PersistentVolumeClaim)

	require.NoError(t, env.Client().Delete(t.Context(), first))
	env.AwaitGone(t, first.DeepCopy())
	awaitNothingStored(t, first.Namespace)
	env.AwaitSucceeded(t, second)
	assert.Len(t, env.ListDataVolumes(t, second), 1)
	assert.Len(t, listSnapshots(t, second), 1)
	h := history()
	assert.Equal(t, 1, h.Attempts(first.UID))
	assert.Equal(t, 1, h.Attempts(second.UID))
}

// TestLongAndUnusualNames wants valid and distinct names for the children of any image.
func TestLongAndUnusualNames(t *testing.T) {
	testenv.RunInTurn(t, 9)
	history := observeUnderPolicy(t, "concurrency", "8")
	ns := env.CreateHomeNamespace(t)
	long := strings.Repeat("a", 250)
	var images []*v1alpha1.VMDiskImage
	for _, name := range []string{
		long + "bcd",
		long + "bce", // differs in the last character only
		strings.Repeat("a.", 126) + "a",
		"ubuntu-24.04.1-server.qcow2",
		"lab-404", "0", "importer-prime-1",
		"a" + strings.Repeat("-", 100) + "z",
	} {
		for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
			img := env.NewImage(ns, name, "/ok/100ms/"+class)
			img.Spec.StorageClass = class
			if class == simulator.ClassLocal {
				if len(name) > 251 {
					continue
				}
				img.Name = name + ".l"
			} else {
				img.Spec.SnapshotClass = simulator.SnapshotClass
			}
			images = append(images, img)
			env.Create(t, img)
		}
	}
	for _, img := range images {
		env.AwaitSucceeded(t, img)
		dvs := env.ListDataVolumes(t, img)
		require.Len(t, dvs, 1, "%s", img.Name)
		assert.Empty(t, validation.IsDNS1123Label(dvs[0].Name))
		for key, value := range dvs[0].Labels {
			assert.Empty(t, validation.IsValidLabelValue(value), "label %s", key)
		}
		assert.Equal(t, img.Name, dvs[0].Annotations[v1alpha1.AnnotationImageName])
	}
	h := history()
	for _, img := range images {
		assert.Equal(t, 1, h.Attempts(img.UID), "%s", img.Name)
	}
}

func TestStatusCodeInNameIsIgnored(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("retryLimit", "0"))
	ns := env.CreateHomeNamespace(t)
	img := env.NewImage(ns, "lab-404", "/servererror/100ms/lab-404/expected-status-code-200-got-404.qcow2")
	env.Create(t, img)
	env.AwaitFailed(t, img, v1alpha1.ReasonImportFailed)
}
