package install

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	now  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	self = Maker{Hub: "hub-uid", Member: "frankfurt"}
)

// bare is a member that opts in and has nothing.
func bare() Seen {
	return Seen{Now: now, OptedIn: true, Self: self, Desired: Desired{Version: "v0.3.0", Chart: "v0.3.0", Revision: "new"}, Backoff: 30 * time.Second}
}

// has is one with a release.
func has(status Status, version string, by Maker, revision string) Seen {
	s := bare()
	s.Release = &Release{Name: "ot-agent", Number: 4, Status: status, Version: version, Chart: version, Maker: by, Revision: revision}
	return s
}

func tried(s Seen, count int, ago time.Duration) Seen {
	s.Attempts = Attempts{Of: s.Attempt(), Count: count, Last: s.Now.Add(-ago), Error: "it broke"}
	return s
}

func with(s Seen, change func(*Seen)) Seen { change(&s); return s }

func TestDecide(t *testing.T) {
	current := has(Deployed, "v0.3.0", self, "new")
	outdated := has(Deployed, "v0.2.0", self, "old")
	theirs := has(Deployed, "v0.2.0", Maker{}, "")
	newer := has(Deployed, "v0.4.0", self, "old")
	// pinned has agent v0.2.5, whatever chart installs it; made is by that of a version.
	pinned := func(made string) Seen {
		s := has(Deployed, "v0.2.5", self, "old")
		s.Release.Chart, s.Desired.Version = made, "v0.2.5"
		return s
	}
	adopt := func(s *Seen) { s.Adopt = true }
	yes, no, unknown := metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown

	for name, tt := range map[string]struct {
		seen    Seen
		action  Action
		status  metav1.ConditionStatus
		reason  string
		message string
		take    bool
		after   time.Duration
	}{
		"not opted in":           {seen: with(outdated, func(s *Seen) { s.OptedIn = false }), action: Nothing},
		"nothing there":          {bare(), Install, unknown, v1alpha1.ReasonInstalling, "attempt 1 of 6", false, 0},
		"as it is to be":         {current, Nothing, yes, v1alpha1.ReasonInstalled, "agent v0.3.0", false, recheck},
		"other values":           {has(Deployed, "v0.3.0", self, "old"), Upgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"older":                  {outdated, Upgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"failed":                 {has(Failed, "v0.3.0", self, "new"), Upgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"uninstalled":            {has(Uninstalled, "v0.4.0", Maker{}, ""), Install, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"pending, of a dead hub": {has(PendingInstall, "v0.3.0", self, "new"), Recover, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"pending upgrade, of a dead hub": {has(PendingUpgrade, "v0.2.0", self, "old"), Recover, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},

		"dials in":          {with(bare(), func(s *Seen) { s.Pull = true }), Nothing, no, v1alpha1.ReasonAgentDialsIn, "install chart ot-agent there yourself", false, 0},
		"another's cluster": {with(bare(), func(s *Seen) { s.Holder = "edge" }), Nothing, no, v1alpha1.ReasonDuplicateCluster, "MemberCluster edge", false, blocked},
		"bad values": {with(bare(), func(s *Seen) { s.Faulty = &Trouble{v1alpha1.ReasonValuesInvalid, "no such key"} }), Nothing, no,
			v1alpha1.ReasonValuesInvalid, "no such key", false, 0},
		"does not answer": {with(bare(), func(s *Seen) { s.Unseen = &Trouble{v1alpha1.ReasonUnreachable, "refused"} }), Nothing, unknown,
			v1alpha1.ReasonUnreachable, "refused", false, unseen},
		"has not answered three times": {with(bare(), func(s *Seen) { s.Unseen, s.Looks = &Trouble{v1alpha1.ReasonUnreachable, "refused"}, 3 }), Nothing, unknown,
			v1alpha1.ReasonUnreachable, "refused", false, 8 * unseen},
		"has not answered for long": {with(bare(), func(s *Seen) { s.Unseen, s.Looks = &Trouble{v1alpha1.ReasonUnreachable, "refused"}, 99 }), Nothing, unknown,
			v1alpha1.ReasonUnreachable, "refused", false, recheck},
		"refuses": {with(bare(), func(s *Seen) { s.Unseen, s.Looks = &Trouble{v1alpha1.ReasonUnauthorized, "not an administrator's"}, 3 }), Nothing, no,
			v1alpha1.ReasonUnauthorized, "not an administrator's", false, blocked},
		"has no kubeconfig yet": {with(bare(), func(s *Seen) { s.Unseen = &Trouble{v1alpha1.ReasonCredentials, "no Secret"} }), Nothing, no,
			v1alpha1.ReasonCredentials, "no Secret", false, blocked},
		"elsewhere": {with(bare(), func(s *Seen) { s.Elsewhere = "agents"; s.Adopt = true }), Nothing, no, v1alpha1.ReasonForeignAgent, "namespace agents", false, blocked},

		"somebody's release":        {theirs, Nothing, no, v1alpha1.ReasonForeignAgent, "membercluster frankfurt pelotech.ot/adopt-agent=true", false, blocked},
		"somebody's, to be adopted": {with(theirs, adopt), Upgrade, unknown, v1alpha1.ReasonInstalling, "", true, 0},
		"another hub's":             {has(Deployed, "v0.3.0", Maker{"other", "frankfurt"}, "new"), Nothing, no, v1alpha1.ReasonForeignAgent, "another hub", false, blocked},
		"another member's":          {has(Deployed, "v0.3.0", Maker{"hub-uid", "edge"}, "new"), Nothing, no, v1alpha1.ReasonForeignAgent, "of MemberCluster edge", false, blocked},
		"objects without a release": {with(bare(), func(s *Seen) { s.Foreign = "Deployment x" }), Nothing, no, v1alpha1.ReasonForeignAgent, "Deployment x", false, blocked},
		"answers as another cluster": {with(bare(), func(s *Seen) { s.Another = "2222" }), Nothing, no, v1alpha1.ReasonAnotherCluster,
			"membercluster frankfurt pelotech.ot/accept-cluster=2222", false, blocked},
		"those, to be adopted":        {with(bare(), func(s *Seen) { s.Foreign = "Deployment x"; s.Adopt = true }), Install, unknown, v1alpha1.ReasonInstalling, "", true, 0},
		"somebody's pending, adopted": {with(has(PendingUpgrade, "v0.2.0", Maker{}, ""), adopt), Nothing, no, v1alpha1.ReasonReleasePending, "helm rollback", false, blocked},
		"somebody's uninstalling":     {with(has("uninstalling", "v0.2.0", Maker{}, ""), adopt), Nothing, no, v1alpha1.ReasonReleasePending, "", false, blocked},

		"own uninstalling":                  {has("uninstalling", "v0.2.0", self, "old"), Nothing, no, v1alpha1.ReasonReleasePending, "release ot-agent is uninstalling", false, blocked},
		"own of a status that is not known": {has("unknown", "v0.2.0", self, "old"), Nothing, no, v1alpha1.ReasonReleasePending, "", false, blocked},

		"the same agent by a newer hub": {pinned("v0.2.0"), Upgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"the same agent by an older hub": {pinned("v0.4.0"), Nothing, no, v1alpha1.ReasonDowngradeRefused,
			"has the kinds of agent v0.4.0, and what the hub would install is v0.3.0", false, blocked},
		"the same agent by an older hub, and the agent allowed": {with(pinned("v0.4.0"), func(s *Seen) { s.Downgrade = "v0.2.5" }), Nothing, no, v1alpha1.ReasonDowngradeRefused, "", false, blocked},
		"the same agent by an older hub, and that allowed":      {with(pinned("v0.4.0"), func(s *Seen) { s.Downgrade = "v0.3.0" }), Upgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"older agent and kinds, and the kinds allowed": {with(newer, func(s *Seen) { s.Desired.Version, s.Downgrade = "v0.2.5", "v0.3.0" }), Upgrade, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},
		"an older agent by the same hub": {with(has(Deployed, "v0.3.0", self, "old"), func(s *Seen) { s.Desired.Version = "v0.2.5" }), Nothing, no,
			v1alpha1.ReasonDowngradeRefused, "has agent v0.3.0, and what the hub would install is v0.2.5", false, blocked},
		"a chart that says nothing of its version": {pinned(""), Upgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"kinds of a newer one that was uninstalled": {with(has(Uninstalled, "v0.4.0", self, "old"), func(s *Seen) { s.Kinds = "v0.4.0" }), Nothing, no,
			v1alpha1.ReasonDowngradeRefused, "has the kinds of agent v0.4.0", false, blocked},
		"kinds of a newer hub, with an older agent": {with(bare(), func(s *Seen) { s.Kinds, s.Desired.Version, s.Desired.Chart = "v0.3.0", "v0.2.5", "v0.3.0" }), Install, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},

		"newer": {newer, Nothing, no, v1alpha1.ReasonDowngradeRefused, "has the kinds of agent v0.4.0", false, blocked},
		"newer, and allowed": {with(newer, func(s *Seen) { s.Downgrade = "v0.3.0" }), Upgrade, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},
		"newer, and another allowed": {with(newer, func(s *Seen) { s.Downgrade = "v0.2.0" }), Nothing, no, v1alpha1.ReasonDowngradeRefused, "", false, blocked},
		"newer, of somebody else":    {with(has(Deployed, "v0.4.0", Maker{}, ""), adopt), Nothing, no, v1alpha1.ReasonDowngradeRefused, "", false, blocked},
		"a newer one reports":        {with(bare(), func(s *Seen) { s.Versions = []string{"", "v0.4.0"} }), Nothing, no, v1alpha1.ReasonDowngradeRefused, "", false, blocked},
		"a release, for a build of none": {with(has(Deployed, "v0.2.0", self, "old"), func(s *Seen) { s.Desired.Version, s.Desired.Chart = "dev", "dev" }), Nothing, no,
			v1alpha1.ReasonDowngradeRefused, "is dev, which is not known to be newer", false, blocked},
		"a build of no release, for one": {has(Deployed, "dev", self, "old"), Nothing, no, v1alpha1.ReasonDowngradeRefused, "", false, blocked},
		"builds of no release": {with(has(Deployed, "abcdef0", self, "old"), func(s *Seen) { s.Desired.Version, s.Desired.Chart = "dev", "dev" }), Upgrade, unknown,
			v1alpha1.ReasonInstalling, "", false, 0},

		"tried just now": {tried(outdated, 2, 10*time.Second), Nothing, no, v1alpha1.ReasonInstallFailed, "attempt 2 of 6 at agent v0.3.0 failed, and it is tried again: it broke", false, 50 * time.Second},
		"tried a while ago": {tried(outdated, 2, time.Minute), Upgrade, unknown,
			v1alpha1.ReasonInstalling, "attempt 3 of 6", false, 0},
		"tried enough": {tried(outdated, MostAttempts, 100*time.Hour), Nothing, no, v1alpha1.ReasonInstallFailed, "6 attempts", false, recheck},
		"tried enough, at something else": {with(tried(outdated, MostAttempts, time.Second), func(s *Seen) { s.Desired.Revision = "newer" }), Upgrade, unknown,
			v1alpha1.ReasonInstalling, "attempt 1 of 6", false, 0},
		"somebody is at it": {with(outdated, func(s *Seen) { s.Lease = &Lease{"hub-1", now.Add(9 * time.Second)} }), Nothing, unknown,
			v1alpha1.ReasonInstalling, "hub-1", false, 9 * time.Second},
		"somebody was at it": {with(outdated, func(s *Seen) { s.Lease = &Lease{"hub-1", now} }), Upgrade, unknown, v1alpha1.ReasonInstalling, "", false, 0},
		"pending, and not dead yet": {with(has(PendingInstall, "v0.3.0", self, "new"), func(s *Seen) { s.Lease = &Lease{"hub-1", now.Add(time.Second)} }), Nothing, unknown,
			v1alpha1.ReasonInstalling, "hub-1", false, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(tt.seen)
			assert.Equal(t, tt.action, d.Action)
			assert.Equal(t, tt.take, d.TakeOwnership)
			assert.Equal(t, tt.after, d.After)
			if tt.status == "" {
				assert.Nil(t, d.Condition)
				return
			}
			require.NotNil(t, d.Condition)
			assert.Equal(t, v1alpha1.ConditionAgentInstalled, d.Condition.Type)
			assert.Equal(t, tt.status, d.Condition.Status, d.Condition.Message)
			assert.Equal(t, tt.reason, d.Condition.Reason, d.Condition.Message)
			assert.Contains(t, d.Condition.Message, tt.message)
		})
	}
}

func TestAttemptsAreStored(t *testing.T) {
	s := bare()
	s.Now = now.Add(123 * time.Millisecond)
	first := s.Next()
	assert.Equal(t, 1, first.Count)
	assert.Equal(t, first, ParseAttempts(first.String()))
	s.Attempts = first
	assert.Equal(t, 2, s.Next().Count)
	s.Adopt = true
	assert.Equal(t, 1, s.Next().Count, "what a person allows is another thing to try")
	assert.Zero(t, ParseAttempts("nonsense"))
	assert.Zero(t, ParseAttempts(`{"of":"x","count":-3}`))
}

func TestBackoffDoubles(t *testing.T) {
	var waits []time.Duration
	for count := range MostAttempts {
		waits = append(waits, tried(bare(), count, 0).due().Sub(now))
	}
	second := time.Second
	assert.Equal(t, []time.Duration{0, 30 * second, 60 * second, 120 * second, 240 * second, 480 * second}, waits)
	s := bare()
	s.Backoff = 20 * time.Minute
	assert.Equal(t, mostBackoff, tried(s, 4, 0).due().Sub(now))
}
