package image_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
)

var (
	oldStorageIsFreed = modelcheck.ExpectedState[publishState]{Name: "earlier storage is deleted once it was cloned", IsReached: func(c *publishState) bool {
		return c.attempts&1 == 0 && c.clone.phase == cloneDone && c.clone.source == 1
	}}
	oldStorageIsHeld = modelcheck.ExpectedState[publishState]{Name: "earlier storage is cloned when the pointer has moved", IsReached: func(c *publishState) bool {
		return c.ds.target == 2 && c.clone.phase == cloneRuns && c.clone.source == 1 && c.hour > 0
	}}
	lateCloneFinishes = modelcheck.ExpectedState[publishState]{Name: "the pointer comes back for a clone that was found late, and the image is gone then", IsReached: func(c *publishState) bool {
		return c.gone && c.clone.phase == cloneDone && c.clone.kind == cloneBySourceRef && c.versions >= 5
	}}
	publishedImageIsGone = modelcheck.ExpectedState[publishState]{Name: "the image is gone", IsReached: func(c *publishState) bool { return c.gone && c.ds.version == 0 }}
)

func (p *publishScenario) explore(t *testing.T, expected ...modelcheck.ExpectedState[publishState]) modelcheck.Result {
	t.Helper()
	return modelcheck.Explore(t, p, modelcheck.Options[publishState]{Expected: expected, SkipDeadlockSearch: true})
}

// TestPublishModelIsSafe explores what agents, CDI, KubeVirt and people can do with a published
// image.
func TestPublishModelIsSafe(t *testing.T) {
	for _, tt := range []struct {
		name     string
		model    publishScenario
		expected []modelcheck.ExpectedState[publishState]
	}{
		{"the source changes", publishScenario{sources: []string{"a", "b"}, leaders: 1}, []modelcheck.ExpectedState[publishState]{oldStorageIsFreed, oldStorageIsHeld}},
		{"the source changes, KubeVirt", publishScenario{sources: []string{"a", "b"}, leaders: 1, kubeVirt: true}, []modelcheck.ExpectedState[publishState]{oldStorageIsFreed, oldStorageIsHeld}},
		{"the image is deleted", publishScenario{sources: []string{"a"}, leaders: 2, deletes: true}, []modelcheck.ExpectedState[publishState]{publishedImageIsGone, lateCloneFinishes}},
		{"the image is deleted, KubeVirt", publishScenario{sources: []string{"a"}, leaders: 2, deletes: true, kubeVirt: true}, []modelcheck.ExpectedState[publishState]{publishedImageIsGone}},
		{"the image is deleted while it is being published", publishScenario{sources: []string{"a"}, leaders: 2, deletes: true, unpublished: true}, []modelcheck.ExpectedState[publishState]{publishedImageIsGone}},
		{"long: the source changes, two leaders", publishScenario{sources: []string{"a", "b"}, leaders: 2}, []modelcheck.ExpectedState[publishState]{oldStorageIsFreed, oldStorageIsHeld}},
		{"long: the source changes and returns", publishScenario{sources: []string{"a", "b", "a"}, leaders: 1}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if strings.HasPrefix(tt.name, "long:") {
				apitest.SkipUnlessLong(t)
			}
			got := tt.model.explore(t, tt.expected...)
			require.Empty(t, got.Violation, got.FormatTrace())
			require.Empty(t, got.Unreached, "expected states that were not reached")
		})
	}
}

// TestPublishModelFindsPlantedBugs removes one guard after the other.
func TestPublishModelFindsPlantedBugs(t *testing.T) {
	changed := publishScenario{sources: []string{"a", "b"}, leaders: 1}
	changedKubeVirt := publishScenario{sources: []string{"a", "b"}, leaders: 1, kubeVirt: true}
	deleted := publishScenario{sources: []string{"a"}, leaders: 1, deletes: true}
	unpublished := publishScenario{sources: []string{"a"}, leaders: 2, deletes: true, unpublished: true}
	for name, tt := range map[string]struct {
		model publishScenario
		bug   publishBug
	}{
		"DataVolumes are listed before the pointer moves":  {deleted, endsByNoLook},
		"a clone holds only what the pointer names now":    {changed, holdsCurrentOnly},
		"history is lost at a restart":                     {changed, forgetsHistory},
		"DataVolumes are read from the cache":              {changed, listsClonesInCache},
		"KubeVirt's write is not waited for":               {changedKubeVirt, noGracePeriod},
		"the DataSource is changed without its version":    {unpublished, changesUnguarded},
		"the DataSource is created pointing":               {unpublished, createsPointing},
		"a change of the stored version is not waited for": {publishScenario{sources: []string{"a", "b", "a"}, leaders: 2}, recordsNoVersion},
	} {
		t.Run(name, func(t *testing.T) {
			p := tt.model
			p.bug = tt.bug
			got := p.explore(t)
			require.NotEmpty(t, got.Violation)
			t.Logf("found in %d steps%s", len(got.Trace), got.FormatTrace())
		})
	}
}
