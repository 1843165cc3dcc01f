//go:build linux

package cli_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// The hub's view of a member: what its conditions and reports say, and that the rest needs the
// member itself.
func TestDoctorOfWhatTheHubKnows(t *testing.T) {
	shared.AwaitMember(t, bergen, "with a report", func(c *v1alpha1.MemberCluster) bool { return c.Status.Images != nil })
	var view string
	status := map[string]string{}
	// Images of other tests are still being removed, and each removal is a new plan, which the member
	// acknowledges with its next report.
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var report struct {
			View     string
			Findings []struct{ ID, Status, Found string }
		}
		shared.runJSON(t, 0, &report, "doctor", "--cluster", bergen)
		view = report.View
		for _, f := range report.Findings {
			status[f.ID] = f.Status
		}
		return status["policy-accepted"] != "Skip"
	}), "the member acknowledges no plan")
	assert.Equal(t, "hub", view)
	assert.Equal(t, "Pass", status["agent-running"])
	assert.Equal(t, "Pass", status["policy-accepted"])
	assert.Equal(t, "Pass", status["agent-rights"])
	assert.Equal(t, "Skip", status["k8s-version"])

	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"no such cluster":      {[]string{"doctor", "--cluster", "nowhere"}, "nowhere"},
		"no such check":        {[]string{"doctor", "--explain", "snapshot"}, "there is no check \"snapshot\""},
		"a probe from the hub": {[]string{"doctor", "--cluster", bergen, "--probe", "https://images.example.com"}, "add --live or --member-context"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Contains(t, shared.run(t, 2, test.args...).Err, test.says)
		})
	}
	assert.Contains(t, shared.run(t, 0, "doctor", "--explain", "snapshot-class-driver").Out, "**Mend.**")
	assert.Contains(t, shared.run(t, 0, "doctor", "--cluster", bergen, "-o", "junit").Out, "<testsuite")
}
