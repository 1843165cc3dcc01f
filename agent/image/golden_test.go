package image_test

import (
	"testing"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// api/kstatus tests how clients that wait read these statuses.
func TestGoldenStatuses(t *testing.T) {
	queued := func(*testing.T) *simulation {
		return newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight())
	}
	objects := map[string]statuscheck.Object{}
	for name, setup := range map[string]func(*testing.T) *simulation{
		"WaitingForSlot": queued,
		"Paused": func(t *testing.T) *simulation {
			return newQueuedSimulation(t, apitest.Image("ns/a"), policyWithoutPreflight().Concurrency(0))
		},
		"StorageClassMissing": func(t *testing.T) *simulation {
			w := queued(t)
			w.blocker = &image.Blocker{Reason: v1alpha1.ReasonStorageClassMissing, Message: "create it"}
			w.reconcile()
			return w
		},
		"Importing": func(t *testing.T) *simulation {
			w := queued(t)
			w.startImport()
			w.reconcile()
			return w
		},
		"BackingOff": func(t *testing.T) *simulation {
			w := queued(t)
			w.startImport()
			w.failImport("Unable to process data: unexpected EOF")
			w.reconcile()
			return w
		},
		"NotFound": func(t *testing.T) *simulation {
			w := queued(t)
			w.startImport()
			w.failImport(notFoundMessage)
			w.reconcile()
			return w
		},
		"Ready":      newServingSimulation,
		"UndoWindow": newPendingPruneSimulation,
		"Referenced": func(t *testing.T) *simulation { return newDeletedSimulation(t, "ns/1") },
		"Deleted":    func(t *testing.T) *simulation { return newDeletedSimulation(t) },
		"New version": func(t *testing.T) *simulation {
			w := newServingSimulation(t)
			w.img.Spec.URL = "https://images.example.com/another.qcow2"
			w.img.Generation++
			w.reconcile()
			return w
		},
	} {
		w := setup(t)
		objects[name] = statuscheck.Object{Generation: w.img.Generation, Deleted: w.img.DeletionTimestamp, Status: w.status()}
	}
	statuscheck.CompareGolden(t, "VMDiskImage", objects)
}

// newDeletedSimulation returns a simulation whose image is being deleted.
func newDeletedSimulation(t *testing.T, holders ...string) *simulation {
	w := newServingSimulation(t)
	w.holders = holdersNamed(holders...)
	w.deleteImage()
	w.reconcile()
	return w
}
