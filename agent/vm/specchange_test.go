package vm_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestSpecChangeAppliesOrNeedsRestart(t *testing.T) {
	run := func(w *world) string {
		s, _, _ := unstructured.NestedString(w.KubeVirtVM.Object, "spec", "runStrategy")
		return s
	}
	t.Run("waits while an instance runs", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		w.VM.Spec.Version, w.VM.Generation = "2", 2
		w.reconcile()
		w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		assert.True(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
		assert.Nil(t, w.lastDecision.ApplyKubeVirtVM)

		w.setKubeVirtStatus("Stopping", map[string]any{"created": true}).reconcile()
		require.NotNil(t, w.lastDecision.ApplyKubeVirtVM, "the next instance gets it")
		assert.Equal(t, "11", w.lastDecision.ApplyKubeVirtVM.GetResourceVersion())
		assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
	})
	t.Run("reverted change needs no restart", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		w.VM.Spec.Version = "2"
		w.reconcile()
		w.VM.Spec.Version = ""
		w.reconcile()
		assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
	})
	t.Run("run strategy is changed anyway", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		w.VM.Spec.Version, w.VM.Spec.RunStrategy = "2", "Halted"
		w.reconcile()
		assert.Equal(t, v1alpha1.RunStrategy("Halted"), w.lastDecision.RunStrategy)
		assert.Nil(t, w.lastDecision.ApplyKubeVirtVM)
		assert.Empty(t, w.reconcile().RunStrategy)
	})
	t.Run("run strategy alone is applied", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		w.VM.Spec.RunStrategy = "Halted"
		assert.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Equal(t, "Halted", run(w))
	})
	t.Run("run strategy of others is kept", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		require.Equal(t, "Always", run(w))
		require.NoError(t, unstructured.SetNestedField(w.KubeVirtVM.Object, "Halted", "spec", "runStrategy"))
		w.setKubeVirtStatus("Stopped", nil)
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM, "virtctl stop")
		w.VM.Spec.Version = "2"
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Equal(t, "Halted", run(w))
	})
	t.Run("drift is reverted", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		require.NoError(t, unstructured.SetNestedField(w.KubeVirtVM.Object, int64(7), "spec", "template", "spec", "domain", "cpu", "cores"))
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Nil(t, w.reconcile().ApplyKubeVirtVM)
	})
	t.Run("drift of the cloud-init Secret is reverted", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		desired := w.cloudInitSecret.DeepCopy()
		w.cloudInitSecret.Data["userdata"] = []byte("#!/bin/sh")
		assert.Equal(t, desired, w.reconcile().ApplySecret)
	})
	t.Run("ignoreOnDeploy leaves it as it is", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		w.VM.Spec.IgnoreOnDeploy, w.VM.Spec.Version = true, "2"
		w.reconcile()
		w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
		assert.Nil(t, w.lastDecision.ApplyKubeVirtVM)
	})
	t.Run("deleted KubeVirt VirtualMachine is created again", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		w.KubeVirtVM = nil
		require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		assert.Empty(t, w.lastDecision.ApplyKubeVirtVM.GetResourceVersion())
		assert.Equal(t, "Always", run(w))
	})
}

func TestPinChangesOnlyBeforeClone(t *testing.T) {
	t.Run("newer revision before it is acquired", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withPin(goldenImage(1), false)
		w.Image = goldenImage(2)
		w.Pinned = w.Image
		d := w.decide()
		assert.True(t, d.StoreStatusFirst)
		assert.EqualValues(t, 2, d.Status.Pinned.Attempt)
	})
	t.Run("older revision once it is acquired", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withPin(goldenImage(1), true)
		w.Image = goldenImage(2)
		w.Pinned = w.Image
		w.reconcile()
		assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
		require.NotEmpty(t, w.lastDecision.CreateDisks)
		assert.Equal(t, "golden-1", w.lastDecision.CreateDisks[0].Spec.Source.PVC.Name)
	})
	t.Run("newer revision if the older is gone", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withPin(goldenImage(1), true)
		w.Image, w.sourceExists = goldenImage(2), false
		w.Pinned = w.Image
		d := w.decide()
		assert.True(t, d.StoreStatusFirst)
		assert.EqualValues(t, 2, d.Status.Pinned.Attempt)
		assert.Nil(t, d.Status.Pinned.AcquiredAt)
	})
	t.Run("nothing if the image was recreated", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withPin(goldenImage(1), true)
		w.Image, w.Pinned = goldenImage(1), nil
		w.Image.UID, w.Image.Status.Serving = "uid-of-next", nil
		w.reconcile()
		assert.Nil(t, w.VM.Status.Pinned)
	})
	t.Run("nothing with ignoreOnDeploy", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").IgnoredOnDeploy()).withPin(goldenImage(1), true)
		w.reconcile()
		assert.Nil(t, w.VM.Status.Pinned)
		assert.True(t, w.hasCondition(v1alpha1.ConditionImageAcquired), "its reference holds the image")
	})
	t.Run("nothing else until the disk of another revision is deleted", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.CloneInProgress)
		disk := w.DataVolume
		w.withPin(goldenImage(2), false).DataVolume = disk
		d := w.decide()
		assert.NotEmpty(t, d.DeleteDisks)
		assert.Nil(t, d.Status.Pinned.AcquiredAt)
	})
	t.Run("source of a claim without DataVolume", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
		w.Claim = rootDiskClaim(w.DataVolume, corev1.ClaimBound)
		w.DataVolume, w.Claim.OwnerReferences = nil, nil
		w.Image, w.sourceExists = goldenImage(2), false
		w.Pinned = w.Image
		w.reconcile()
		assert.EqualValues(t, 1, w.VM.Status.Pinned.Attempt)
	})
	for name, change := range map[string]func(*world){
		"another image": func(w *world) {
			w.VM.Spec.VMDiskImageRef.Name = "next"
			w.Image = apitest.Image("ns/next").WithStatus(v1alpha1.VMDiskImageStatus{Phase: v1alpha1.PhaseSucceeded, Serving: servingStatus("next", 1)}).Obj()
		},
		"missing image":  func(w *world) { w.VM.Spec.VMDiskImageRef.Name, w.Image = "next", nil },
		"ignoreOnDeploy": func(w *world) { w.VM.Spec.IgnoreOnDeploy = true },
		"missing source": func(w *world) { w.Image, w.sourceExists = goldenImage(2), false },
	} {
		t.Run("source of the running clone until that is deleted: "+name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.CloneInProgress)
			pin := w.VM.Status.Pinned.DeepCopy()
			change(w)
			d := w.decide()
			assert.NotEmpty(t, d.DeleteDisks)
			assert.Equal(t, pin, d.Status.Pinned)

			w.DataVolume.Status.Phase = cdiv1.Succeeded // it completes before that
			w.reconcile()
			assert.Equal(t, pin, w.VM.Status.Pinned, "the machine runs from this source")
			assert.Empty(t, w.lastDecision.DeleteDisks)
		})
	}
}

// TestTakenOverPinIsKept: after a change of the leader, a request of the former one may still clone
// what is pinned.
func TestTakenOverPinIsKept(t *testing.T) {
	next := func(w *world) {
		w.VM.Spec.VMDiskImageRef.Name = "next"
		w.Image = apitest.Image("ns/next").WithStatus(v1alpha1.VMDiskImageStatus{Phase: v1alpha1.PhaseSucceeded, Serving: servingStatus("next", 1)}).Obj()
	}
	for name, tt := range map[string]struct {
		acquired, sourceGone bool
		change               func(*world)
		wantKept             bool
		wantMessage          string
	}{
		"another image":               {true, false, next, true, "changes: waiting up to a minute, because a request of the agent that ran before may still clone VMDiskImage ns/golden"},
		"another image, source gone":  {true, true, next, false, ""},
		"another image, not acquired": {false, false, next, false, ""},
		"a missing image":             {true, false, func(w *world) { w.VM.Spec.VMDiskImageRef.Name, w.Image = "next", nil }, true, "ns/next"},
		"ignoreOnDeploy":              {true, false, func(w *world) { w.VM.Spec.IgnoreOnDeploy = true }, true, "ignoreOnDeploy"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withPin(goldenImage(1), tt.acquired)
			w.sourceExists, w.LateWrites = !tt.sourceGone, 20*time.Second
			tt.change(w)
			pin := w.VM.Status.Pinned.DeepCopy()
			d := w.decide()
			if !tt.wantKept {
				assert.True(t, d.StoreStatusFirst)
				assert.NotEqual(t, pin, d.Status.Pinned)
				return
			}
			assert.Equal(t, pin, d.Status.Pinned)
			assert.Empty(t, d.CreateDisks)
			assert.Equal(t, 20*time.Second, d.RequeueAfter)
			assert.Contains(t, d.Status.Message, tt.wantMessage)

			w.LateWrites = 0
			d = w.decide()
			assert.True(t, d.StoreStatusFirst)
			assert.NotEqual(t, pin, d.Status.Pinned)
		})
	}
}

func TestDifferingImageIsReported(t *testing.T) {
	messageIfTrue := func(w *world, condition string) string {
		c := meta.FindStatusCondition(w.VM.Status.Conditions, condition)
		if c.Status != "True" {
			return ""
		}
		return c.Message
	}
	template := apitest.Image("ns/golden").Obj().Spec
	t.Run("template", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithTemplate(template))
		w.Image = goldenImage(1)
		w.reconcile()
		assert.Empty(t, messageIfTrue(w, v1alpha1.ConditionImageDiffers))
		w.Image.Spec.URL, w.Image.Spec.StorageClass = "https://elsewhere.example.com/x", "fast"
		w.reconcile()
		assert.Contains(t, messageIfTrue(w, v1alpha1.ConditionImageDiffers), "another url, storageClass")
	})
	t.Run("template, field by field", func(t *testing.T) {
		for field, spec := range apitest.SpecVariants(template) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithTemplate(template))
			w.Image = goldenImage(1)
			w.Image.Spec = spec
			w.reconcile()
			if slices.Contains([]string{"name", "priority", "deleteUnreferencedAfter"}, field) {
				assert.Empty(t, messageIfTrue(w, v1alpha1.ConditionImageDiffers), "%s says nothing of the content", field)
			} else {
				assert.Contains(t, messageIfTrue(w, v1alpha1.ConditionImageDiffers), "another "+field)
			}
		}
	})
	t.Run("disk smaller than its image", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithResources("1", "1Gi", "512Mi"))
		w.Image = goldenImage(1)
		w.reconcile()
		assert.Contains(t, messageIfTrue(w, v1alpha1.ConditionSpecAdjusted), "the root disk has 1Gi")
		assert.Equal(t, "1Gi", w.VM.Status.RootDisk.Size.String())
	})
	t.Run("disk that is not grown", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithResources("1", "1Gi", "2Gi")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
		w.VM.Spec.Resources.DiskSize = ptr.To(resource.MustParse("4Gi"))
		w.reconcile()
		assert.Contains(t, messageIfTrue(w, v1alpha1.ConditionSpecAdjusted), "has 2Gi and is not grown")
	})
	t.Run("disk of an image that is gone, beside a larger one of its name", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithResources("1", "1Gi", "2Gi")).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
		w.Pinned, w.Image.UID = nil, "another"
		w.Image.Status.Serving.DiskSize, w.Image.Spec.DiskSize = ptr.To(resource.MustParse("3Gi")), resource.MustParse("3Gi")
		w.reconcile()
		assert.NotContains(t, messageIfTrue(w, v1alpha1.ConditionSpecAdjusted), "3Gi")
	})
	t.Run("image other than the disk's", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
		w.VM.Spec.VMDiskImageRef.Name, w.Image = "next", nil
		w.reconcile()
		assert.Contains(t, messageIfTrue(w, v1alpha1.ConditionSpecAdjusted), "cloned from VMDiskImage ns/golden and stays")
	})
	t.Run("passwords", func(t *testing.T) {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithUsers(v1alpha1.User{Name: "ann", PlainTextPasswd: "secret"}, v1alpha1.User{Name: "bob"}))
		w.reconcile()
		assert.Contains(t, messageIfTrue(w, v1alpha1.ConditionPlainTextPassword), "password of ann: use")
	})
}

func TestRefusalIsWrittenToStatus(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
	w.Image = goldenImage(1)
	for range 2 {
		w.VM.Status = w.decide().Status
		w.Pinned = w.Image
	}
	refuse := func() {
		d := w.decide()
		require.NotEmpty(t, d.CreateDisks)
		d.SetRefused(1, w.Now, v1alpha1.ReasonRootDiskRefused, "the root disk", errors.New(strings.Repeat("exceeded quota ", 1000)))
		w.VM.Status, w.lastDecision = d.Status, d
	}
	refuse()
	w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonRootDiskRefused, "the API server refused the root disk: exceeded quota")
	assert.Less(t, len(w.VM.Status.Message), 1000)
	assert.Equal(t, 30*time.Second, w.lastDecision.RequeueAfter)
	assert.Nil(t, w.VM.Status.RootDisk)
	assert.False(t, w.hasCondition(v1alpha1.ConditionMachineCreated), "the rest was not attempted")
	assert.Equal(t, v1alpha1.ReasonNotCreated, meta.FindStatusCondition(w.VM.Status.Conditions, v1alpha1.ConditionRootDiskReady).Reason)

	stored := w.VM.Status
	w.Now = w.Now.Add(30 * time.Second)
	refuse()
	assert.Equal(t, stored, w.VM.Status, "the status does not change again")

	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk)
}
