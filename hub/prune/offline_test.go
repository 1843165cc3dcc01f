package prune_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// A cluster that is cut off deletes what it has accepted, whatever becomes of the ImagePrune.
func TestFailedPruneNamesOfflineClusters(t *testing.T) {
	const text = "Images that were not deleted yet stay"
	const offline = ", but a cluster that no plan reaches, as while it is offline or in quarantine, deletes what it has accepted when its undo window ends, unless a VirtualMachine there names the image"
	for name, test := range map[string]struct {
		change func(*pruneScenario)
		want   string // how the message ends
	}{
		"all are online": {func(*pruneScenario) {}, text},
		"one is offline": {func(s *pruneScenario) {
			s.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: v1alpha1.ReasonSilent}
			s.reportState(v1alpha1.PrunePending, "", "b/farm/z")
		}, text + offline + ": b"},
		"one is in quarantine": {func(s *pruneScenario) {
			s.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: v1alpha1.ReasonQuarantined}
		}, text + offline + ": b"},
		"one has two agents, which get its plan": {func(s *pruneScenario) {
			s.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: v1alpha1.ReasonTwoAgents}
		}, text},
		"one had two agents, and is silent": {func(s *pruneScenario) {
			s.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: v1alpha1.ReasonTwoAgents, IsSilent: true}
			s.reportState(v1alpha1.PrunePending, "", "b/farm/z")
		}, text + offline + ": b"},
		"one had two agents, is silent, and one of them deleted": {func(s *pruneScenario) {
			s.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: v1alpha1.ReasonTwoAgents, IsSilent: true}
			s.reportState(v1alpha1.PrunePruned, "", "b/farm/z", "b/farm/ubuntu-1")
		}, text + offline + ": b"},
		"one had two agents, is silent, and one of them skipped": {func(s *pruneScenario) {
			s.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: v1alpha1.ReasonTwoAgents, IsSilent: true}
			s.reportState(v1alpha1.PruneSkipped, v1alpha1.PruneReferenced, "b/farm/z", "b/farm/ubuntu-1")
		}, text + offline + ": b"},
		"one is offline and done": {func(s *pruneScenario) {
			s.Members["b"] = prune.Member{ClusterUID: "uid-b", OfflineReason: v1alpha1.ReasonSilent}
			s.reportState(v1alpha1.PrunePruned, "", "b/farm/z", "b/farm/ubuntu-1")
		}, text},
		"one is offline and another cluster": {func(s *pruneScenario) {
			s.Members["b"] = prune.Member{ClusterUID: "uid", OfflineReason: v1alpha1.ReasonSilent}
		}, text},
		"one is offline and was not asked": {func(s *pruneScenario) {
			s.Members["a"] = prune.Member{ClusterUID: "uid-a", OfflineReason: v1alpha1.ReasonSilent}
			s.held["a/farm/ubuntu-1"] = v1alpha1.PruneAnotherPrune
		}, text},
		"the targets are not known": {func(s *pruneScenario) { s.TargetsLoaded, s.Targets = false, nil }, text + offline},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPruneScenario()
			s.Report = nil
			test.change(s)
			d := decideAndCheck(t, s.PruneView)
			require.Equal(t, v1alpha1.ImagePruneFailed, d.Status.Phase)
			require.Regexp(t, "[.] "+test.want+"$", d.Status.Message)
		})
	}
}
