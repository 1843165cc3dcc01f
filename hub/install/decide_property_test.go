package install

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// memberModel is a member, with what hubs and people do to it.
type memberModel struct {
	snapshot Snapshot
	// attempts counts those at target; the count restarts with another target, even if
	// that was attempted before.
	target   string
	attempts int
	// broken: attempts fail.
	broken bool
}

var modelVersions = []string{"v0.1.0", "v0.2.0", "v0.2.0-3-gabcdef0", "v0.3.0", "dev", "abcdef0"}

// runHub has a hub observe, decide and act; it may crash in the action.
func (w *memberModel) runHub(t *rapid.T) Decision {
	before := w.snapshot
	d := Decide(w.snapshot)
	if d.Action == ActionNone {
		return d
	}
	// No decision may violate these rules.
	if !before.OptedIn || before.PullMode || before.ValuesProblem != nil || before.ProbeProblem != nil || before.ClusterHolder != "" || before.OtherClusterUID != "" {
		t.Fatalf("%s although it must not: %+v", d.Action, before)
	}
	if r := before.Release; r != nil && r.Status != StatusUninstalled {
		if r.Installer != before.Self && !before.Adopt {
			t.Fatalf("%s of a release that is not its own: %+v", d.Action, r)
		}
		if r.Installer != before.Self && r.Status.IsPending() {
			t.Fatalf("%s of what somebody else is at", d.Action)
		}
		if !isFinal(r.Status) && !r.Status.IsPending() {
			t.Fatalf("%s continues from %s", d.Action, r.Status)
		}
		// By the version numbers alone, not by the order that decisions use.
		if releaseRank(before.Desired.Version) < releaseRank(r.Version) && before.Downgrade != before.Desired.Version && before.Downgrade != before.Desired.Chart {
			t.Fatalf("%s puts %s in place of %s", d.Action, before.Desired.Version, r.Version)
		}
		if releaseRank(before.Desired.Chart) < releaseRank(r.Chart) && before.Downgrade != before.Desired.Chart {
			t.Fatalf("%s puts kinds of %s in place of those of %s", d.Action, before.Desired.Chart, r.Chart)
		}
	}
	if releaseRank(before.Desired.Chart) < releaseRank(before.KindsVersion) && before.Downgrade != before.Desired.Chart {
		t.Fatalf("%s puts kinds of %s in place of those of %s", d.Action, before.Desired.Chart, before.KindsVersion)
	}
	if before.ForeignAgent != "" && !before.Adopt {
		t.Fatalf("%s although there is %s", d.Action, before.ForeignAgent)
	}
	if d.TakeOwnership && !before.Adopt {
		t.Fatal("takes what it was not given")
	}
	w.snapshot.Attempts = w.snapshot.NextAttempt()
	if of := w.snapshot.AttemptTarget(); of != w.target {
		w.target, w.attempts = of, 0
	}
	if w.attempts++; w.attempts > MaxAttempts {
		t.Fatalf("attempt %d at one thing", w.attempts)
	}
	number := 1
	if before.Release != nil {
		number = before.Release.Number + 1
	}
	next := &Release{Name: "ot-agent", Number: number, Status: StatusDeployed, Version: before.Desired.Version, Chart: before.Desired.Chart, Installer: before.Self, Revision: before.Desired.Revision}
	switch {
	case rapid.IntRange(0, 5).Draw(t, "dies") == 0:
		next.Status = StatusPendingUpgrade
		w.snapshot.Lease = &Lease{Holder: "the dead", Until: w.snapshot.Now.Add(30 * time.Second)}
	case w.broken:
		next.Status = StatusFailed
		w.snapshot.Attempts.Error = "broken"
	default:
		w.snapshot.Attempts, w.snapshot.ForeignAgent = Attempts{}, ""
		w.attempts = 0 // a success may be lost, and repeated
	}
	w.snapshot.Release, w.snapshot.KindsVersion = next, before.Desired.Chart
	return d
}

// releaseRank orders modelVersions by release; other builds have no rank.
func releaseRank(v string) int {
	for i, known := range modelVersions[:4] {
		if v == known {
			return i + 1
		}
	}
	return 0
}

func (w *memberModel) randomEvent(t *rapid.T) {
	some := func(label string) bool { return rapid.Bool().Draw(t, label) }
	version := rapid.SampledFrom(modelVersions)
	switch rapid.IntRange(0, 12).Draw(t, "what") {
	case 0:
		w.snapshot.OptedIn = some("opted in")
	case 1:
		w.snapshot.Desired.Chart = version.Draw(t, "hub's")
		if w.snapshot.Desired.Version = w.snapshot.Desired.Chart; some("pinned") {
			w.snapshot.Desired.Version = version.Draw(t, "tag")
		}
	case 2:
		w.snapshot.Desired.Revision = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "values")
	case 3:
		w.snapshot.Adopt = some("adopt")
	case 4:
		w.snapshot.Downgrade = version.Draw(t, "downgrade to")
	case 5: // a person, with Helm
		number := 1
		if w.snapshot.Release != nil {
			number = w.snapshot.Release.Number + 1
		}
		w.snapshot.Release = &Release{Name: "ot-agent", Number: number, Version: version.Draw(t, "by hand"), Chart: version.Draw(t, "chart by hand"),
			Status: rapid.SampledFrom([]Status{StatusDeployed, StatusFailed, StatusPendingInstall, StatusUninstalled, "uninstalling"}).Draw(t, "status")}
	case 6:
		w.snapshot.ForeignAgent = rapid.SampledFrom([]string{"", "Deployment x"}).Draw(t, "foreign")
	case 7:
		w.broken = some("broken")
	case 8:
		w.snapshot.ProbeProblem = nil
		if some("dark") {
			w.snapshot.ProbeProblem = &Problem{"Unreachable", "refused"}
		}
	case 9:
		w.snapshot.PullMode = some("pull")
	case 10:
		w.snapshot.ClusterHolder = rapid.SampledFrom([]string{"", "edge"}).Draw(t, "duplicate")
	case 11:
		w.snapshot.OtherClusterUID = rapid.SampledFrom([]string{"", "2222"}).Draw(t, "another cluster")
	case 12: // a person, with helm uninstall
		if w.snapshot.Release != nil {
			gone := *w.snapshot.Release
			gone.Status = rapid.SampledFrom([]Status{StatusUninstalled, "uninstalling"}).Draw(t, "uninstall")
			w.snapshot.Release = &gone
		}
	}
}

// Whatever happens, hubs keep the rules. Once nothing more happens and nothing is broken,
// the member has what is desired.
func TestHubsKeepInstallRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &memberModel{snapshot: optedInSnapshot()}
		w.snapshot.Desired.Revision = "a"
		w.broken = rapid.Bool().Draw(t, "broken from the beginning")
		wait := func(d Decision) { w.snapshot.Now = w.snapshot.Now.Add(max(d.RecheckAfter, time.Second)) }
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 5).Draw(t, "people") == 0 {
				w.randomEvent(t)
				continue
			}
			d := w.runHub(t)
			if rapid.IntRange(0, 3).Draw(t, "wait") > 0 {
				wait(d)
			}
		}

		w.broken, w.snapshot.ProbeProblem, w.snapshot.PullMode, w.snapshot.OptedIn = false, nil, false, true
		w.snapshot.ClusterHolder, w.snapshot.OtherClusterUID = "", ""
		w.snapshot.Adopt, w.snapshot.Downgrade, w.snapshot.Attempts = true, w.snapshot.Desired.Chart, Attempts{}
		w.attempts = 0
		if r := w.snapshot.Release; r != nil && !isFinal(r.Status) && (r.Installer != self || !r.Status.IsPending()) {
			r.Status = StatusFailed // its owner ended it
		}
		// Each attempt may die, and leave a Lease of 30 s that is looked at every 10.
		for range 6 * MaxAttempts {
			d := w.runHub(t)
			if d.Condition.Status == metav1.ConditionTrue {
				if r := w.snapshot.Release; r.Status != StatusDeployed || r.Installer != self || r.Revision != w.snapshot.Desired.Revision {
					t.Fatalf("said to be installed: %+v", r)
				}
				return
			}
			if d.Action == ActionNone && d.RecheckAfter == 0 && w.snapshot.Attempts.Count < MaxAttempts {
				t.Fatalf("waits for nothing: %+v", d.Condition)
			}
			if d.Condition.Reason == "InstallAttemptsExhausted" && w.snapshot.Attempts.Count >= MaxAttempts {
				return // its hub crashed six times
			}
			wait(d)
		}
		t.Fatalf("not installed: %+v", w.snapshot)
	})
}
