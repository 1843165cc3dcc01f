package fleetpolicy

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// maxRows is how many clusters a screen shows; the JSON has all of them.
const maxRows = 50

// DiffSnapshot is what a Diff is made of.
type DiffSnapshot struct {
	Now time.Time
	// InForce is the data of the policy in force; nil for none. Then is what it is compared
	// with.
	InForce, Then map[string]string
	Members       []v1alpha1.MemberCluster
	// Answer of the hub's read API, which knows waits; nil where it was not asked, and Unread
	// says why.
	Answer *readapi.BlastRadius
	Unread string
	// ServerAnswer is what the hub wrote to a preview; empty where it was not asked.
	ServerAnswer string
}

// Diff is the answer of kubectl ot policy diff.
type Diff struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	readapi.BlastRadius
	ServerAnswer string `json:"serverAnswer,omitempty"`
	Unread       string `json:"unread,omitempty"`

	now time.Time
}

// NewDiff returns what would change.
func NewDiff(s DiffSnapshot) *Diff {
	d := &Diff{Envelope: render.NewEnvelope("PolicyDiff"), ObservedAt: metav1.NewTime(s.Now), ServerAnswer: s.ServerAnswer, Unread: s.Unread, now: s.Now}
	then, unknown, errs := policy.ParsePolicy(s.Then)
	if len(errs) > 0 {
		d.BlastRadius = answers.RefusePolicy(errs, len(s.Members))
		d.UnknownKeys = unknown
		return d
	}
	var inForce *policy.Policy
	if s.InForce != nil {
		inForce, _, _ = policy.ParsePolicy(s.InForce) // one that cannot be read is none
	}
	d.BlastRadius = answers.BlastRadius(&answers.CompareBlast{InForce: answers.PolicyInForce{Policy: inForce, Now: s.Now}, Then: then, Members: s.Members, Limit: len(s.Members)})
	d.UnknownKeys = unknown
	d.addWaits(s.Answer)
	return d
}

// addWaits takes over what only the hub knows.
func (d *Diff) addWaits(answer *readapi.BlastRadius) {
	if answer == nil {
		return
	}
	known := make(map[string]*readapi.BlastRow, len(answer.Rows))
	for i := range answer.Rows {
		known[answer.Rows[i].Member] = &answer.Rows[i]
	}
	for i := range d.Rows {
		if of := known[d.Rows[i].Member]; of != nil {
			d.Rows[i].OldestQueuedAt, d.Rows[i].WaitNow, d.Rows[i].WaitThen, d.Rows[i].Unknown = of.OldestQueuedAt, of.WaitNow, of.WaitThen, of.Unknown
		}
	}
}

// ExitCode is Yes for no difference, No for one, and Failure where it would be refused.
func (d *Diff) ExitCode() exit.Code {
	switch {
	case len(d.Refused) > 0:
		return exit.Unanswered
	case d.Changed > 0 || d.BudgetChange != "":
		return exit.No
	default:
		return exit.Yes
	}
}

// Names implements render.Named.
func (d *Diff) Names() (names []string) {
	for i := range d.Rows {
		names = append(names, render.Reference("MemberCluster", d.Rows[i].Member))
	}
	return names
}

// Draw draws the screen.
func (d *Diff) Draw(p *render.Page) {
	if len(d.Refused) > 0 {
		p.Line(render.Failed.With("The policy would be refused; the one in force stays.")...)
		for _, why := range d.Refused {
			p.Line(render.Text("  %s", why))
		}
		return
	}
	p.Line(
		render.Bold("%d of %s would change", d.Changed, render.Count(d.Members, "cluster")),
		render.Text(" · concurrency %d → %d (%s)%s", d.ConcurrencyNow, d.ConcurrencyThen, signed(d.ConcurrencyThen-d.ConcurrencyNow), d.fleetBudget()),
	)
	if d.BudgetChange != "" {
		p.Line(render.Text("The budget of the fleet: %s", d.BudgetChange))
	}
	if d.Windows != "" {
		p.Line(render.Text("%s", d.Windows))
	}
	d.drawRows(p)
	for i := range d.Rows {
		if r := &d.Rows[i]; r.Running != nil && int64(*r.Running) > r.Then {
			p.Line(render.Text("Nothing that runs is stopped: clusters beyond their new concurrency start none until enough have ended."))
			break
		}
	}
	for _, override := range d.Unmatched {
		p.Lines(render.Attention.With("No cluster matches: %s", override))
	}
	for _, name := range d.HeldMembers {
		p.Lines(render.Attention.With("%s runs less than planned, by its own policy ConfigMap", name))
	}
	for _, key := range d.UnknownKeys {
		p.Lines(render.Attention.With("Key %s is unknown to this version, and has no effect", key))
	}
	for _, note := range d.Ineffective {
		p.Lines(render.Attention.With("%s", note))
	}
	if d.ServerAnswer != "" {
		p.Section("THE HUB SAYS")
		for line := range strings.Lines(d.ServerAnswer) {
			p.Line(render.Text("%s", strings.TrimRight(line, "\n")))
		}
	}
	if d.Unread != "" {
		p.Gap()
		p.Line(render.Dim("%s", d.Unread))
	}
}

func (d *Diff) fleetBudget() string {
	switch {
	case d.FleetNow == nil || d.FleetThen == nil || *d.FleetNow != *d.FleetThen:
		return ""
	default:
		return fmt.Sprintf(" · fleetConcurrency %d (unchanged)", *d.FleetThen)
	}
}

func (d *Diff) drawRows(p *render.Page) {
	if len(d.Rows) == 0 {
		return
	}
	p.Gap()
	t := p.Table(
		render.Column{Title: "CLUSTER", Elastic: true, Min: 8}, render.Column{Title: "NOW", Right: true}, render.Column{Title: "THEN", Right: true}, render.Column{Title: ""},
		render.Column{Title: "RUNNING", Drop: 3}, render.Column{Title: "QUEUED", Right: true, Drop: 2},
		render.Column{Title: "WAIT, OLDEST", Drop: 4}, render.Column{Title: "OTHER KEYS", Drop: 5, Elastic: true}, render.Column{Title: "FROM", Drop: 1, Elastic: true},
	)
	for i := range d.Rows {
		if i == maxRows {
			t.AddNote(render.Text("and %d more: -o json has all", len(d.Rows)-maxRows))
			return
		}
		r := &d.Rows[i]
		t.Row(
			render.Words(r.Member), render.Words(concurrency(r.Now, r.PlannedNow)), render.Words(concurrency(&r.Then, r.PlannedThen)), render.Line{direction(r)},
			render.Words(running(r)), render.Words(number(r.Queued)), render.Words(d.wait(r)), render.Words(dash(r.OtherChanges)), render.Words(r.From),
		)
	}
}

func concurrency(effective, planned *int64) string {
	switch {
	case effective == nil:
		return "-"
	case planned != nil:
		return fmt.Sprintf("%d (of %d)", *effective, *planned)
	default:
		return fmt.Sprint(*effective)
	}
}

// direction has a sign where concurrency rises or falls.
func direction(r *readapi.BlastRow) render.Span {
	switch {
	case r.Now == nil || *r.Now == r.Then:
		return render.Text("=")
	case *r.Now < r.Then:
		return render.Span{Text: "▲ more", ASCII: "^ more", Style: render.Good}
	default:
		return render.Span{Text: "▼ less", ASCII: "v less", Style: render.Notice}
	}
}

func running(r *readapi.BlastRow) string {
	if r.Running == nil {
		return "unknown"
	}
	if int64(*r.Running) > r.Then {
		return fmt.Sprintf("%d, over", *r.Running)
	}
	return fmt.Sprint(*r.Running)
}

func number(n *int32) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func signed(n int64) string {
	if n == 0 {
		return "±0"
	}
	return fmt.Sprintf("%+d", n)
}

// wait is how long the image that has waited longest still waits, now and then.
func (d *Diff) wait(r *readapi.BlastRow) string {
	if r.WaitNow == nil && r.WaitThen == nil {
		return "-"
	}
	return d.until(r.WaitNow) + " → " + d.until(r.WaitThen)
}

func (d *Diff) until(e *readapi.Estimate) string {
	if e == nil || e.At == nil {
		return "?"
	}
	return "~" + render.Duration(max(0, e.At.Sub(d.now)))
}
