package install

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// world is a member, and what hubs and people do to it.
type world struct {
	seen Seen
	// made counts the attempts at what the last one was of: at another thing the count
	// begins anew, also where it was tried before.
	of   string
	made int
	// broken: attempts fail.
	broken bool
}

var worldVersions = []string{"v0.1.0", "v0.2.0", "v0.2.0-3-gabcdef0", "v0.3.0", "dev", "abcdef0"}

// step has a hub look, and do what is decided; it may die of it.
func (w *world) step(t *rapid.T) Decision {
	before := w.seen
	d := Decide(w.seen)
	if d.Action == Nothing {
		return d
	}
	// What no decision may be.
	if !before.OptedIn || before.Pull || before.Faulty != nil || before.Unseen != nil || before.Holder != "" || before.Another != "" {
		t.Fatalf("%s although it must not: %+v", d.Action, before)
	}
	if r := before.Release; r != nil && r.Status != Uninstalled {
		if r.Maker != before.Self && !before.Adopt {
			t.Fatalf("%s of a release that is not its own: %+v", d.Action, r)
		}
		if r.Maker != before.Self && r.Status.Pending() {
			t.Fatalf("%s of what somebody else is at", d.Action)
		}
		if !ends(r.Status) && !r.Status.Pending() {
			t.Fatalf("%s goes on from %s", d.Action, r.Status)
		}
		// By the numbers alone, and not by the order that is decided by.
		if rank(before.Desired.Version) < rank(r.Version) && before.Downgrade != before.Desired.Version && before.Downgrade != before.Desired.Chart {
			t.Fatalf("%s puts %s in place of %s", d.Action, before.Desired.Version, r.Version)
		}
		if rank(before.Desired.Chart) < rank(r.Chart) && before.Downgrade != before.Desired.Chart {
			t.Fatalf("%s puts kinds of %s in place of those of %s", d.Action, before.Desired.Chart, r.Chart)
		}
	}
	if rank(before.Desired.Chart) < rank(before.Kinds) && before.Downgrade != before.Desired.Chart {
		t.Fatalf("%s puts kinds of %s in place of those of %s", d.Action, before.Desired.Chart, before.Kinds)
	}
	if before.Foreign != "" && !before.Adopt {
		t.Fatalf("%s although there is %s", d.Action, before.Foreign)
	}
	if d.TakeOwnership && !before.Adopt {
		t.Fatal("takes what it was not given")
	}
	w.seen.Attempts = w.seen.Next()
	if of := w.seen.Attempt(); of != w.of {
		w.of, w.made = of, 0
	}
	if w.made++; w.made > MostAttempts {
		t.Fatalf("attempt %d at one thing", w.made)
	}
	number := 1
	if before.Release != nil {
		number = before.Release.Number + 1
	}
	next := &Release{Name: "ot-agent", Number: number, Status: Deployed, Version: before.Desired.Version, Chart: before.Desired.Chart, Maker: before.Self, Revision: before.Desired.Revision}
	switch {
	case rapid.IntRange(0, 5).Draw(t, "dies") == 0:
		next.Status = PendingUpgrade
		w.seen.Lease = &Lease{Holder: "the dead", Until: w.seen.Now.Add(30 * time.Second)}
	case w.broken:
		next.Status = Failed
		w.seen.Attempts.Error = "broken"
	default:
		w.seen.Attempts, w.seen.Foreign = Attempts{}, ""
		w.made = 0 // what has succeeded may be lost, and made again
	}
	w.seen.Release, w.seen.Kinds = next, before.Desired.Chart
	return d
}

// rank of a version of worldVersions among releases; builds of none have none.
func rank(v string) int {
	for i, known := range worldVersions[:4] {
		if v == known {
			return i + 1
		}
	}
	return 0
}

func (w *world) happens(t *rapid.T) {
	some := func(label string) bool { return rapid.Bool().Draw(t, label) }
	version := rapid.SampledFrom(worldVersions)
	switch rapid.IntRange(0, 12).Draw(t, "what") {
	case 0:
		w.seen.OptedIn = some("opted in")
	case 1:
		w.seen.Desired.Chart = version.Draw(t, "hub's")
		if w.seen.Desired.Version = w.seen.Desired.Chart; some("pinned") {
			w.seen.Desired.Version = version.Draw(t, "tag")
		}
	case 2:
		w.seen.Desired.Revision = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "values")
	case 3:
		w.seen.Adopt = some("adopt")
	case 4:
		w.seen.Downgrade = version.Draw(t, "downgrade to")
	case 5: // a person, with Helm
		number := 1
		if w.seen.Release != nil {
			number = w.seen.Release.Number + 1
		}
		w.seen.Release = &Release{Name: "ot-agent", Number: number, Version: version.Draw(t, "by hand"), Chart: version.Draw(t, "chart by hand"),
			Status: rapid.SampledFrom([]Status{Deployed, Failed, PendingInstall, Uninstalled, "uninstalling"}).Draw(t, "status")}
	case 6:
		w.seen.Foreign = rapid.SampledFrom([]string{"", "Deployment x"}).Draw(t, "foreign")
	case 7:
		w.broken = some("broken")
	case 8:
		w.seen.Unseen = nil
		if some("dark") {
			w.seen.Unseen = &Trouble{"Unreachable", "refused"}
		}
	case 9:
		w.seen.Pull = some("pull")
	case 10:
		w.seen.Holder = rapid.SampledFrom([]string{"", "edge"}).Draw(t, "duplicate")
	case 11:
		w.seen.Another = rapid.SampledFrom([]string{"", "2222"}).Draw(t, "another cluster")
	case 12: // a person, with helm uninstall
		if w.seen.Release != nil {
			gone := *w.seen.Release
			gone.Status = rapid.SampledFrom([]Status{Uninstalled, "uninstalling"}).Draw(t, "uninstall")
			w.seen.Release = &gone
		}
	}
}

// Whatever happens, hubs keep to the rules; and when nothing more does, and nothing is
// wrong, the member has what it is to have.
func TestRulesHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{seen: bare()}
		w.seen.Desired.Revision = "a"
		w.broken = rapid.Bool().Draw(t, "broken from the beginning")
		wait := func(d Decision) { w.seen.Now = w.seen.Now.Add(max(d.After, time.Second)) }
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 5).Draw(t, "people") == 0 {
				w.happens(t)
				continue
			}
			d := w.step(t)
			if rapid.IntRange(0, 3).Draw(t, "wait") > 0 {
				wait(d)
			}
		}

		w.broken, w.seen.Unseen, w.seen.Pull, w.seen.OptedIn = false, nil, false, true
		w.seen.Holder, w.seen.Another = "", ""
		w.seen.Adopt, w.seen.Downgrade, w.seen.Attempts = true, w.seen.Desired.Chart, Attempts{}
		w.made = 0
		if r := w.seen.Release; r != nil && !ends(r.Status) && (r.Maker != self || !r.Status.Pending()) {
			r.Status = Failed // its owner ended it
		}
		for range 3 * MostAttempts {
			d := w.step(t)
			if d.Condition.Status == metav1.ConditionTrue {
				if r := w.seen.Release; r.Status != Deployed || r.Maker != self || r.Revision != w.seen.Desired.Revision {
					t.Fatalf("said to be installed: %+v", r)
				}
				return
			}
			if d.Action == Nothing && d.After == 0 && w.seen.Attempts.Count < MostAttempts {
				t.Fatalf("waits for nothing: %+v", d.Condition)
			}
			if d.Condition.Reason == "InstallFailed" && w.seen.Attempts.Count >= MostAttempts {
				return // its hub died six times
			}
			wait(d)
		}
		t.Fatalf("not installed: %+v", w.seen)
	})
}
