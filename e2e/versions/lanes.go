package main

import (
	"github.com/pelotech/ot-fleet/api/compatibility"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// lane is a combination of versions that the suites are run with.
type lane struct {
	name string
	// versions has the candidates for a component, in the order in which they are tried: the first
	// whose modules can be downloaded is taken. Components without candidates have the pinned
	// version, which is also the last resort of the others.
	versions map[binaries.Component][]string
	// mutatingAdmission is the value of controlplane.MutatingAdmissionVariable.
	mutatingAdmission string
	// suites restricts the suites; empty for all.
	suites []string
}

var lanes = []lane{
	{
		name: "oldest", mutatingAdmission: "v1beta1",
		versions: map[binaries.Component][]string{
			binaries.KubernetesComponent: {"v1.34.2"}, binaries.CDIComponent: {"v1.64.0"}, binaries.KubeVirtComponent: {"v1.8.0"},
		},
	},
	{name: "pinned"},
	{name: "without-policies", mutatingAdmission: controlplane.WithoutMutatingAdmission, suites: []string{"attempts", "chart"}},
	{
		name: "newest",
		versions: map[binaries.Component][]string{
			binaries.KubernetesComponent: {"v1.37.2"}, binaries.CDIComponent: {"v1.66.0", "v1.65.0"}, binaries.KubeVirtComponent: {"v1.9.0", "v1.8.0"},
		},
	},
}

// wantedVersions are the minor versions that the project is meant to work with: what lanes run,
// and what kubectl ot doctor knows.
var wantedVersions = []struct {
	component binaries.Component
	minors    []string
}{
	{binaries.KubernetesComponent, compatibility.KubernetesMinors},
	{binaries.CDIComponent, compatibility.CDIMinors},
	{binaries.KubeVirtComponent, compatibility.KubeVirtMinors},
}

// titles are the names of components in text.
var titles = map[binaries.Component]string{
	binaries.KubernetesComponent: "Kubernetes", binaries.CDIComponent: "CDI", binaries.KubeVirtComponent: "KubeVirt",
}

// suite is a part of test packages.
type suite struct {
	name, shows string
	packages    []string
	// tests are the tests to run; empty for all.
	tests []string
}

var suites = []suite{
	{
		"journeys", "images are queued, imported, snapshotted, deleted", []string{"./e2e/suites/agent", "./e2e/suites/plan"}, []string{
			"TestImagesSyncInQueueOrder", "TestPipelinePublishesAndWaits", "TestDeletedImageLeavesNothing", "TestLostStorageIsSyncedAgain",
			"TestDeletedSnapshotIsRecreated", "TestWaitForFirstConsumer", "TestPlanCreatesImages", "TestQuotaExceeded", "TestQuotaOfDataVolumes",
		},
	},
	{
		"attempts", "what a failing import costs, and what is said about it", []string{"./e2e/suites/agent"}, []string{
			"TestFailureReasons", "TestOneDownloadPerAttempt", "TestPendingClaimIsWrittenOnce", "TestRetryByAnnotationStartsOver",
		},
	},
	{
		"workspaces", "machines wait, are cloned, run, restart and are deleted", []string{"./e2e/suites/workspaces"}, []string{
			"TestVMWaitsForItsImage", "TestProposalExample", "TestInstancetypeAndPreference", "TestSpecRunStrategyIsEnforced",
			"TestChangedSpecWaitsForARestart", "TestDeletedRootDiskIsCloned", "TestDeletedVMLeavesNothing",
		},
	},
	{
		"faults", "the API server and CDI restart, a paused leader, a stale cache", []string{"./e2e/suites/crash"}, []string{
			"TestAPIServerRestart", "TestCDIRestart", "TestPausedBeforeCreateOfFreedSlot", "TestStaleCacheDecidesNothingWrong",
		},
	},
	{"chart", "the charts are installed, upgraded, removed; what they refuse", []string{"./e2e/suites/chart"}, nil},
}
