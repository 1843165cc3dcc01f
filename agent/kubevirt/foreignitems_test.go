package kubevirt_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
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
