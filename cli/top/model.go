package top

import (
	"context"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/pelotech/ot-fleet/cli/render"
)

// Row is what the cursor is on. Image is empty where the rows are clusters.
type Row struct{ Cluster, Namespace, Image string }

// Model shows a Top live. Its keys are those of Keys.
type Model struct {
	// Poll returns what is imported now; Open returns a screen about a row: "why" or "tree".
	Poll func(context.Context) (Snapshot, error)
	Open func(ctx context.Context, verb string, row Row, options render.Options) (string, error)
	// Interrupted: it was ended by ctrl-C.
	Interrupted bool

	ctx       context.Context
	options   render.Options
	interval  time.Duration
	snapshot  Snapshot
	subject   Subject
	sort      map[Subject]string
	filter    string
	filtering bool
	paused    bool
	help      bool
	cursor    int
	height    int
	offset    int // of the overlay's first line that is shown
	overlay   string
	failure   string
}

// NewModel returns a Model of a first snapshot.
func NewModel(ctx context.Context, first Snapshot, subject Subject, options render.Options, interval time.Duration) *Model {
	return &Model{ctx: ctx, snapshot: first, subject: subject, options: options, interval: interval, sort: map[Subject]string{}}
}

// Keys explains the keys.
var Keys = []string{
	"↑ ↓       move", "enter     why the row waits, or for how long", "t         what belongs to it", "tab       imports, clusters, sources",
	"/         show only what contains a text", "s         sort by the next column", "p         pause the screen", "?         these keys", "q, ctrl-C end",
}

type (
	pollResult struct {
		snapshot Snapshot
		err      error
	}
	openedMessage struct {
		text string
		err  error
	}
)

// Init starts to poll.
func (m *Model) Init() tea.Cmd { return m.schedulePoll() }

func (m *Model) schedulePoll() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg {
		s, err := m.Poll(m.ctx)
		return pollResult{s, err}
	})
}

// Update handles a key, or what was polled.
func (m *Model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := message.(type) {
	case tea.WindowSizeMsg:
		m.options.Width, m.height = msg.Width, msg.Height
	case pollResult:
		if msg.err != nil {
			m.failure = msg.err.Error()
		} else if m.failure = ""; !m.paused {
			m.snapshot = msg.snapshot
		}
		return m, m.schedulePoll()
	case openedMessage:
		m.overlay, m.offset = msg.text, 0
		if msg.err != nil {
			m.overlay = render.Printable(msg.err.Error())
		}
	case tea.KeyPressMsg:
		if msg.String() == "ctrl+c" {
			m.Interrupted = true
			return m, tea.Quit
		}
		if m.filtering {
			m.editFilter(msg)
			return m, nil
		}
		return m, m.handleKey(msg.String())
	}
	return m, nil
}

// scroll moves within what is longer than the screen, and reports whether the key does that.
func (m *Model) scroll(key string) bool {
	screen := max(1, m.height-1)
	switch key {
	case "down", "j":
		m.offset++
	case "up", "k":
		m.offset--
	case "pgdown", "space":
		m.offset += screen
	case "pgup":
		m.offset -= screen
	case "home":
		m.offset = 0
	case "end":
		m.offset = strings.Count(m.overlay, "\n")
	default:
		return false
	}
	m.offset = max(0, min(m.offset, strings.Count(strings.TrimRight(m.overlay, "\n"), "\n")+1-screen))
	return true
}

// editFilter handles a key while the filter is typed.
func (m *Model) editFilter(key tea.KeyPressMsg) {
	switch key.String() {
	case "enter":
		m.filtering = false
	case "esc":
		m.filtering, m.filter = false, ""
	case "backspace":
		if runes := []rune(m.filter); len(runes) > 0 {
			m.filter = string(runes[:len(runes)-1])
		}
	default:
		m.filter += key.Text
	}
	m.cursor = 0
}

func (m *Model) handleKey(key string) tea.Cmd {
	if m.overlay != "" && m.scroll(key) {
		return nil
	}
	if m.overlay != "" || m.help {
		m.overlay, m.help = "", false
		if key == "q" {
			return tea.Quit
		}
		return nil
	}
	rows := m.build().rowCount()
	switch key {
	case "q", "esc":
		return tea.Quit
	case "up", "k":
		m.cursor = max(0, m.cursor-1)
	case "down", "j":
		m.cursor = max(0, min(rows-1, m.cursor+1))
	case "pgup":
		m.cursor = max(0, m.cursor-m.windowSize())
	case "pgdown":
		m.cursor = max(0, min(rows-1, m.cursor+m.windowSize()))
	case "tab":
		m.subject, m.cursor = Subjects[(slices.Index(Subjects, m.subject)+1)%len(Subjects)], 0
	case "/":
		m.filtering, m.filter = true, ""
	case "s":
		all := Orders(m.subject)
		m.sort[m.subject] = all[(max(0, slices.Index(all, m.sort[m.subject]))+1)%len(all)]
	case "p":
		m.paused = !m.paused
	case "?":
		m.help = true
	case "enter":
		return m.openScreen("why")
	case "t":
		return m.openScreen("tree")
	}
	return nil
}

// openScreen asks for a screen about the row under the cursor. There is none about a source.
func (m *Model) openScreen(verb string) tea.Cmd {
	row, ok := m.build().rowAt(m.cursor)
	if !ok || m.Open == nil {
		return nil
	}
	return func() tea.Msg {
		text, err := m.Open(m.ctx, verb, row, m.options)
		return openedMessage{text, err}
	}
}

func (t *Top) rowAt(i int) (Row, bool) {
	switch {
	case i < 0 || i >= t.rowCount():
		return Row{}, false
	case t.Subject == Imports:
		return Row{t.Imports[i].Cluster, t.Imports[i].Namespace, t.Imports[i].Name}, true
	case t.Subject == Clusters:
		return Row{Cluster: t.Clusters[i].Name}, true
	default:
		return Row{}, false
	}
}

// frameLines bounds those around the rows: totals, what is unknown or unread, titles, gaps, and the
// last.
const frameLines = 10

func (m *Model) windowSize() int {
	if m.height == 0 {
		return 20
	}
	return max(1, m.height-frameLines)
}

func (m *Model) build() *Top { return New(m.snapshot, m.subject, m.filter, m.sort[m.subject]) }

// View draws the screen, cut to the height of the terminal.
func (m *Model) View() tea.View {
	lines := strings.Split(strings.TrimRight(m.draw(), "\n"), "\n")
	switch {
	case m.height <= 0 || len(lines) <= m.height:
	case m.overlay != "":
		from := max(0, min(m.offset, len(lines)-m.height+1)) // the terminal may be another size by now
		page := &render.Page{}
		page.Line(render.Dim("%d of %d lines · ↑ ↓ pgup pgdn move, any other key closes", from+m.height-1, len(lines)))
		lines = append(slices.Clone(lines[from:from+m.height-1]), strings.TrimRight(render.Print(page, render.Options{ASCII: m.options.ASCII, Color: m.options.Color}), "\n"))
	default:
		lines = append(lines[:m.height-1], "…")
	}
	view := tea.NewView(strings.Join(lines, "\n"))
	view.AltScreen = true
	return view
}

func (m *Model) draw() string {
	page := &render.Page{}
	switch {
	case m.overlay != "":
		return m.overlay
	case m.help:
		for _, key := range Keys {
			page.Line(render.Text("%s", key))
		}
		return render.Print(page, m.options)
	}
	t := m.build()
	m.cursor = max(0, min(m.cursor, t.rowCount()-1))
	t.cursor, t.limit = m.cursor, m.windowSize()
	t.from = max(0, min(m.cursor-t.limit/2, t.rowCount()-t.limit))
	t.Draw(page)
	page.Gap()
	page.Lines(m.statusLine(t)...)
	return render.Print(page, m.options)
}

func (m *Model) statusLine(t *Top) []render.Line {
	switch {
	case m.filtering:
		return []render.Line{{render.Bold("/%s", m.filter), render.Dim("_  enter keeps it, esc drops it")}}
	case m.failure != "":
		return []render.Line{render.Attention.With("%s; trying again", m.failure)}
	case m.paused:
		return []render.Line{render.Attention.With("paused at %s; p goes on", render.Clock(t.now, t.now))}
	}
	text := string(t.Subject) + " by " + t.SortedBy
	if t.Filter != "" {
		text += " with " + t.Filter
	}
	return []render.Line{{render.Dim("%s · ? keys · q end", text)}}
}

// SetRows sets which rows are shown first, and in which order.
func (m *Model) SetRows(filter, sortBy string) {
	m.filter, m.sort[m.subject] = filter, sortBy
}
