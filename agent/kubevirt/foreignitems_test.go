package kubevirt_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestReplacingClaimCopiesNoVolumes: each decision about a machine asks for it many times per disk.
func TestReplacingClaimCopiesNoVolumes(t *testing.T) {
	allocations := func(disks int) float64 {
		volumes := []any{map[string]any{"name": "root", "dataVolume": map[string]any{"name": "fast"}}}
		for i := range disks {
			volumes = append(volumes, map[string]any{"name": fmt.Sprint("disk", i), "dataVolume": map[string]any{"name": "x"}})
		}
		live := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"updateVolumesStrategy": "Migration", "template": map[string]any{"spec": map[string]any{"volumes": volumes}},
		}}}
		return testing.AllocsPerRun(100, func() {
			claim, isMigration := kubevirt.ReplacingClaim(live, "root", "vm-root")
			assert.Equal(t, []any{"fast", true}, []any{claim, isMigration})
		})
	}
	assert.InDelta(t, allocations(1), allocations(16), 1)
}

// TestLongRecordOfMigrationsIsBounded: others may write it, and what is recorded of the machine's disks stays.
func TestLongRecordOfMigrationsIsBounded(t *testing.T) {
	var forged []string
	for i := range 9000 {
		forged = append(forged, fmt.Sprintf("%d=b", i))
	}
	live := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"updateVolumesStrategy": "Migration", "template": map[string]any{"spec": map[string]any{"volumes": []any{
			map[string]any{"name": "root", "dataVolume": map[string]any{"name": "fast"}},
			map[string]any{"name": "scratch", "dataVolume": map[string]any{"name": "faster"}},
		}}},
	}}}
	live.SetAnnotations(map[string]string{v1alpha1.AnnotationMigratedVolumes: strings.Join(forged, ",")})
	machine := apitest.VirtualMachine("ns", "vm").Obj()
	machine.Spec.Disks = []v1alpha1.Disk{{Name: "scratch"}}

	record := kubevirt.UnrecordedMigrations(live, machine)
	records := strings.Split(record, ",")
	require.Len(t, records, 64)
	assert.Subset(t, records, []string{"root=fast", "scratch=faster"})

	live.SetAnnotations(map[string]string{v1alpha1.AnnotationMigratedVolumes: record})
	assert.Empty(t, kubevirt.UnrecordedMigrations(live, machine), "it is recorded once")
	unstructured.RemoveNestedField(live.Object, "spec", "updateVolumesStrategy")
	for volume, want := range map[string]string{"root": "fast", "scratch": "faster"} {
		claim, isMigration := kubevirt.ReplacingClaim(live, volume, "former")
		assert.Equal(t, []any{want, true}, []any{claim, isMigration})
	}
	live.SetAnnotations(map[string]string{v1alpha1.AnnotationMigratedVolumes: strings.Join(append(forged, "root=fast"), ",")})
	_, isMigration := kubevirt.ReplacingClaim(live, "root", "vm-root")
	assert.False(t, isMigration, "each decision reads the first records alone")
}

// TestRecordOfAttachedVolumeStays: beside a restored disk that is detached, and records of others that are first in
// the alphabet.
func TestRecordOfAttachedVolumeStays(t *testing.T) {
	machineWithVolumes := func(annotations map[string]string, volumes ...any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"volumes": volumes}}}}}
		annotations[v1alpha1.AnnotationOverlaid] = "scratch,tools"
		u.SetAnnotations(annotations)
		return u
	}
	var recorded []string
	for i := range 63 {
		recorded = append(recorded, fmt.Sprintf("%d=b", i))
	}
	machine := apitest.VirtualMachine("ns", "vm").Obj()
	machine.Spec.Disks = []v1alpha1.Disk{{Name: "scratch"}}
	machine.Status.Disks = []v1alpha1.DataDisk{{Name: "scratch"}, {Name: "tools"}}
	live := machineWithVolumes(map[string]string{
		v1alpha1.AnnotationMigratedVolumes:   strings.Join(append(recorded, "scratch=faster"), ","),
		"restore.kubevirt.io/lastRestoreUID": "vmrestore-1",
	}, map[string]any{"name": "scratch", "dataVolume": map[string]any{"name": "faster"}},
		map[string]any{"name": "tools", "persistentVolumeClaim": map[string]any{"claimName": "restored"}})
	desired := machineWithVolumes(map[string]string{},
		map[string]any{"name": "scratch", "dataVolume": map[string]any{"name": kubevirt.DataDiskName(machine, "scratch")}})

	kubevirt.PreserveForeignItems(desired, live, machine)
	records := strings.Split(desired.GetAnnotations()[v1alpha1.AnnotationMigratedVolumes], ",")
	require.Len(t, records, 64)
	assert.Subset(t, records, []string{"scratch=faster", "tools=restored"})
}
