package kubevirt

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// nestedOverlay returns an overlay of objects in objects.
func nestedOverlay(levels, keyBytes int) string {
	return strings.Repeat(`{"`+strings.Repeat("a", keyBytes)+`":`, levels) + "1" + strings.Repeat("}", levels)
}

// allocatedBytes returns what a function allocates, garbage included.
func allocatedBytes(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestOverlayBeyondItsLimitsIsRefusedBeforeItIsDecoded(t *testing.T) {
	for name, tt := range map[string]struct{ overlay, wantErr string }{
		"deep and large": {nestedOverlay(4500, 100), "overlay has 472501 bytes, and at most 65536 are allowed"},
		"deep":           {nestedOverlay(5000, 1), "overlay has more than 64 levels of objects and lists"},
		"lists":          {`{"template":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + "}", "overlay has more than 64 levels"},
		"large":          {`{"template":{"a":"` + strings.Repeat("a", maxOverlayBytes) + `"}}`, "at most 65536 are allowed"},
		"braces in text": {`{"template":{"spec":{"nodeSelector":{"a":"` + strings.Repeat(`{\"[`, 100) + `"}}}}`, ""},
		"deepest":        {`{"template":{"metadata":` + nestedOverlay(62, 1) + "}}", "the result is no valid KubeVirt VirtualMachine"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := apitest.VirtualMachine("ns", "vm").WithOverlay(tt.overlay).Obj()
			machine.Spec.Architecture = v1alpha1.ArchitectureAMD64
			allocated := allocatedBytes(func() {
				_, err := BuildVirtualMachine(machine, cloudinit.Config{})
				if tt.wantErr == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tt.wantErr)
				}
				assert.Equal(t, v1alpha1.ArchitectureAMD64, RequestedArchitecture(machine))
			})
			assert.Less(t, allocated, uint64(4<<20))
		})
	}
}

func TestCheckingDirectivesNeedsMemoryInProportionToTheOverlay(t *testing.T) {
	value := map[string]any{}
	for range 5000 {
		value = map[string]any{strings.Repeat("a", 100): value}
	}
	wide := map[string]any{}
	for i := range 5000 {
		wide[strconv.Itoa(i)] = "a"
	}
	allocated := allocatedBytes(func() {
		require.NoError(t, checkDirectives(value, &overlayPath{key: "spec"}, false))
		require.NoError(t, checkDirectives(map[string]any{strings.Repeat("a", 10_000): wide}, &overlayPath{key: "spec"}, false))
	})
	assert.Less(t, allocated, uint64(4<<20))
}
