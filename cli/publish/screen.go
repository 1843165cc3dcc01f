package publish

import (
	"fmt"

	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Draw draws what changes and what it costs.
func (p *Plan) Draw(page *render.Page) {
	if d := p.Disk; d != nil {
		page.Lines(render.Done.With("%s: %s, %s virtual, %s to download, %s", d.Path, d.Format, render.Bytes(d.VirtualBytes), render.Bytes(d.FileBytes), d.Checksum))
	}
	if p.SourceBytes > 0 {
		page.Lines(render.Done.With("the source answers: %s", render.Bytes(p.SourceBytes)))
	}
	what := p.Version
	if p.FromVersion != "" {
		what = p.FromVersion + " → " + p.Version
	}
	sign, tense := render.Waiting, "would be"
	if p.Written {
		sign, tense = render.Done, "is"
	}
	each := ""
	if p.Bytes == p.BytesEach*int64(p.Clusters) {
		each = fmt.Sprintf(" (%s each)", render.Bytes(p.BytesEach))
	}
	page.Lines(sign.With("FleetDiskImage/%s %s %s, for %d of %s: %s%s%s", p.Name, tense, what, p.Clusters, render.Count(p.Total, "cluster"), atMost(p.AtMost), render.Bytes(p.Bytes), each))
	p.drawDownloads(page)
	for _, c := range p.Changes {
		page.Line(render.Text("    %s: %s → %s", c.Field, orNone(c.From), orNone(c.To)))
	}
	for _, note := range p.Notes {
		page.Lines(render.Attention.With("%s", note))
	}
	if p.DryRun != "" {
		page.Line(render.Text("dry run (%s): nothing is written", p.DryRun))
	}
}

func orNone(text string) string {
	if text == "" {
		return "(none)"
	}
	return text
}

// Names are for -o name.
func (p *Plan) Names() []string { return []string{render.Reference("FleetDiskImage", p.Name)} }

// Code is that of a dry run: No where clusters could not begin.
func (p *Plan) Code() exit.Code {
	if p.DryRun != "" && len(p.Waiting) > 0 {
		return exit.No
	}
	return exit.Yes
}
