package vm_test

import (
	"testing"

	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// api/kstatus tests how clients that wait read these statuses.
func TestGoldenStatuses(t *testing.T) {
	objects := map[string]statuscheck.Object{}
	for name, setup := range map[string]func(*world){
		"ImageMissing": func(*world) {},
		"WaitingForImage": func(w *world) {
			w.Image = apitest.Image("ns/golden").WithStatus(v1alpha1.VMDiskImageStatus{Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonPaused, Message: "paused"}).Obj()
		},
		"CloningRootDisk": func(w *world) { w.withRootDisk(goldenImage(1), cdiv1.CloneInProgress) },
		"Starting": func(w *world) {
			w.withRootDisk(goldenImage(1), cdiv1.Succeeded).withKubeVirtVM("Starting", nil)
		},
		"Running": func(w *world) { w.withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM() },
	} {
		w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithGeneration(7))
		setup(w)
		w.reconcile()
		objects[name] = statuscheck.Object{Status: &w.VM.Status, Deleted: w.VM.DeletionTimestamp}
	}
	statuscheck.CompareGolden(t, "VirtualMachine", objects)
}
