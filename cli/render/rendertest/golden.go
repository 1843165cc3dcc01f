// Package rendertest compares screens with golden files, and checks that they say nothing
// that the JSON does not.
package rendertest

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/cli/render"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// Golden compares the screens of a view with testdata/<name>.golden: at 120, 80 and 40
// columns, the last in ASCII, as Markdown, and the lines of a watch. It also checks that no line is wider than its
// terminal (but commands to copy, which are never cut), and that every number on the screen
// is in the JSON, given what the clock says.
func Golden(t *testing.T, name string, now time.Time, view render.View) {
	t.Helper()
	var all strings.Builder
	for _, o := range []render.Options{{Width: 120}, {Width: 80}, {Width: 40, ASCII: true}} {
		text := draw(view, o)
		fmt.Fprintf(&all, "--- %d columns\n%s", o.Width, text)
		checkWidth(t, text, o.Width)
	}
	page := &render.Page{}
	view.Draw(page)
	fmt.Fprintf(&all, "--- markdown\n%s", render.Markdown(page, render.Completion{}))
	CheckNumbers(t, now, view)
	if v, ok := view.(interface{ WatchItems() []render.Item }); ok {
		all.WriteString("--- watched\n")
		keys := map[string]bool{}
		for _, item := range v.WatchItems() {
			assert.False(t, keys[item.Key], "two items %q", item.Key)
			keys[item.Key] = true
			all.WriteString(item.Print(render.Options{}) + "\n")
		}
	}

	path := filepath.Join("testdata", name+".golden")
	if *rewrite {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(all.String()), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "write it with go test -rewrite, and read it")
	assert.Equal(t, string(want), all.String(), "go test -rewrite writes it anew: read what changed")
}

// GoldenJSON compares what a view prints as JSON with testdata/<name>.json.
func GoldenJSON(t *testing.T, name string, view render.View) {
	t.Helper()
	text, err := json.MarshalIndent(view, "", "  ")
	require.NoError(t, err)
	path := filepath.Join("testdata", name+".json")
	if *rewrite {
		require.NoError(t, os.WriteFile(path, append(text, '\n'), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "write it with go test -rewrite, and read it")
	assert.JSONEq(t, string(want), string(text), "go test -rewrite writes it anew: read what changed")
}

func draw(view render.View, o render.Options) string {
	page := &render.Page{}
	view.Draw(page)
	return render.Print(page, o)
}

func checkWidth(t *testing.T, text string, width int) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if !strings.HasPrefix(strings.TrimSpace(line), "kubectl ") {
			assert.LessOrEqual(t, ansi.StringWidth(line), width, "wider than the terminal: %q", line)
		}
	}
}

// number is a number with its unit, as far as it is told apart by it.
var number = regexp.MustCompile(`\d+(?:[.,:]\d+)*`)

// CheckNumbers checks that every number on the screen is in the JSON: as it is, or as the
// screen formats sizes, rates, shares, durations and times.
func CheckNumbers(t *testing.T, now time.Time, view render.View) {
	t.Helper()
	data, err := json.Marshal(view)
	require.NoError(t, err)
	var fields any
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&fields))
	known := map[string]bool{}
	collect(fields, now, known)
	wide := &render.Page{Wide: true}
	view.Draw(wide)
	for line := range strings.Lines(render.Print(wide, render.Options{})) {
		for _, n := range number.FindAllString(line, -1) {
			assert.True(t, known[n], "the JSON does not have %s of %q", n, line)
		}
	}
}

func collect(value any, now time.Time, known map[string]bool) {
	add := func(texts ...string) {
		for _, text := range texts {
			for _, n := range number.FindAllString(text, -1) {
				known[n] = true
			}
		}
	}
	switch v := value.(type) {
	case map[string]any:
		for key, x := range v {
			add(key)
			collect(x, now, known)
		}
	case []any:
		add(render.Number(len(v)))
		for _, x := range v {
			collect(x, now, known)
		}
	case string:
		add(v)
		if at, err := time.Parse(time.RFC3339, v); err == nil {
			add(render.Clock(now, at), render.Duration(at.Sub(now).Abs()))
		}
	case json.Number:
		add(v.String())
		if n, err := v.Int64(); err == nil {
			add(render.Number(n), render.Bytes(n), render.Duration(time.Duration(n)*time.Second))
		}
		if share, err := v.Float64(); err == nil && share >= 0 && share <= 1 {
			add(render.Percent(share))
		}
	}
}
