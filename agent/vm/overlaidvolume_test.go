package vm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestVolumeOfOverlayFollowsIt: its author migrates it there.
func TestVolumeOfOverlayFollowsIt(t *testing.T) {
	overlay := func(dataVolume string) string {
		return `{"updateVolumesStrategy":"Migration","template":{"spec":{"domain":{"devices":{"disks":[{"name":"data","disk":{"bus":"virtio"}}]}},"volumes":[{"name":"data","dataVolume":{"name":"` + dataVolume + `"}}]}}}`
	}
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm").WithOverlay(overlay("slow")))
	require.Equal(t, "slow", w.volumeSource("data"))
	w.VM.Spec.Overlay.Raw = []byte(overlay("fast"))
	w.setKubeVirtStatus("Stopped", nil)
	require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
	assert.Equal(t, "fast", w.volumeSource("data"))
}

// TestDiskThatOverlayAndKubeVirtName: an overlay that names another disk than the machine's own is followed. One
// that names the own disk, or none, leaves a disk that was migrated: it may have said so all along, and
// the guest starts with a disk of before. Only the KubeVirt VirtualMachine returns it.
func TestDiskThatOverlayAndKubeVirtName(t *testing.T) {
	for _, tt := range []struct{ events, want string }{
		// The overlay names the own disk, or none, and KubeVirt migrates.
		{"kubevirt fast", "fast"},
		{"overlay own, stop, start, kubevirt fast", "fast"},
		{"overlay own claim, stop, start, kubevirt fast", "fast"},
		{"overlay own, stop, start, kubevirt fast, strategy removed", "fast"},
		{"overlay own, stop, start, kubevirt fast, strategy removed, own deleted, upgrade", "fast"},
		{"overlay own, stop, start, kubevirt fast, strategy removed, own deleted, upgrade, stop", "fast"},
		{"overlay own, stop, start, kubevirt fast, strategy removed, version, stop, start", "fast"},
		{"overlay own claim, stop, start, kubevirt fast, strategy removed, version, stop, start", "fast"},
		{"overlay own, stop, kubevirt fast, start", "fast"},
		{"overlay own, stop, start, kubevirt fast, kubevirt own, stop", "own"},
		// The overlay is changed to the own disk: whether before or after, nobody can tell.
		{"kubevirt fast, overlay own, stop", "fast"},
		{"agent away, overlay own, kubevirt fast, agent back, stop", "fast"},
		// The overlay names another disk.
		{"overlay fast", "own"}, // the machine runs
		{"overlay fast, stop", "fast"},
		{"overlay fast, stop, overlay other", "other"},
		{"overlay fast claim, stop, overlay other", "other"},
		{"kubevirt fast, overlay other, stop", "other"},
		{"overlay fast, stop, start, kubevirt own", "fast"},
		// The overlay has migrated, and names the own disk, or none.
		{"overlay fast, stop, overlay none", "fast"},
		{"overlay fast, stop, overlay own", "fast"},
		{"overlay fast, stop, start, overlay own, own deleted, stop, start", "fast"},
		{"overlay fast claim, stop, start, overlay none, stop, start", "fast"},
		{"overlay fast, stop, overlay fast without strategy, overlay own without strategy, overlay none", "fast"},
		// So a disk is returned that the overlay has migrated.
		{"overlay fast, stop, start, overlay none, kubevirt own", "own"},
		{"overlay fast, stop, start, overlay none, kubevirt own, stop, start", "own"},
		{"overlay fast, stop, start, overlay own, kubevirt own, stop, start", "own"},
		{"overlay fast, stop, start, overlay own, stop, start, kubevirt own, strategy removed, version, stop", "own"},
		{"overlay fast, stop, overlay none, kubevirt own", "own"},
	} {
		for _, volume := range []string{"root", "scratch"} {
			t.Run(volume+": "+tt.events, func(t *testing.T) {
				w := &overlayWorld{world: newRunningDisksWorld(t), volume: volume, own: "vm-root"}
				if volume != "root" {
					w.own = kubevirt.DataDiskName(w.VM, volume)
				}
				for event := range strings.SplitSeq(tt.events, ", ") {
					w.do(event)
				}
				want := strings.ReplaceAll(tt.want, "own", w.own)
				require.Equal(t, want, w.volumeSource(volume))
				require.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing is left to apply")
				assert.Equal(t, want != w.own, strings.Contains(w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "is PersistentVolumeClaim "+want+", which is kept"))
			})
		}
	}
}

// overlayWorld has the events of TestDiskThatOverlayAndKubeVirtName.
type overlayWorld struct {
	*world
	volume, own string
	agentIsAway bool
}

func (w *overlayWorld) do(event string) {
	switch what, disk, _ := strings.Cut(event, " "); what {
	case "overlay":
		w.VM.Spec.Overlay = overlayOf(w.volume, w.own, disk)
	case "kubevirt":
		w.migrateVolume(w.volume, strings.ReplaceAll(disk, "own", w.own))
	case "strategy": // removed
		unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...)
	case "own": // deleted
		if w.volume == "root" {
			w.DataVolume, w.Claim = nil, nil
		} else {
			w.removeDataVolume(w.volume)
		}
	case "agent":
		w.agentIsAway = disk == "away"
	case "upgrade":
		w.setAnnotation(v1alpha1.AnnotationAppliedDigest, "of the former agent")
	case "version":
		w.VM.Spec.Version += "1"
	case "stop":
		w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Always"})
	case "start":
		w.setKubeVirtStatus("Running", map[string]any{"created": true, "ready": true, "runStrategy": "Always"})
	default:
		require.Fail(w.t, "unknown event", event)
	}
	for range 3 {
		if !w.agentIsAway {
			require.Empty(w.t, w.reconcile().CreateDisks, "the guest would lose its disk")
		}
	}
}

// overlayOf returns the overlay that names a disk for a volume; with updateVolumesStrategy Migration, where disk
// does not end in "without strategy".
func overlayOf(volume, own, disk string) *runtime.RawExtension {
	if disk == "none" {
		return nil
	}
	strategy := `"updateVolumesStrategy":"Migration",`
	disk, isWithout := strings.CutSuffix(disk, " without strategy")
	if isWithout {
		strategy = ""
	}
	disk, isClaim := strings.CutSuffix(strings.ReplaceAll(disk, "own", own), " claim")
	source := fmt.Sprintf(`"dataVolume":{"name":%q}`, disk)
	if isClaim {
		source = fmt.Sprintf(`"dataVolume":null,"persistentVolumeClaim":{"claimName":%q}`, disk)
	}
	return &runtime.RawExtension{Raw: fmt.Appendf(nil, `{%s"template":{"spec":{"volumes":[{"name":%q,%s}]}}}`, strategy, volume, source)}
}

// TestAdviceReturnsDiskWithItsData: KubeVirt copies while the machine runs, and the overlay must not undo that.
func TestAdviceReturnsDiskWithItsData(t *testing.T) {
	const advice = "have volume root of the KubeVirt VirtualMachine name DataVolume vm-root again with spec.updateVolumesStrategy Migration while the machine runs; while it is stopped KubeVirt copies nothing, and the guest would start with the data of before)"
	for overlay, want := range map[string]string{
		"none": "(to return, " + advice, "own": "(to return, " + advice, "own claim": "(to return, " + advice,
		"fast": "(to return, remove volume root from spec.overlay, then " + advice, "fast claim": "(to return, remove volume root from spec.overlay, then " + advice,
	} {
		t.Run(overlay, func(t *testing.T) {
			w := &overlayWorld{world: newRunningDisksWorld(t), volume: "root", own: "vm-root"}
			for _, event := range []string{"overlay " + overlay, "stop", "start", "kubevirt fast"} {
				w.do(event)
			}
			assert.Contains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), want)
			if strings.Contains(want, "remove volume") {
				w.do("overlay none")
				assert.True(t, w.hasCondition(v1alpha1.ConditionRestartRequired))
			}
			w.do("kubevirt own")
			assert.Equal(t, "vm-root", w.volumeSource("root"), "KubeVirt copies to it")
			w.do("stop")
			assert.Equal(t, "vm-root", w.volumeSource("root"))
			assert.NotContains(t, w.conditionMessage(v1alpha1.ConditionSpecAdjusted), "migrates volumes")
		})
	}
}

// TestOverlayOfOtherFieldsKeepsMigratedVolume: it names no disk, so it returns none.
func TestOverlayOfOtherFieldsKeepsMigratedVolume(t *testing.T) {
	w := newRunningWorld(t, apitest.VirtualMachine("ns", "vm").WithOverlay(`{"template":{"spec":{"volumes":[{"name":"root","dataVolume":{"hotpluggable":false}}]}}}`))
	w.migrateVolume("root", "fast")
	w.reconcile()
	unstructured.RemoveNestedField(w.KubeVirtVM.Object, strategyPath...)
	w.VM.Spec.Version = "2"
	w.setKubeVirtStatus("Stopped", nil)
	for range 3 {
		w.reconcile()
	}
	assert.Equal(t, "fast", w.volumeSource("root"))
}
