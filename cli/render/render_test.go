package render_test

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/cli/render"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 10 << 20: "10 MiB", 1<<20 - 1: "1 MiB",
		24 << 30: "24 GiB", 3651928064: "3.4 GiB", 777 << 30: "777 GiB", 2858730232218: "2.6 TiB", math.MaxInt64: "8 EiB",
	} {
		assert.Equal(t, want, render.Bytes(n))
	}
}

// The dashboard shows the same: api/numbers has the corpus of its tests.
func TestNumbers(t *testing.T) {
	assert.Equal(t, "1,200", render.Number(1200))
	assert.Equal(t, "1,200 images", render.Count(1200, "image"))
	assert.Equal(t, "1 image", render.Count(1, "image"))
	p := &render.Page{}
	p.Line(render.Text("%d of %s", 1000, "1000"), render.Bold(" %d", int32(2000)), render.Dim(" %d", int64(3000)))
	p.Lines(render.Failed.With("%d failed", 4000))
	assert.Equal(t, "1,000 of 1000 2,000 3,000\n✗ 4,000 failed\n", render.Print(p, render.Options{}))
}

func TestPercentNeverClaimsTheEnd(t *testing.T) {
	for share, want := range map[float64]string{0: "0%", 0.001: "1%", 0.5: "50%", 0.999: "99%", 1: "100%"} {
		assert.Equal(t, want, render.Percent(share))
	}
	assert.Equal(t, "█████████░", render.Bar(0.99, 10).Text)
	assert.Equal(t, "██████████", render.Bar(1, 10).Text)
}

func TestClock(t *testing.T) {
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.FixedZone("", 3600))
	assert.Equal(t, "16:42", render.Clock(now, time.Date(2026, 3, 2, 15, 42, 0, 0, time.UTC)))
	assert.Equal(t, "Tue 00:30", render.Clock(now, time.Date(2026, 3, 2, 23, 30, 0, 0, time.UTC)))
	assert.Equal(t, "2026-03-20 11:00", render.Clock(now, time.Date(2026, 3, 20, 10, 0, 0, 0, time.UTC)))
}

func newTable(p *render.Page) {
	t := p.Table(render.Column{Title: "CLUSTER"}, render.Column{Title: "IMAGE", Elastic: true}, render.Column{Title: "RATE", Right: true, Drop: 1}, render.Column{Title: "LEFT", Right: true})
	t.Row(render.Cells("bergen", "a-very-long-name-of-an-image-2.1.0", "58 MiB/s", "13m")...)
	t.Row(render.Line{render.Failed.Span(), render.Text(" lab")}, render.Words("b"), nil, render.Words("1m"))
	t.AddNote(render.Text("kubectl ot why image b"))
}

func TestNarrowTables(t *testing.T) {
	draw := func(width int) string {
		p := &render.Page{}
		newTable(p)
		return render.Print(p, render.Options{Width: width})
	}
	assert.Contains(t, draw(0), "a-very-long-name-of-an-image-2.1.0  58 MiB/s   13m")
	assert.NotContains(t, draw(55), "MiB/s")
	assert.Contains(t, draw(55), "a-very-long-name-of-an-image-2.1.0   13m")
	assert.Contains(t, draw(36), "…")
	assert.Contains(t, draw(36), "13m")
}

// Whatever clusters say, no control character reaches the terminal, and no line is wider than
// it, but where columns that may not be cut are.
func TestHostileTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Just("\x1b[2J\x1b]0;title\a"), rapid.Just("\u202egpj.exe"), rapid.Just("a\r\nb")).Draw(t, "text")
		width := rapid.IntRange(20, 200).Draw(t, "width")
		p := &render.Page{}
		p.Line(render.Bold("%s", text), render.Text("  %s %s", text, text))
		p.Tree(&render.Node{Label: render.Words(text), State: render.Words(text), Children: []*render.Node{{Label: render.Words(text)}}})
		table := p.Table(render.Column{Title: "A", Elastic: true, Min: 5}, render.Column{Title: "B", Elastic: true, Min: 5})
		table.Row(render.Words(text), render.Words(text))
		for _, o := range []render.Options{{Width: width}, {Width: width, ASCII: true}} {
			for line := range strings.Lines(render.Print(p, o)) {
				line = strings.TrimSuffix(line, "\n")
				assert.NotContains(t, line, "\x1b")
				assert.NotContains(t, line, "\u202e")
				assert.NotContains(t, line, "\r")
				if ansi.StringWidth(line) > width {
					t.Fatalf("%d cells in %d: %q", ansi.StringWidth(line), width, line)
				}
			}
		}
		markdown := render.Markdown(p, render.Completion{})
		assert.NotContains(t, markdown, "\x1b")
		assert.NotContains(t, markdown, "\u202e")
	})
}

// What clusters say reaches no terminal as data, either. JSON still has all of it.
func TestHostileData(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Just("\x1b[2J\x1b]0;title\a"), rapid.Just("a\u009b2Jb\x7f\u0085"), rapid.Just("\u202egpj.exe\r\u2028"), rapid.Just("a\n\tb")).Draw(t, "text")
		v := &view{render.NewEnvelope("Test"), []string{text, "c"}, 0}
		for _, o := range []string{"json", "yaml", "name", "jsonpath={.images[0]}", "jsonpath={.images}", "go-template={{index .images 0}}", "custom-columns=A:.images[*]"} {
			format, err := render.ParseFormat(o)
			require.NoError(t, err)
			var out bytes.Buffer
			require.NoError(t, format.Write(&out, v, render.Options{}), o)
			assert.Equal(t, render.Printable(out.String()), out.String(), o)
			if o == "json" {
				var decoded view
				require.NoError(t, json.Unmarshal(out.Bytes(), &decoded))
				assert.Equal(t, v, &decoded)
			}
		}
	})
}

// Errors and logs of others have tabs, which move the cursor forward only.
func TestPrintableKeepsLinesAndTabs(t *testing.T) {
	for text, want := range map[string]string{
		"":                  "",
		"a\tb\n\tc\n":       "a\tb\n\tc\n",
		"\t\n\n\t":          "\t\n\n\t",
		"a\x1b[2J\tb\rc\n":  "a\ufffd[2J\tb\ufffdc\n",
		"\u202e\ta\u2028\v": "\ufffd\ta\ufffd\ufffd",
	} {
		assert.Equal(t, want, render.Printable(text), "%q", text)
	}
	p := &render.Page{}
	p.Line(render.Text("a\tb"))
	assert.Equal(t, "a\ufffdb\n", render.Print(p, render.Options{}), "columns of a screen are counted in cells")
}

func TestColorOnlyWhereWanted(t *testing.T) {
	p := &render.Page{}
	p.Lines(render.Failed.With("lab NotFound"))
	assert.Equal(t, "✗ lab NotFound\n", render.Print(p, render.Options{}))
	assert.Equal(t, "x lab NotFound\n", render.Print(p, render.Options{ASCII: true}))
	colored := render.Print(p, render.Options{Color: true})
	assert.Contains(t, colored, "\x1b[")
	assert.Equal(t, "✗ lab NotFound\n", ansi.Strip(colored))
}

type view struct {
	render.Envelope
	Images []string `json:"images"`
	Bytes  int64    `json:"bytes,omitempty"`
}

func (v *view) Draw(p *render.Page) { p.Line(render.Text("%d images <b>", len(v.Images))) }
func (v *view) Names() []string     { return []string{"vmdiskimage/a"} }

func TestFormats(t *testing.T) {
	v := &view{render.NewEnvelope("Test"), []string{"a<b", "c"}, 24 << 30}
	for text, want := range map[string]string{
		"":                          "2 images <b>\n",
		"wide":                      "2 images <b>\n",
		"markdown":                  "2 images &lt;b&gt;  \n",
		"name":                      "vmdiskimage/a\n",
		"jsonpath={.images[0]}":     "a<b\n",
		"jsonpath=.kind":            "Test\n",
		"jsonpath={.command}":       "\n",
		"jsonpath={.a.b[0].c}":      "\n",
		"jsonpath={.bytes}":         "25769803776\n",
		"jsonpath={.kind}{\"\\n\"}": "Test\n",
		"go-template={{range .images}}{{.}};{{end}}":                          "a<b;c;\n",
		"go-template={{.bytes}}{{.missing}}{{\"\\n\"}}":                       "25769803776<no value>\n",
		"custom-columns=KIND:.kind,IMAGES:{.images[*]},BYTES:bytes,NONE:.a.b": "KIND  IMAGES  BYTES        NONE\nTest  a<b,c   25769803776  <none>\n",
		"yaml": "apiVersion: cli.pelotech.ot/v1alpha1\nbytes: 25769803776\nimages:\n- a<b\n- c\nkind: Test\n",
		"json": "{\n  \"apiVersion\": \"cli.pelotech.ot/v1alpha1\",\n  \"kind\": \"Test\",\n  \"images\": [\n    \"a<b\",\n    \"c\"\n  ],\n  \"bytes\": 25769803776\n}\n",
	} {
		format, err := render.ParseFormat(text)
		require.NoError(t, err, text)
		var out bytes.Buffer
		require.NoError(t, format.Write(&out, v, render.Options{}))
		assert.Equal(t, want, out.String(), text)
	}
	for _, text := range []string{"xml", "jsonpath={.a", "jsonpath", "csv", "json=x", "go-template={{", "custom-columns=", "custom-columns=A", "custom-columns=A:{.a"} {
		_, err := render.ParseFormat(text)
		require.ErrorContains(t, err, "-o "+text)
	}
}

// items is a list, with what stands beside it.
type items struct {
	render.Envelope
	Items []map[string]any `json:"items"`
}

func (v *items) Draw(p *render.Page) {
	t := p.Table(render.Column{Title: "A LONG TITLE"}, render.Column{Title: "B"})
	for _, of := range v.Items {
		t.Row(render.Cells(of["a"].(string), "b")...)
	}
	p.Gap()
	p.Aside(render.Text("%d are shown", len(v.Items)))
}

// Scripts take each line for a row.
func TestNoHeaders(t *testing.T) {
	v := &items{render.NewEnvelope("List"), []map[string]any{{"a": "x", "n": 1000}, {"a": "y"}}}
	for output, want := range map[string]struct{ with, without, aside string }{
		"":                           {with: "A LONG TITLE  B\nx             b\ny             b\n\n2 are shown\n", without: "x  b\ny  b\n", aside: "2 are shown\n"},
		"custom-columns=A:.a,N:{.n}": {with: "A  N\nx  1000\ny  <none>\n", without: "x  1000\ny  <none>\n"},
		"jsonpath={.items[*].a}":     {with: "x y\n", without: "x y\n"},
	} {
		format, err := render.ParseFormat(output)
		require.NoError(t, err)
		var with, without, aside bytes.Buffer
		require.NoError(t, format.Write(&with, v, render.Options{Asides: &aside}))
		assert.Empty(t, aside.String())
		require.NoError(t, format.Write(&without, v, render.Options{NoHeaders: true, Asides: &aside}))
		assert.Equal(t, want.with, with.String(), output)
		assert.Equal(t, want.without, without.String(), output)
		assert.Equal(t, want.aside, aside.String(), output)
	}
}
