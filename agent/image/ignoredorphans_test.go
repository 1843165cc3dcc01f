package image_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Anyone who may create claims can make one look like an orphaned disk, so a person decides about those.
func TestOrphanedDisksAreIgnoredByNamespace(t *testing.T) {
	const disk = "tenant/x-root (orphaned disk)"
	for name, tt := range map[string]struct {
		ignored  string
		holder   image.Holder
		wantHeld bool
	}{
		"nobody has said anything": {"", image.Holder{Name: disk, OrphanedDisk: true}, true},
		"its namespace":            {"other,tenant", image.Holder{Name: disk, OrphanedDisk: true}, false},
		"all namespaces":           {"*", image.Holder{Name: disk, OrphanedDisk: true}, false},
		"another namespace":        {"other", image.Holder{Name: disk, OrphanedDisk: true}, true},
		"part of its name":         {"ten,tenants", image.Holder{Name: disk, OrphanedDisk: true}, true},
		"a machine of the same":    {"tenant,*", image.Holder{Name: "tenant/x"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("farm/a"), policyWithoutPreflight())
			w.runImport()
			w.holders = []image.Holder{tt.holder}
			w.img.Annotations = map[string]string{v1alpha1.AnnotationIgnoreOrphanedDisks: tt.ignored}
			w.deleteImage()
			w.reconcile()
			held := w.img != nil && w.status().Phase == v1alpha1.PhaseTerminating
			assert.Equal(t, tt.wantHeld, held)
			if held && tt.holder.OrphanedDisk {
				assert.Contains(t, w.status().Message, disk)
				assert.Contains(t, w.status().Message, "kubectl -n farm annotate vmdiskimages.pelotech.ot a pelotech.ot/ignore-orphaned-disks=tenant --overwrite")
			}
		})
	}
}
