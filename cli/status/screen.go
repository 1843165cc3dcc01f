package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// maxNamed is how many clusters of a kind are named on the screen; the JSON has all.
const maxNamed = 3

// Draw draws the screen.
func (st *Status) Draw(p *render.Page) {
	p.Line(render.Bold("FLEET %s", st.Hub), render.Text(" · %s", render.Count(st.Clusters.Total, "cluster")))
	switch {
	case st.Command != "":
		p.Line(render.Text("No cluster has joined yet. Let one join:"))
		p.Command(st.Command)
	case len(st.Only) > 0:
		st.drawListed(p)
	default:
		p.Line(st.clusterLine()...)
		if st.leavesOutNames() {
			p.Line(render.Dim("  -v names all of them"))
		}
	}
	if st.PolicyProblem != "" {
		p.Lines(append(render.Line{render.Text("  ")}, render.Failed.With("the policy is not in force: %s", st.PolicyProblem)...))
	}
	if st.PolicyContradiction != "" {
		p.Lines(append(render.Line{render.Text("  ")}, render.Attention.With("the policy is %s", st.PolicyContradiction)...))
	}
	if st.PolicyUnread {
		p.Line(render.Text("  The hub has not read the policy yet."))
	}
	if st.Command == "" && len(st.Only) == 0 {
		st.drawSlots(p)
	}
	st.drawRollouts(p)
	st.drawFailed(p)
	if len(st.Schedules) > 0 {
		p.Gap()
		t := p.Table(render.Column{Title: "PRUNE REPORTS", Elastic: true, Min: 14}, render.Column{Title: "STATE", Elastic: true, Min: 10}, render.Column{Title: "MESSAGE", Elastic: true, Min: 10, Drop: 1})
		for _, s := range st.Schedules {
			t.Row(render.Words(s.Name), render.Failed.With("%s", s.Reason), render.Words(s.Message))
			t.Command(s.Command)
		}
	}
	if c := st.Prunable; c != nil && c.Images > 0 {
		p.Section("CAN GO", render.Text("%s, %s (report %s, %s ago%s)", render.Count(c.Images, "image"), render.Bytes(c.Bytes), c.Report,
			render.Age(st.now, c.CompletedAt.Time), unknownClusters(c.Unknown)))
		p.Command(c.Command)
		if c.Unread != "" {
			p.Line(render.Dim("  %s", c.Unread))
		}
	}
	if st.Unread != "" {
		p.Gap()
		p.Line(render.Dim("%s", st.Unread))
	}
}

// verbs of what is listed.
var verbs = map[string]string{"failing": "fails", "unknown": "is unknown"}

// drawListed draws the clusters that are listed, and says how many others are not well.
func (st *Status) drawListed(p *render.Page) {
	if failing, unknown := st.countClusters(); failing+unknown == 0 {
		p.Lines(append(render.Words("  "), render.Done.With("no cluster %s", st.listedVerb())...))
	} else {
		t := p.Table(render.Column{Title: "CLUSTER", Elastic: true, Min: 10}, render.Column{Title: "STATE"}, render.Column{Title: "SINCE", Right: true, Drop: 1}, render.Column{Title: "MESSAGE", Elastic: true, Min: 10, Drop: 2}).Indent(2)
		n := 0
		for _, group := range st.clusterGroups() {
			for _, c := range group.clusters {
				if n++; n > maxRollouts && !st.namesAll {
					continue
				}
				since := "-"
				if c.Since != nil {
					since = render.Age(st.now, c.Since.Time)
				}
				t.Row(render.Words(c.Name), group.sign.With("%s", group.word), render.Words(since), render.Words(c.Message))
			}
		}
		if n > maxRollouts && !st.namesAll {
			t.AddNote(render.Dim("… and more: -v names all of them"))
		}
	}
	if n := st.FailingNotListed; n > 0 {
		p.Lines(append(render.Words("  "), render.Failed.With("%s not well: --failing lists them", render.Count(n, "cluster"))...))
	}
	if n := st.UnknownNotListed; n > 0 {
		p.Lines(append(render.Words("  "), render.Unknown.With("%s unknown: --unknown lists them", render.Count(n, "cluster"))...))
	}
}

func (st *Status) listedVerb() string {
	words := make([]string, len(st.Only))
	for i, only := range st.Only {
		words[i] = verbs[only]
	}
	return strings.Join(words, " or ")
}

// listedSummary names what is listed: which clusters they are may change where their number does not.
func (st *Status) listedSummary() string {
	var parts []string
	for _, group := range st.clusterGroups() {
		names := make([]string, len(group.clusters))
		for i, c := range group.clusters {
			names[i] = c.Name
		}
		if len(names) > 0 {
			parts = append(parts, group.word+": "+strings.Join(names, ", "))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no cluster " + st.listedVerb()}
	}
	return fmt.Sprintf("FLEET %s: %s; %s, %s failed", st.Hub, strings.Join(parts, "; "), render.Count(len(st.Rollouts), "rollout"), render.Count(st.FailedTotal, "image"))
}

// Summary is the line of a change.
func (st *Status) Summary() string {
	if len(st.Only) > 0 {
		return st.listedSummary()
	}
	held := 0
	for _, r := range st.Rollouts {
		if r.rank() == rankHeld {
			held++
		}
	}
	clusters := numbers.Sprintf("%d of %s ready", st.Clusters.Ready, render.Count(st.Clusters.Total, "cluster"))
	for _, group := range st.clusterGroups() {
		if len(group.clusters) > 0 {
			clusters += numbers.Sprintf(", %d %s", len(group.clusters), group.word)
		}
	}
	return numbers.Sprintf("FLEET %s: %s, %s, %d queued, %d of %s done, %d held, %s failed", st.Hub, clusters, st.Slots.text(), st.Slots.Queued,
		st.RolloutsDone, render.Count(len(st.Rollouts), "rollout"), held, render.Count(st.FailedTotal, "image"))
}

func unknownClusters(n int32) string {
	if n == 0 {
		return ""
	}
	return ", " + render.Count(n, "cluster") + " unknown"
}

type clusterGroup struct {
	sign     render.Sign
	word     string
	clusters []Cluster
}

func (st *Status) clusterGroups() []clusterGroup {
	return []clusterGroup{
		{render.Failed, "not ready", st.Clusters.NotReady},
		{render.Failed, "failing", st.Clusters.Failing},
		{render.Attention, "silent", st.Clusters.Silent},
		{render.Attention, "in quarantine", st.Clusters.Quarantined},
		{render.Unknown, "never reported", st.Clusters.Unknown},
	}
}

func (st *Status) leavesOutNames() bool {
	return !st.namesAll && slices.ContainsFunc(st.clusterGroups(), func(g clusterGroup) bool { return len(g.clusters) > maxNamed })
}

func (st *Status) clusterLine() render.Line {
	line := render.Line{render.Text("  ")}
	line = append(line, render.Done.With("%d ready", st.Clusters.Ready)...)
	for _, group := range st.clusterGroups() {
		if len(group.clusters) == 0 {
			continue
		}
		line = append(line, render.Text("   "))
		line = append(line, group.sign.With("%d %s", len(group.clusters), group.word)...)
		line = append(line, render.Text(" (%s)", st.nameClusters(group.clusters)))
	}
	return line
}

func (st *Status) nameClusters(clusters []Cluster) string {
	text := ""
	for i, c := range clusters {
		if i == maxNamed && !st.namesAll {
			return text + " …"
		}
		if i > 0 {
			text += ", "
		}
		text += c.Name
		if c.Since != nil {
			text += " " + render.Age(st.now, c.Since.Time)
		}
	}
	return text
}

// text says how many slots are used, in the words of the dashboard's page of the fleet: of the fleet's
// limit where that is known, else of what the clusters may use.
func (s Slots) text() string {
	atLeast := ""
	if s.UsedAtLeast {
		atLeast = "at least "
	}
	switch {
	case s.Limit != nil && s.Held != nil:
		return numbers.Sprintf("%s%d of %d slots of the fleet used, %d taken", atLeast, s.Used, *s.Limit, max(s.Used, *s.Held))
	case s.Limit != nil:
		return numbers.Sprintf("%s%d of %d slots of the fleet used", atLeast, s.Used, *s.Limit)
	case s.Held != nil:
		return numbers.Sprintf("%d of %d slots of the clusters used, %d taken in the fleet's budget", s.Used, s.Budget, *s.Held)
	default:
		return numbers.Sprintf("%d of %d slots of the clusters used", s.Used, s.Budget)
	}
}

func (s Slots) share() float64 {
	limit := int64(s.Budget)
	if s.Limit != nil {
		limit = *s.Limit
	}
	if limit == 0 {
		return 0
	}
	return float64(s.Used) / float64(limit)
}

func (st *Status) drawSlots(p *render.Page) {
	line := render.Line{render.Text("%s  ", st.Slots.text()), render.Bar(st.Slots.share(), 20), render.Text("   %d queued", st.Slots.Queued)}
	if reserved := st.Slots.Reserved; reserved != nil && *reserved > 0 {
		line = append(line, render.Text("   %d reserved for silent clusters", *reserved))
	}
	p.Section("TRANSFERS", line...)
	if len(st.Sources) == 0 {
		return
	}
	t := p.Table(
		render.Column{Title: "SOURCE"}, render.Column{Title: "SLOTS", Right: true}, render.Column{Title: "RATE", Right: true}, render.Column{Title: "LAST HOUR", Drop: 3},
		render.Column{Title: "IN A DAY", Right: true, Drop: 2}, render.Column{Title: "WAITS", Drop: 1},
	).Indent(2)
	for _, s := range st.Sources {
		slots, rate, day, waits := render.Number(s.Used), "-", "-", "-"
		if s.Limit != nil {
			slots = numbers.Sprintf("%d of %d", s.Used, *s.Limit)
		}
		if s.BytesPerSecond != nil {
			rate = render.Rate(*s.BytesPerSecond)
		}
		if s.Bytes24h != nil {
			day = render.Bytes(*s.Bytes24h)
		}
		if s.Waiting > 0 {
			waits = fmt.Sprintf("%s in %s", render.Count(s.Waiting, "image"), render.Count(s.WaitingMembers, "cluster"))
		}
		t.Row(render.Words(s.Name), render.Words(slots), render.Words(rate), render.Line{render.Sparkline(s.Trend)}, render.Words(day), render.Words(waits))
	}
}

func (st *Status) drawRollouts(p *render.Page) {
	if len(st.Rollouts) == 0 {
		return
	}
	shown := slices.DeleteFunc(slices.Clone(st.Rollouts), func(r Rollout) bool { return r.rank() == rankDone })
	if len(shown) == 0 {
		p.Section("ROLLOUTS", render.Done.With("%d done", st.RolloutsDone)...)
		return
	}
	slices.SortStableFunc(shown, func(a, b Rollout) int { return cmp.Compare(a.rank(), b.rank()) })
	p.Gap()
	t := p.Table(
		render.Column{Title: "ROLLOUTS", Elastic: true, Min: 14}, render.Column{Title: "STATE", Elastic: true, Min: 10}, render.Column{Title: "WAVE", Drop: 3},
		render.Column{Title: "CLUSTERS", Right: true, Drop: 2}, render.Column{Title: "DONE", Right: true}, render.Column{Title: "RUN", Right: true, Drop: 1},
		render.Column{Title: "FAIL", Right: true}, render.Column{Title: "WAIT", Right: true, Drop: 1}, render.Column{Title: "DONE BY", Drop: 4},
	)
	for i, r := range shown {
		if i == maxRollouts && !st.namesAll {
			t.AddNote(render.Text("… and more:"))
			t.Command("kubectl ot get rollouts")
			break
		}
		counts := []string{"-", "-", "-", "-", "-"}
		if c := r.Clusters; c != nil {
			counts = []string{render.Number(c.Total), render.Number(c.Succeeded), render.Number(c.Progressing), render.Number(c.AllFailed()), render.Number(c.ToApply + c.Deferred)}
		}
		row := append([]render.Line{render.Words(r.Name + " " + r.Version), stateOf(r), render.Words(dash(r.Wave))}, render.Cells(counts...)...)
		t.Row(append(row, render.Words(st.expected(r)))...)
		if r.Command != "" {
			t.Command(r.Command)
		}
	}
	if st.RolloutsDone > 0 {
		t.AddNote(render.Dim("and %d done", st.RolloutsDone))
	}
}

// maxRollouts is how many rollouts the screen lists; the JSON has all.
const maxRollouts = 12

func stateOf(r Rollout) render.Line {
	switch r.Phase {
	case "":
		return r.sign().With(rollout.Unobserved)
	case v1alpha1.RolloutSucceeded:
		return r.sign().With("%s", r.Phase)
	default:
		return r.sign().With("%s", r.Reason)
	}
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func (st *Status) expected(r Rollout) string {
	if r.ExpectedAt == nil {
		return "-"
	}
	return "~" + render.Clock(st.now, r.ExpectedAt.Round(time.Minute))
}

func (st *Status) drawFailed(p *render.Page) {
	if st.FailedTotal == 0 {
		return
	}
	p.Section("FAILED IMAGES", render.Text("%d", st.FailedTotal))
	t := p.Table(render.Column{Title: "CLUSTER"}, render.Column{Title: "IMAGE", Elastic: true, Min: 10}, render.Column{Title: "REASON"}, render.Column{Title: "MESSAGE", Elastic: true, Min: 10, Drop: 1})
	for i, f := range st.Failed {
		if i == maxFailed && !st.namesAll {
			t.AddNote(render.Text("… and more:"))
			t.Command("kubectl ot get images --failing")
			break
		}
		t.Row(render.Cells(f.Cluster, f.Namespace+"/"+f.Name, string(f.Reason), f.Message)...)
		t.Command(f.Command)
	}
}

// maxFailed is how many failed images the screen lists; the JSON has all that are known.
const maxFailed = 5
