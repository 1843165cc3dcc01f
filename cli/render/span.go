package render

import (
	"math"
	"strings"
	"unicode"

	"github.com/pelotech/ot-fleet/api/numbers"
)

// Style says what a text is, not how it looks.
type Style int

// Styles of text.
const (
	Plain Style = iota
	Strong
	Faint
	Good
	Notice
	Bad
	Busy
)

// Span is a text in one style. ASCII replaces it under --ascii, if set.
type Span struct {
	Text  string
	ASCII string
	Style Style
}

// Line is a line, or a cell of a table.
type Line []Span

// Text formats plain text.
func Text(format string, args ...any) Span { return Span{Text: numbers.Sprintf(format, args...)} }

// Bold formats text that stands out.
func Bold(format string, args ...any) Span {
	return Span{Text: numbers.Sprintf(format, args...), Style: Strong}
}

// Dim formats text that stands back.
func Dim(format string, args ...any) Span {
	return Span{Text: numbers.Sprintf(format, args...), Style: Faint}
}

// Words is a line of one plain text.
func Words(text string) Line { return Line{{Text: text}} }

// Join puts lines into one.
func Join(lines []Line, separator string) (joined Line) {
	for i, line := range lines {
		if i > 0 {
			joined = append(joined, Span{Text: separator})
		}
		joined = append(joined, line...)
	}
	return joined
}

// Cells are lines of one plain text each.
func Cells(texts ...string) []Line {
	lines := make([]Line, len(texts))
	for i, text := range texts {
		lines[i] = Words(text)
	}
	return lines
}

// Sign marks a state. A word follows it: a sign alone says nothing in a log.
type Sign int

// Signs of states.
const (
	Done Sign = iota
	Failed
	Running
	Waiting
	Attention
	Unknown
)

var signs = map[Sign]Span{
	Done:      {"✓", "+", Good},
	Failed:    {"✗", "x", Bad},
	Running:   {"●", "*", Busy},
	Waiting:   {"◌", "o", Faint},
	Attention: {"!", "!", Notice},
	Unknown:   {"?", "?", Notice},
}

// Span returns the sign as text.
func (s Sign) Span() Span { return signs[s] }

// With returns the sign and what it marks, in the sign's colour.
func (s Sign) With(format string, args ...any) Line {
	mark := signs[s]
	return Line{mark, {Text: " " + numbers.Sprintf(format, args...), Style: mark.Style}}
}

// Bar draws a share of a whole, from 0 to 1, in width cells.
func Bar(share float64, width int) Span {
	full := int(max(0, min(1, share))*float64(width) + 0.5)
	if share < 1 && full == width {
		full-- // a full bar means done
	}
	return Span{
		Text:  strings.Repeat("█", full) + strings.Repeat("░", width-full),
		ASCII: strings.Repeat("#", full) + strings.Repeat(".", width-full),
	}
}

var sparks = []rune("▁▂▃▄▅▆▇█")

// Sparkline draws values against the largest of them; NaN is unknown, and a gap. It is left out
// of ASCII, which has no signs for it.
func Sparkline(values []float64) Span {
	highest := 0.0
	for _, v := range values {
		if v > highest { // false for NaN
			highest = v
		}
	}
	var b strings.Builder
	for _, v := range values {
		if math.IsNaN(v) {
			b.WriteByte(' ')
			continue
		}
		at := 0
		if highest > 0 && v > 0 {
			at = int(v / highest * float64(len(sparks)-1))
		}
		b.WriteRune(sparks[at])
	}
	return Span{Text: b.String(), ASCII: " "}
}

// printable replaces what would move the cursor, change colours or turn the direction of
// writing: texts come from clusters, and from whoever writes there.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if isUnprintable(r) {
			return '�'
		}
		return r
	}, text)
}

func isUnprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Printable returns a message that is safe to print; its line breaks and tabs stay: neither moves the
// cursor back.
func Printable(text string) string {
	var b strings.Builder
	for part := range strings.SplitAfterSeq(text, "\n") {
		for cell := range strings.SplitAfterSeq(part, "\t") {
			kept := strings.TrimRight(cell, "\n\t")
			b.WriteString(printable(kept) + cell[len(kept):])
		}
	}
	return b.String()
}

// text returns what is shown of a span.
func (s Span) text(o Options) string {
	if o.ASCII && s.ASCII != "" {
		return s.ASCII
	}
	text := printable(o.Complete(s.Text))
	if o.ASCII {
		text = toASCII.Replace(text)
	}
	return text
}

// toASCII replaces what the screens themselves use; names and messages stay as they are.
var toASCII = strings.NewReplacer("…", "...", "→", "->", "·", "-", "–", "-", "≤", "<=", "≥", ">=", "×", "x", "▲", "^", "▼", "v", "←", "<-")

// Text returns a line as it is, without style.
func (l Line) Text() string { return l.text(Options{}) }

func (l Line) text(o Options) string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text(o))
	}
	return b.String()
}
