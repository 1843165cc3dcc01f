package render

import "strings"

// Node of a tree: what it is on the left, how it is on the right.
type Node struct {
	Label, State Line
	Children     []*Node
}

// Add adds a child and returns it.
func (n *Node) Add(label, state Line) *Node {
	child := &Node{Label: label, State: state}
	n.Children = append(n.Children, child)
	return child
}

type treeRow struct {
	prefix string
	node   *Node
}

func (n *Node) rows(prefix, childPrefix string, ascii bool) []treeRow {
	all := []treeRow{{prefix, n}}
	branch, last, pass := "├─ ", "└─ ", "│  "
	if ascii {
		branch, last, pass = "|- ", "`- ", "|  "
	}
	for i, c := range n.Children {
		if i == len(n.Children)-1 {
			all = append(all, c.rows(childPrefix+last, childPrefix+"   ", ascii)...)
		} else {
			all = append(all, c.rows(childPrefix+branch, childPrefix+pass, ascii)...)
		}
	}
	return all
}

// maxLabel is the widest column of labels; states of longer ones follow them.
const maxLabel = 64

func (n *Node) plain(t terminal) []string {
	rows := n.rows("", "", t.ASCII)
	column := 0
	for _, r := range rows {
		column = max(column, min(maxLabel, t.width(append(Words(r.prefix), r.node.Label...))))
	}
	if t.Width > 0 {
		column = min(column, t.Width*3/5)
	}
	var lines []string
	for _, r := range rows {
		label := append(Words(r.prefix), r.node.Label...)
		if len(r.node.State) == 0 {
			lines = append(lines, t.cut(label))
			continue
		}
		width := t.width(label)
		fill := strings.Repeat(" ", max(0, column-width)+columnGap)
		lines = append(lines, t.cut(append(append(label, Span{Text: fill}), r.node.State...)))
	}
	return lines
}

// cut cuts a line at the terminal's width.
func (t terminal) cut(l Line) string {
	if t.Width <= 0 {
		return t.paintLine(l)
	}
	return t.fit(l, min(t.Width, t.width(l)), false)
}

func (n *Node) markdown(o Options) []string {
	lines := []string{"", "```"}
	for _, line := range n.plain(terminal{o}) {
		lines = append(lines, strings.TrimRight(strings.ReplaceAll(line, "```", "'''"), " "))
	}
	return append(lines, "```", "")
}
