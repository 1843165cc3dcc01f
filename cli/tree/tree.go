// Package tree decides what belongs together: a rollout with its waves and clusters, an image
// with its storage and the machines that hold it, a machine with its image and disks.
//
// Nodes that are alike are one node, and only what is not as it should be is unfolded.
package tree

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// State says how a node is.
type State string

// States of nodes.
const (
	Done      State = "Done"
	Running   State = "Running"
	Waiting   State = "Waiting"
	Failed    State = "Failed"
	Attention State = "Attention"
	Unknown   State = "Unknown"
	// None: the node only holds others together.
	None State = ""
)

var signs = map[State]render.Sign{
	Done: render.Done, Running: render.Running, Waiting: render.Waiting, Failed: render.Failed, Attention: render.Attention, Unknown: render.Unknown,
}

// Node is an object, or several that are alike.
type Node struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Version   string `json:"version,omitempty"`
	// Names of those that are alike; Count is how many.
	Names []string `json:"names,omitempty"`
	Count int      `json:"count,omitempty"`
	// Noun of those that are alike, as in cluster.
	Noun  string `json:"noun,omitempty"`
	State State  `json:"state,omitempty"`
	// Words say how it is, in the API's own words; Message explains them.
	Words   string `json:"words,omitempty"`
	Message string `json:"message,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	// Since is when it became so.
	Since    *metav1.Time `json:"since,omitempty"`
	Children []*Node      `json:"children,omitempty"`

	// code, where the state does not say it all.
	code *exit.Code
}

// Tree is the answer of kubectl ot tree.
type Tree struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	// Note says what the tree cannot show from here; empty for nothing.
	Note string `json:"note,omitempty"`
	Root *Node  `json:"root"`

	now time.Time
	// depth that is drawn; 0: all.
	depth int
}

// New returns the tree of a root, drawn to a depth; 0 draws all.
func New(now time.Time, root *Node, note string, depth int) *Tree {
	return &Tree{Envelope: render.NewEnvelope("Tree"), ObservedAt: metav1.NewTime(now), Note: note, Root: root, now: now, depth: depth}
}

func (n *Node) add(children ...*Node) {
	for _, c := range children {
		if c != nil {
			n.Children = append(n.Children, c)
		}
	}
}

// ExitCode follows the root.
func (t *Tree) ExitCode() exit.Code {
	if t.Root.code != nil {
		return *t.Root.code
	}
	switch t.Root.State {
	case Running, Waiting:
		return exit.NotYet
	case Failed:
		return exit.No
	case Attention:
		return exit.Held
	case Unknown:
		return exit.Unknown
	default:
		return exit.Yes
	}
}

// ownKinds are those of OT Fleet.
var ownKinds = []string{"FleetDiskImage", "VMDiskImage", "VirtualMachine"}

// Names lists the objects for -o name.
func (t *Tree) Names() []string {
	var all []string
	var walk func(*Node)
	walk = func(n *Node) {
		if n.Kind != "" && n.Name != "" {
			reference := strings.ToLower(n.Kind) + "/" + n.Name
			if slices.Contains(ownKinds, n.Kind) {
				reference = render.Reference(n.Kind, n.Name)
			}
			all = append(all, reference)
		}
		for _, c := range n.Children {
			walk(c)
		}
	}
	walk(t.Root)
	return all
}

// WatchItems are the nodes that are drawn and have a state. Those that are alike are one item: how many
// they are changes.
func (t *Tree) WatchItems() (items []render.Item) {
	var walk func(n *Node, above string, depth int)
	walk = func(n *Node, above string, depth int) {
		label, ageless := t.label(n), *n
		ageless.Since = nil
		state, key := t.state(&ageless), above+label.Text()
		if n.Count > 0 {
			key = strings.TrimSpace(fmt.Sprintf("%s%ss %s", above, n.Noun, n.Words))
			state = append(append(slices.Clone(label), render.Text("  ")), state...)
		}
		if len(state) > 0 {
			items = append(items, render.Item{Key: key, State: state})
		}
		if t.depth > 0 && depth >= t.depth {
			return
		}
		if depth > 1 {
			above = key + " / "
		}
		for _, c := range n.Children {
			walk(c, above, depth+1)
		}
	}
	walk(t.Root, "", 1)
	return items
}

// Draw draws the screen.
func (t *Tree) Draw(p *render.Page) {
	p.Tree(t.draw(t.Root, 1))
	if t.Note != "" {
		p.Gap()
		p.Line(render.Dim("%s", t.Note))
	}
}

func (t *Tree) draw(n *Node, depth int) *render.Node {
	drawn := &render.Node{Label: t.label(n), State: t.state(n)}
	if t.depth > 0 && depth >= t.depth && len(n.Children) > 0 {
		drawn.Add(render.Words("…"), nil)
		return drawn
	}
	for _, c := range n.Children {
		drawn.Children = append(drawn.Children, t.draw(c, depth+1))
	}
	return drawn
}

// maxNames is how many of those that are alike are named; the JSON names all.
const maxNames = 3

func (t *Tree) label(n *Node) render.Line {
	var line render.Line
	switch {
	case n.Count > 0:
		line = render.Line{render.Text("%s", render.Count(n.Count, n.Noun))}
		names := n.Names[:min(maxNames, len(n.Names))]
		if len(names) > 0 {
			text := ": " + strings.Join(names, " ")
			if len(n.Names) > len(names) {
				text += " …"
			}
			line = append(line, render.Dim("%s", text))
		}
	case n.Kind == "":
		line = render.Words(n.Name)
	case n.Namespace != "":
		line = render.Words(n.Kind + " " + n.Namespace + "/" + n.Name)
	default:
		line = render.Words(strings.TrimSpace(n.Kind + " " + n.Name + " " + n.Version))
	}
	return line
}

func (t *Tree) state(n *Node) render.Line {
	var line render.Line
	sign, signed := signs[n.State]
	switch {
	case signed && n.Words != "":
		line = sign.With("%s", n.Words)
	case signed:
		line = sign.With("%s", n.State)
	case n.Words != "":
		line = render.Words(n.Words)
	}
	if n.Bytes > 0 {
		line = append(line, render.Text("  %s", render.Bytes(n.Bytes)))
	}
	if n.Since != nil {
		line = append(line, render.Dim("  %s", render.Age(t.now, n.Since.Time)))
	}
	if n.Message != "" && n.State != Done {
		line = append(line, render.Text("  %s", n.Message))
	}
	return line
}

// groupAlike makes one node of those that are alike: of one state and words. Those that are
// not as they should be stay single.
func groupAlike(noun string, nodes []*Node) []*Node {
	var grouped []*Node
	byWords := map[string]*Node{}
	for _, n := range nodes {
		if n.State == Failed || n.State == Attention || len(n.Children) > 0 {
			grouped = append(grouped, n)
			continue
		}
		key := fmt.Sprint(n.State, "/", n.Words)
		group := byWords[key]
		if group == nil {
			group = &Node{Noun: noun, State: n.State, Words: n.Words}
			byWords[key] = group
			grouped = append(grouped, group)
		}
		group.Count++
		group.Names = append(group.Names, n.Name)
	}
	for i, g := range grouped {
		if g.Count == 1 { // as it was
			at := slices.IndexFunc(nodes, func(n *Node) bool { return n.Name == g.Names[0] })
			grouped[i] = nodes[at]
		}
	}
	return grouped
}
