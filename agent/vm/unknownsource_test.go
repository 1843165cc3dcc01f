package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestRootDiskOfUnknownSource: a machine that has lost its status, as by a restored backup, may have a root disk
// that nothing says the source of. It runs on as it was, and its conditions say what they know.
func TestRootDiskOfUnknownSource(t *testing.T) {
	for name, tt := range map[string]struct {
		image           v1alpha1.Architecture
		loseSource      func(*world)
		wantRoot        string
		wantApplied     string // while neither says an architecture, KubeVirt chooses
		wantRootMessage string
	}{
		"elsewhere, the image says one":           {"arm64", migrateRootAndDeleteFormer, "fast", "arm64", "the root disk is PersistentVolumeClaim fast"},
		"elsewhere, neither says one":             {"", migrateRootAndDeleteFormer, "fast", "amd64", "the root disk is PersistentVolumeClaim fast"},
		"a revision that the image no longer has": {"arm64", setForeignSource, "vm-root", "arm64", "DataVolume vm-root has 1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(imageFor(tt.image), cdiv1.Succeeded).withRunningVM()
			w.VM.Spec.Resources.DiskSize = ptr.To(resource.MustParse("1Gi"))
			tt.loseSource(w)
			w.VM.Status = v1alpha1.VirtualMachineStatus{}
			w.refreshPinned()
			for range 3 {
				require.Nil(t, w.reconcile().ApplyKubeVirtVM)
				w.requireState(v1alpha1.MachineReady, v1alpha1.ReasonRunning)
			}
			require.Nil(t, w.VM.Status.Pinned)
			assert.False(t, w.hasCondition(v1alpha1.ConditionImageAcquired))
			assert.Equal(t, "the machine has its root disk, whose source is unknown, and does not need an image", w.conditionMessage(v1alpha1.ConditionImageAcquired))
			assert.Equal(t, tt.wantRootMessage, w.conditionMessage(v1alpha1.ConditionRootDiskReady))
			assert.NotContains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "is not grown")
			assert.False(t, w.hasCondition(v1alpha1.ConditionRestartRequired), w.conditionMessage(v1alpha1.ConditionRestartRequired))

			w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Always"})
			require.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing has changed")
			w.VM.Spec.Version = "2"
			require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
			assert.Equal(t, tt.wantApplied, templateArchitecture(w.KubeVirtVM))
			assert.Equal(t, tt.wantRoot, w.volumeSource("root"))
			require.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing is left to apply")
			w.VM.Spec.Architecture = v1alpha1.ArchitectureS390X
			require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
			assert.Equal(t, "s390x", templateArchitecture(w.KubeVirtVM), "the machine's own wins")
		})
	}
}

func migrateRootAndDeleteFormer(w *world) {
	w.migrateVolume("root", "fast")
	w.reconcile()
	w.DataVolume, w.Claim = nil, nil
}

func setForeignSource(w *world) {
	w.DataVolume.Annotations[v1alpha1.AnnotationClonedFrom] = "uid-of-other/rev-9/9/other"
}
