package prune

import (
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Draw draws the screen.
func (v *Review) Draw(p *render.Page) {
	p.Line(v.headline(v.now)...)
	if v.Message != "" && v.Phase != v1alpha1.PruneReportComplete {
		p.Line(render.Text("%s", v.Message))
	}
	if v.Phase != v1alpha1.PruneReportComplete {
		v.drawCommand(p)
		return
	}
	v.drawUnknown(p)
	line := render.Line{render.Bold("CAN GO"), render.Text("  %s, %s", render.Count(v.Candidates.Count, "image"), render.Bytes(v.Candidates.Bytes))}
	if v.Others.Count > 0 {
		line = append(line, render.Text("; %d of them made by people (%s)", v.Others.Count, render.Bytes(v.Others.Bytes)))
		if !v.IncludeOthers {
			line = append(line, render.Text(", which stay without --include-others"))
		}
	}
	p.Line(line...)
	if v.Pruned != nil {
		p.Line(render.Bold("PRUNED SINCE"), render.Text("  at least %s, %s", render.Count(v.Pruned.Count, "image"), render.Bytes(v.Pruned.Bytes)))
	}
	if v.Selected != nil {
		p.Line(render.Bold("SELECTED"), render.Text("  %s, %s", render.Count(v.Selected.Count, "image"), render.Bytes(v.Selected.Bytes)))
	}
	for _, w := range v.Warnings {
		p.Line(render.Attention.With("%s", w)...)
	}
	v.drawGroups(p)
	v.drawKept(p)
	v.drawCommand(p)
	if v.Source != "" {
		p.Gap()
		p.Line(render.Dim("(%s)", v.Source))
	}
}

func (s *ReportSummary) headline(now time.Time) render.Line {
	line := render.Line{render.Bold("REPORT %s", s.Report), render.Text(" · ")}
	if s.Stalled && s.Phase == v1alpha1.PruneReportScheduled {
		return append(line, render.Failed.With("schedule %s, %s", s.Schedule, s.Reason)...)
	}
	switch s.Phase {
	case v1alpha1.PruneReportComplete:
		line = append(line, render.Done.With("complete")...)
		if s.CompletedAt != nil {
			line = append(line, render.Text(" %s", render.Clock(now, s.CompletedAt.Time)))
		}
	case v1alpha1.PruneReportFailed:
		line = append(line, render.Failed.With("%s", s.Reason)...)
	case v1alpha1.PruneReportScheduled:
		line = append(line, render.Waiting.With("schedule %s", s.Schedule)...)
		if s.NextScheduleTime != nil {
			line = append(line, render.Text(", next %s", render.Clock(now, s.NextScheduleTime.Time)))
		}
		return line
	case "":
		line = append(line, render.Waiting.With("new")...)
	default:
		line = append(line, render.Running.With("%s", s.Reason)...)
	}
	line = append(line, render.Text(" · %d of %s answered", s.Clusters.Answered, render.Count(s.Clusters.Total, "cluster")))
	if s.Digest != "" {
		line = append(line, render.Text(" · digest %s", s.Digest))
	}
	return line
}

// maxNamed is how many unknown clusters the screen names.
const maxNamed = 5

func (s *ReportSummary) drawUnknown(p *render.Page) {
	if s.Clusters.Unknown == 0 {
		return
	}
	var names []string
	for i, c := range s.UnknownClusters {
		if i == maxNamed {
			names = append(names, "…")
			break
		}
		names = append(names, c.Cluster+" "+c.Reason)
	}
	p.Lines(render.Unknown.With("%s unknown, where nothing can go: %s", render.Count(s.Clusters.Unknown, "cluster"), strings.Join(names, ", ")))
}

func (v *Review) drawGroups(p *render.Page) {
	if len(v.Groups) == 0 {
		return
	}
	p.Gap()
	columns := []render.Column{
		{Title: strings.ToUpper(string(v.By)), Elastic: true, Min: 14}, {Title: "CLUSTERS", Right: true, Drop: 1}, {Title: "IMAGES", Right: true, Drop: 1}, {Title: "BYTES", Right: true},
		{Title: "OLDEST", Right: true}, {Title: "WOULD ANYTHING MISS IT", Drop: 2},
	}
	if v.By == readapi.PruneByImage {
		columns[2].Wide = true // one in each cluster
	}
	t := p.Table(columns...)
	for i, g := range v.Groups {
		if v.Limit > 0 && i == v.Limit {
			t.AddNote(render.Text("%d of %d are shown: --limit 0 shows all", v.Limit, v.GroupsTotal))
			break
		}
		since := "unknown"
		if g.OldestUnreferencedSince != nil {
			since = render.Age(v.now, g.OldestUnreferencedSince.Time)
		}
		t.Row(render.Cells(g.Name, render.Number(g.Clusters), render.Number(g.Images), render.Bytes(g.Bytes), since, whoMisses(&g))...)
	}
}

// whoMisses says who could miss the images: no machine and no rollout does, else they were no
// candidates.
func whoMisses(g *readapi.PruneGroup) string {
	switch {
	case g.Others == g.Images:
		return "made by people"
	case g.Others > 0:
		return numbers.Sprintf("%d made by people", g.Others)
	case g.DeclaredBy != "":
		return "no machine; an old version of " + g.DeclaredBy
	default:
		return "no machine, no rollout"
	}
}

func (v *Review) drawKept(p *render.Page) {
	var kept []string
	for _, k := range v.Kept {
		if k.Count > 0 {
			kept = append(kept, numbers.Sprintf("%s %d", k.Reason, k.Count))
		}
	}
	if len(kept) > 0 {
		p.Section("KEPT", render.Text("%s", strings.Join(kept, " · ")))
	}
	if v.Orphans.Count > 0 {
		p.Line(render.Bold("ORPHANS"), render.Text("  %d, %s: storage without an image, for people to delete", v.Orphans.Count, render.Bytes(v.Orphans.Bytes)))
	}
}

func (v *Review) drawCommand(p *render.Page) {
	if v.Command != "" {
		p.Gap()
		p.Command(v.Command)
	}
}
