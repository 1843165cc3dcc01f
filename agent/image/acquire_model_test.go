package image_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	vmAcquiresAndRuns = expectedState{Name: "a VM has acquired the image and runs", IsReached: func(c *clusterState) bool {
		return c.vms[0].disks[0].cloned && knownPins[c.vms[0].disks[0].pin].acquired
	}}
	imageIsGone                = expectedState{Name: "the image is gone", IsReached: func(c *clusterState) bool { return c.gone }}
	terminatingImageIsAcquired = expectedState{Name: "a Terminating image is acquired", IsReached: func(c *clusterState) bool {
		return knownStatuses[c.status].Phase == v1alpha1.PhaseTerminating && !c.vms[0].namedAtDeletion && knownPins[c.vms[0].disks[0].pin].acquired
	}}
	oldRevisionIsKept = expectedState{Name: "an old revision is kept for a VM while a new one serves", IsReached: func(c *clusterState) bool {
		st, pin := knownStatuses[c.status], knownPins[c.vms[0].disks[0].pin]
		return c.vms[0].disks[0].cloned && st.Serving != nil && uint8(st.Serving.Attempt) != pin.attempt && c.containsPin(pin)
	}}
	oldRevisionIsDeleted = expectedState{Name: "an old revision is superseded and deleted", IsReached: func(c *clusterState) bool {
		st := knownStatuses[c.status]
		return st.Serving != nil && st.Serving.Attempt > 1 && c.attempts&1 == 0 && !c.deleted
	}}
	oldSnapshotGone = expectedState{Name: "an older snapshot is deleted", IsReached: func(c *clusterState) bool {
		return c.snapshotsNamed > 1 && c.snapshots[0].attempt == 0 && !c.deleted
	}}
	oldSnapshotKept = expectedState{Name: "an older snapshot is kept for a VM", IsReached: func(c *clusterState) bool {
		st, pin := knownStatuses[c.status], knownPins[c.vms[0].disks[0].pin]
		return c.vms[0].disks[0].cloned && pin.snapshot == 1 && st.Serving != nil && snapshotNumber(st.Serving.VolumeSnapshot) > 1
	}}
)

// disksOfTwoRevisions is reached when the disks of a VM keep one revision each.
var disksOfTwoRevisions = expectedState{Name: "the disks of a VM are of two revisions", IsReached: func(c *clusterState) bool {
	root, data := &c.vms[0].disks[0], &c.vms[0].disks[1]
	return root.cloned && data.cloned && knownPins[root.pin].attempt != knownPins[data.pin].attempt
}}

// releasedImageRuns is reached when a VM that had acquired the image before it was released runs from it.
var releasedImageRuns = expectedState{Name: "a VM is cloned from an image that was released", IsReached: func(c *clusterState) bool {
	return c.released && !c.gone && c.vms[0].disks[0].cloned
}}

// expectPruneEnd is reached when a prune has ended and the image still serves.
func expectPruneEnd(state v1alpha1.PruneState, reason string) expectedState {
	return expectedState{Name: fmt.Sprint("a prune is ", state, ": ", reason), IsReached: func(c *clusterState) bool {
		st := knownStatuses[c.status]
		return st.Prune != nil && st.Prune.State == state && st.Prune.Reason == reason && st.Serving != nil && !c.deleted
	}}
}

var (
	imagePendingPruneIsAcquired = expectedState{Name: "an image with a pending prune is acquired", IsReached: func(c *clusterState) bool {
		return knownStatuses[c.status].Phase == v1alpha1.PhasePrunePending && knownPins[c.vms[0].disks[0].pin].acquired
	}}
	pruneSkippedForReference = expectPruneEnd(v1alpha1.PruneSkipped, v1alpha1.PruneReferenced)
	pruneSkippedForChange    = expectPruneEnd(v1alpha1.PruneSkipped, v1alpha1.PruneChanged)
	pruneWithdrawn           = expectPruneEnd(v1alpha1.PruneUndone, v1alpha1.PruneWithdrawn)
)

// TestAcquireModelIsSafe explores everything that leaders, VMs and people can do with one
// image. Each scenario is small; together they have every fault.
func TestAcquireModelIsSafe(t *testing.T) {
	for name, p := range map[string]acquireScenario{
		"the image is deleted":                        {imageSpecs: []string{"a"}, vms: 1, lives: 2, imageLeaders: 2, vmLeaders: 1, deletesImage: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}},
		"the image is deleted, two VM leaders":        {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2, deletesImage: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone}},
		"two VMs":                                     {imageSpecs: []string{"a"}, vms: 2, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}},
		"the source changes":                          {imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldRevisionIsKept, oldRevisionIsDeleted}},
		"the source changes and returns":              {imageSpecs: []string{"a", "b", "a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldRevisionIsKept, oldRevisionIsDeleted}},
		"the snapshot class changes":                  {imageSpecs: []string{"a/x", "a/y"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldSnapshotGone, oldSnapshotKept}},
		"a VM names another image":                    {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, retargetsVMs: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone}},
		"a VM names another image, two leaders":       {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2, retargetsVMs: true, expected: []expectedState{vmAcquiresAndRuns}},
		"plans expire the image":                      {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, planExpires: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}},
		"plans prune the image":                       {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, prunes: 1, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, imagePendingPruneIsAcquired, pruneSkippedForReference, pruneWithdrawn}},
		"plans prune an image that changes":           {imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, prunes: 1, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, pruneSkippedForReference, pruneSkippedForChange}},
		"old plans prune the image":                   {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, prunes: 1, oldPlans: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, pruneSkippedForReference, pruneWithdrawn}},
		"a VM with two disks":                         {imageSpecs: []string{"a"}, vms: 1, dataDisks: true, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}},
		"the source changes between two disks":        {imageSpecs: []string{"a", "b"}, vms: 1, dataDisks: true, lives: 1, imageLeaders: 1, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldRevisionIsKept, disksOfTwoRevisions}},
		"an orphaned disk holds it no longer":         {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, deletesImage: true, hasOrphan: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}},
		"a deleted image is released":                 {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, releasesImage: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, releasedImageRuns}},
		"the namespace is deleted":                    {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, deletesNamespace: true, expected: []expectedState{imageIsGone}},
		"long: the snapshot class changes":            {imageSpecs: []string{"a/x", "a/y"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldSnapshotGone, oldSnapshotKept}},
		"long: two of each":                           {imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 2, deletesImage: true},
		"long: the source changes, two VM leaders":    {imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2, deletesImage: true},
		"long: the source changes, two VMs":           {imageSpecs: []string{"a", "b"}, vms: 2, lives: 1, imageLeaders: 1, vmLeaders: 1},
		"long: the source returns":                    {imageSpecs: []string{"a", "b", "a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, expected: []expectedState{vmAcquiresAndRuns, oldRevisionIsKept, oldRevisionIsDeleted}},
		"long: a VM names another image":              {imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2, deletesImage: true, retargetsVMs: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone}},
		"long: plans expire the image of a VM remade": {imageSpecs: []string{"a"}, vms: 1, lives: 2, imageLeaders: 2, vmLeaders: 1, planExpires: true, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, terminatingImageIsAcquired}},
		"long: plans prune the image twice":           {imageSpecs: []string{"a"}, vms: 1, lives: 2, imageLeaders: 1, vmLeaders: 1, prunes: 2, expected: []expectedState{vmAcquiresAndRuns, imageIsGone, imagePendingPruneIsAcquired, pruneSkippedForReference, pruneWithdrawn}},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "long: ") {
				apitest.SkipUnlessLong(t)
			}
			got := p.explore(t)
			require.Empty(t, got.Violation, got.FormatTrace())
			require.Empty(t, got.Unreached, "expected states that were not reached")
		})
	}
}

// TestAcquireModelFindsPlantedBugs removes one guard after the other.
func TestAcquireModelFindsPlantedBugs(t *testing.T) {
	deleted := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, deletesImage: true}
	changed := acquireScenario{imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1}
	twoAgents := acquireScenario{imageSpecs: []string{"a", "b"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2}
	disks := acquireScenario{imageSpecs: []string{"a", "b", "a"}, vms: 1, dataDisks: true, lives: 1, imageLeaders: 1, vmLeaders: 1}
	snapshotted := acquireScenario{imageSpecs: []string{"a/x", "a/y"}, imageLeaders: 1}
	pruned := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 2, vmLeaders: 1, prunes: 1}
	oldPlans := acquireScenario{imageSpecs: []string{"a"}, imageLeaders: 1, prunes: 1, oldPlans: true}
	orphaned := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, hasOrphan: true}
	takenOver := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 2, retargetsVMs: true}
	retargeted := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, retargetsVMs: true}
	released := acquireScenario{imageSpecs: []string{"a"}, vms: 1, lives: 1, imageLeaders: 1, vmLeaders: 1, deletesImage: true, releasesImage: true}
	for name, tt := range map[string]struct {
		acquireScenario
		bug  plantedBug
		want string
	}{
		"the image is not read live after the pin, deleted":     {deleted, acquiresByCache, "S2"},
		"the image is not read live after the pin, changed":     {changed, acquiresByCache, "S2"},
		"a pin is stored after the live read":                   {changed, pinsAfterVerification, "S2"},
		"a disk is cloned before its pin is stored":             {changed, clonesBeforePin, "S2"},
		"a disk is cloned before it is stored as acquired":      {twoAgents, clonesBeforeAcquired, "S2"},
		"VMs are listed before phase Deleting is stored":        {deleted, listsBeforeDeleting, "S2"},
		"storage is deleted before tearDown is stored":          {deleted, tearsDownUnmarked, "S2"},
		"a pinned revision is superseded":                       {changed, supersedesPinned, "S2"},
		"a revision is superseded by a cached list":             {changed, supersedesByCache, "S2"},
		"VMs are listed before it is stored what serves":        {changed, listsBeforeServingMoves, "S2"},
		"a status is stored without its resourceVersion":        {deleted, storesUnguarded, "S2"},
		"pins of data disks are not counted":                    {disks, countsRootOnly, "S2"},
		"a pin changes while its storage is being cloned":       {retargeted, repinsWhileCloning, "S2"},
		"a pin is given up while a former leader may clone":     {takenOver, ignoresLateWrites, "S2"},
		"a VM is taken for an orphaned disk that is ignored":    {orphaned, ignoresMachines, "S2"},
		"a snapshot is created before its name is stored":       {snapshotted, createsBeforeStoring, "a VolumeSnapshot exists whose name was never stored"},
		"a pruned image is deleted without its resourceVersion": {pruned, deletesUnguarded, "S7"},
		"a prune begins whatever the plan confirms":             {oldPlans, beginsByOldPlan, "S7"},
		"a released image is acquired":                          {released, acquiresReleased, "S2"},
	} {
		t.Run(name, func(t *testing.T) {
			p := tt.acquireScenario
			p.plantedBug, p.onlyViolation = tt.bug, tt.want
			got := p.explore(t)
			require.Contains(t, got.Violation, tt.want)
			t.Logf("found in %d steps%s", len(got.Trace), got.FormatTrace())
		})
	}
}
