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

// TestDiskFollowsOverlayThereAndBack: an overlay migrates the machine's own disks, too, and returns them. One
// that no longer names the disk leaves it where the guest has written.
func TestDiskFollowsOverlayThereAndBack(t *testing.T) {
	const toFast, toFastClaim, toOwn, none = "fast", "claim fast", "own", ""
	for _, tt := range []struct {
		overlays []string // with ! at its end, one has no strategy
		want     []string
	}{
		{[]string{toFast, toFast + "!", toOwn + "!", toOwn, none}, []string{"fast", "fast", "own", "own", "own"}},
		{[]string{toFast, toOwn, toOwn + "!", none}, []string{"fast", "own", "own", "own"}},
		{[]string{toFast, toOwn + "!", toFast}, []string{"fast", "own", "fast"}},
		{[]string{toFastClaim, toOwn, none}, []string{"fast", "own", "own"}},
		{[]string{toFast, none, none}, []string{"fast", "fast", "fast"}},
		{[]string{toFast, toFast + "!", none, toOwn, none}, []string{"fast", "fast", "fast", "own", "own"}},
	} {
		for _, volume := range []string{"root", "scratch"} {
			t.Run(fmt.Sprintf("%s: %q", volume, tt.overlays), func(t *testing.T) {
				w := newRunningDisksWorld(t)
				own := kubevirt.RootDiskName(w.VM)
				if volume != "root" {
					own = kubevirt.DataDiskName(w.VM, volume)
				}
				w.setKubeVirtStatus("Stopped", map[string]any{"runStrategy": "Always"})
				for i, step := range tt.overlays {
					w.VM.Spec.Overlay = overlayOf(volume, own, step)
					for range 3 {
						w.reconcile()
					}
					require.Nil(t, w.reconcile().ApplyKubeVirtVM, "nothing is left to apply")
					want, record := own, ""
					if tt.want[i] == "fast" {
						want, record = "fast", volume+"=fast"
					}
					require.Equal(t, want, w.volumeSource(volume), "after %q", step)
					require.Equal(t, record, w.KubeVirtVM.GetAnnotations()[v1alpha1.AnnotationMigratedVolumes], "after %q", step)
					message := w.conditionMessage(v1alpha1.ConditionSpecAdjusted)
					require.Equal(t, record != "", strings.Contains(message, "KubeVirt migrates volumes"), message)
					if record != "" {
						place := "of spec.overlay name"
						if step == none {
							place = "of the KubeVirt VirtualMachine name"
						}
						require.Contains(t, message, place)
					}
				}
			})
		}
	}
}

// overlayOf returns the overlay of a step of TestDiskFollowsOverlayThereAndBack.
func overlayOf(volume, own, step string) *runtime.RawExtension {
	source := map[string]string{
		"fast": `"dataVolume":{"name":"fast"}`, "claim fast": `"dataVolume":null,"persistentVolumeClaim":{"claimName":"fast"}`,
		"own": fmt.Sprintf(`"dataVolume":{"name":%q}`, own),
	}
	strategy := `"updateVolumesStrategy":"Migration",`
	if last := len(step) - 1; last > 0 && step[last] == '!' {
		step, strategy = step[:last], ""
	}
	if step == "" {
		return nil
	}
	return &runtime.RawExtension{Raw: []byte(fmt.Sprintf(`{%s"template":{"spec":{"volumes":[{"name":%q,%s}]}}}`, strategy, volume, source[step]))}
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
