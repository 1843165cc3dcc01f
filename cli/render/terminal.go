package render

import (
	"fmt"
	"io"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// Options say how a page is printed.
type Options struct {
	// Width of the terminal in cells; 0: unlimited, as in a pipe.
	Width int
	Color bool
	ASCII bool
	// NoHeaders: tables have rows alone, and what stands beside a list goes to Asides; nil: nowhere.
	NoHeaders bool
	Asides    io.Writer
	Completion
}

type terminal struct{ Options }

var styles = map[Style]lipgloss.Style{
	Strong: lipgloss.NewStyle().Bold(true),
	Faint:  lipgloss.NewStyle().Faint(true),
	Good:   lipgloss.NewStyle().Foreground(lipgloss.Green),
	Notice: lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	Bad:    lipgloss.NewStyle().Foreground(lipgloss.Red),
	Busy:   lipgloss.NewStyle().Foreground(lipgloss.Cyan),
}

// Print returns a page as text for a terminal. Every line ends with a line break.
func Print(p *Page, options Options) string {
	var b strings.Builder
	for _, block := range p.shown(options) {
		for _, line := range block.plain(terminal{options}) {
			b.WriteString(strings.TrimRight(line, " "))
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// writeAsides prints what Print leaves out of a page.
func (o Options) writeAsides(p *Page) {
	if !o.NoHeaders || o.Asides == nil {
		return
	}
	for _, block := range p.blocks {
		if aside, ok := block.(aside); ok {
			fmt.Fprintln(o.Asides, strings.Join(aside.plain(terminal{o}), "\n"))
		}
	}
}

// Markdown returns a page as Markdown, for summaries of pipelines and pull requests.
func Markdown(p *Page, c Completion) string {
	var b strings.Builder
	for _, block := range p.blocks {
		for _, line := range block.markdown(Options{Completion: c}) {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func (t terminal) paint(s Span) string {
	text := s.text(t.Options)
	style, ok := styles[s.Style]
	if !t.Color || !ok || text == "" {
		return text
	}
	return style.Render(text)
}

func (t terminal) paintLine(l Line) string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(t.paint(s))
	}
	return b.String()
}

// width of a line in cells.
func (t terminal) width(l Line) int { return ansi.StringWidth(l.text(t.Options)) }

// wrap breaks a line between words; what follows is indented as the line is, and two cells
// more. Names are not broken, unless they are wider than the terminal.
func (t terminal) wrap(l Line) []string {
	if t.Width <= 0 || t.width(l) <= t.Width {
		return []string{t.paintLine(l)}
	}
	text := l.text(t.Options)
	indent := min(len(text)-len(strings.TrimLeft(text, " "))+2, t.Width/2)
	var lines []string
	current, used := Line{}, 0
	for _, word := range t.words(l) {
		width := ansi.StringWidth(word.text(t.Options))
		if used > 0 && used+width > t.Width {
			lines = append(lines, t.cut(current))
			current, used = Line{{Text: strings.Repeat(" ", indent)}}, indent
			if strings.TrimSpace(word.Text) == "" {
				continue
			}
		}
		current, used = append(current, word), used+width
	}
	return append(lines, t.cut(current))
}

// words splits a line at spaces; spaces are words of their own.
func (t terminal) words(l Line) []Span {
	var words []Span
	for _, s := range l {
		rest := s.text(t.Options)
		for rest != "" {
			end := strings.IndexByte(rest, ' ')
			switch {
			case end < 0:
				end = len(rest)
			case end == 0:
				end = len(rest) - len(strings.TrimLeft(rest, " "))
			}
			words = append(words, Span{Text: rest[:end], Style: s.Style})
			rest = rest[end:]
		}
	}
	return words
}

// fit cuts or fills a line to a width.
func (t terminal) fit(l Line, width int, right bool) string {
	painted := t.paintLine(l)
	have := ansi.StringWidth(painted)
	if have > width {
		painted = ansi.Truncate(painted, width, t.ellipsis())
		have = ansi.StringWidth(painted)
	}
	fill := strings.Repeat(" ", max(0, width-have))
	if right {
		return fill + painted
	}
	return painted + fill
}

func (t terminal) ellipsis() string {
	if t.ASCII {
		return "~"
	}
	return "…"
}

var escaper = strings.NewReplacer(`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "|", `\|`, "<", "&lt;", ">", "&gt;", "[", `\[`, "#", `\#`, "@", "&#64;")

// escape returns a line as Markdown that shows it as it is: texts come from clusters.
func escape(l Line, o Options) string {
	var b strings.Builder
	for _, s := range l {
		text := escaper.Replace(s.text(o))
		if s.Style == Strong && strings.TrimSpace(text) != "" {
			text = "**" + strings.TrimSpace(text) + "**"
		}
		b.WriteString(text)
	}
	return strings.TrimSpace(b.String())
}
