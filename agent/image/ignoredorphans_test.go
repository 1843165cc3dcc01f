package image_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Anyone who may create claims can make one look like an orphaned disk, so a person decides about those.
func TestOrphanedDisksAreIgnoredByNamespace(t *testing.T) {
	const disk = "tenant/x-root (orphaned disk)"
	for name, tt := range map[string]struct {
		ignored  string
		holder   image.Holder
		wantHeld bool
		// wantIgnored is the value in the command of the message.
		wantIgnored string
	}{
		"nobody has said anything": {"", image.Holder{Name: disk, OrphanedDisk: true}, true, "tenant"},
		"its namespace":            {"other,tenant", image.Holder{Name: disk, OrphanedDisk: true}, false, ""},
		"with spaces":              {" other ,, tenant ", image.Holder{Name: disk, OrphanedDisk: true}, false, ""},
		"all namespaces":           {"*", image.Holder{Name: disk, OrphanedDisk: true}, false, ""},
		"another namespace":        {"other", image.Holder{Name: disk, OrphanedDisk: true}, true, "other,tenant"},
		"part of its name":         {"tenants, ten", image.Holder{Name: disk, OrphanedDisk: true}, true, "ten,tenant,tenants"},
		"a machine of the same":    {"tenant,*", image.Holder{Name: "tenant/x"}, true, ""},
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
				assert.Contains(t, w.status().Message, "kubectl -n farm annotate vmdiskimages.pelotech.ot a pelotech.ot/ignore-orphaned-disks="+tt.wantIgnored+" --overwrite")
			}
		})
	}
}

// TestCommandIgnoresAllOrphanedDisks: one that named a single namespace, or not those of before, would be
// followed by another command without end.
func TestCommandIgnoresAllOrphanedDisks(t *testing.T) {
	for name, tt := range map[string]struct {
		namespaces int
		wantValue  string
	}{
		"two namespaces": {2, "other,tenant-0,tenant-1"},
		"many":           {60, "*"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("farm/a"), policyWithoutPreflight())
			w.runImport()
			for i := range tt.namespaces {
				for _, disk := range []string{"a", "b"} {
					w.holders = append(w.holders, image.Holder{Name: fmt.Sprintf("tenant-%d/%s", i, disk), OrphanedDisk: true})
				}
			}
			w.img.Annotations = map[string]string{v1alpha1.AnnotationIgnoreOrphanedDisks: "other"}
			w.deleteImage()
			w.reconcile()
			require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
			require.Contains(t, w.status().Message, shellword.Quote(v1alpha1.AnnotationIgnoreOrphanedDisks+"="+tt.wantValue)+" --overwrite")
			w.img.Annotations[v1alpha1.AnnotationIgnoreOrphanedDisks] = tt.wantValue
			w.reconcile()
			assert.True(t, w.img == nil || w.status().Phase != v1alpha1.PhaseTerminating, "it is released by the command")
		})
	}
}

// TestAdviceOnOrphanedDisksIsWhole: long names of holders cut the command at the end of the message, and
// that of a prune never had space for one.
func TestAdviceOnOrphanedDisksIsWhole(t *testing.T) {
	const annotation = "annotation pelotech.ot/ignore-orphaned-disks of the image"
	for name, tt := range map[string]struct {
		nameBytes int
		prune     func(*simulation)
		wantEnd   string
	}{
		"deleted":                  {20, nil, "ignore-orphaned-disks=tenant --overwrite"},
		"deleted, long names":      {253, nil, "ignore-orphaned-disks=tenant --overwrite"},
		"pruned":                   {20, func(w *simulation) { w.planPrune("prune", time.Hour) }, annotation},
		"pruned, long names":       {253, func(w *simulation) { w.planPrune("prune", time.Hour) }, annotation},
		"pruned while Terminating": {253, func(w *simulation) { w.deleteImage(); w.reconcile(); w.planPrune("prune", time.Hour) }, annotation},
	} {
		t.Run(name, func(t *testing.T) {
			w := newServingSimulation(t)
			for i := range 5 {
				disk := fmt.Sprintf("tenant/%0*d (orphaned disk)", tt.nameBytes, i)
				w.holders = append(w.holders, image.Holder{Name: disk, OrphanedDisk: true, UsedBy: "Pod tenant/" + strings.Repeat("p", tt.nameBytes)})
			}
			if tt.prune == nil {
				w.deleteImage()
				w.reconcile()
				require.Equal(t, v1alpha1.PhaseTerminating, w.status().Phase)
				assert.True(t, strings.HasSuffix(w.status().Message, tt.wantEnd), w.status().Message)
				return
			}
			tt.prune(w)
			w.reconcile()
			require.Equal(t, v1alpha1.PruneReferenced, w.status().Prune.Reason)
			assert.True(t, strings.HasSuffix(w.status().Prune.Message, tt.wantEnd), w.status().Prune.Message)
			assert.Contains(t, w.status().Prune.Message, "is referenced by tenant/00")
		})
	}
}
