// Package render draws the screens of the command line.
//
// A verb makes a View: a struct of plain data, which -o json prints as it is. Its Draw puts
// blocks on a Page: lines, tables, trees, commands to copy. The Page is printed as text for
// a terminal of any width, with or without colour, or as Markdown. So text and JSON say
// the same: rendertest checks that every number on a screen is in the JSON.
//
// A colour never stands alone: signs and words say the same.
//
//	type View struct {
//		render.Envelope
//		Cluster string `json:"cluster"`
//		Images  []Image `json:"images"`
//	}
//
//	func (v *View) Draw(p *render.Page) {
//		p.Line(render.Bold(v.Cluster), render.Text("  %d images", len(v.Images)))
//		t := p.Table(render.Column{Title: "IMAGE"}, render.Column{Title: "LEFT", Right: true})
//		for _, i := range v.Images {
//			t.Row(render.Words(i.Name), render.Words(render.Duration(i.Left)))
//		}
//	}
package render
