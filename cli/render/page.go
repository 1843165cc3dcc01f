package render

import "slices"

// Page is what a View draws on.
type Page struct {
	// Wide: -o wide, columns that are otherwise left out.
	Wide bool

	blocks []block
}

// block is a part of a page. plain returns its lines for a terminal, markdown for a page.
type block interface {
	plain(t terminal) []string
	markdown(o Options) []string
}

// Line adds a line of text, which is wrapped at the page's width.
func (p *Page) Line(spans ...Span) { p.blocks = append(p.blocks, textBlock{Line(spans)}) }

// Lines adds lines of text.
func (p *Page) Lines(lines ...Line) {
	for _, l := range lines {
		p.Line(l...)
	}
}

// Aside adds a line beside the rows of a list, as how many more there are: with --no-headers scripts take
// each line for a row.
func (p *Page) Aside(spans ...Span) { p.blocks = append(p.blocks, aside{textBlock{Line(spans)}}) }

// Section adds an empty line and a heading, such as ROLLOUTS, with what follows it on its
// line.
func (p *Page) Section(title string, after ...Span) {
	p.Gap()
	p.blocks = append(p.blocks, heading{title: title, after: after})
}

// Gap adds an empty line, unless it would be the first or a second one.
func (p *Page) Gap() {
	if len(p.blocks) == 0 {
		return
	}
	if _, isGap := p.blocks[len(p.blocks)-1].(gap); !isGap {
		p.blocks = append(p.blocks, gap{})
	}
}

// Command adds a command to copy. It is never wrapped.
func (p *Page) Command(command string) { p.blocks = append(p.blocks, commandBlock{command}) }

// Table adds a table. Its rows are added to what is returned.
func (p *Page) Table(columns ...Column) *Table {
	t := &Table{wide: p.Wide, columns: columns}
	p.blocks = append(p.blocks, t)
	return t
}

// Tree adds a tree.
func (p *Page) Tree(root *Node) { p.blocks = append(p.blocks, root) }

// shown returns the blocks that are printed.
func (p *Page) shown(o Options) []block {
	if !o.NoHeaders {
		return p.blocks
	}
	blocks := slices.DeleteFunc(slices.Clone(p.blocks), func(b block) bool { _, ok := b.(aside); return ok })
	for len(blocks) > 0 && blocks[len(blocks)-1] == (gap{}) {
		blocks = blocks[:len(blocks)-1]
	}
	return blocks
}

type aside struct{ textBlock }

type gap struct{}

func (gap) plain(terminal) []string   { return []string{""} }
func (gap) markdown(Options) []string { return []string{""} }

type textBlock struct{ line Line }

func (b textBlock) plain(t terminal) []string   { return t.wrap(b.line) }
func (b textBlock) markdown(o Options) []string { return []string{escape(b.line, o) + "  "} }

type heading struct {
	title string
	after Line
}

func (h heading) plain(t terminal) []string {
	line := Line{{Text: h.title, Style: Strong}}
	if len(h.after) > 0 {
		line = append(append(line, Span{Text: "  "}), h.after...)
	}
	return t.wrap(line)
}

func (h heading) markdown(o Options) []string {
	lines := []string{"### " + escape(Words(h.title), o), ""}
	if len(h.after) > 0 {
		lines = append(lines, escape(h.after, o)+"  ")
	}
	return lines
}

type commandBlock struct{ command string }

func (c commandBlock) plain(t terminal) []string {
	return []string{"  " + t.paint(Span{Text: c.command, Style: Strong})}
}

func (c commandBlock) markdown(o Options) []string {
	return []string{"", "```", printable(o.Complete(c.command)), "```", ""}
}
