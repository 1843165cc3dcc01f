package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// watchState is what a verb with -w shows at one time. end: nothing more is to come.
type watchState struct {
	view render.View
	code exit.Code
	end  bool
	// lack is what was asked for and is not in the view.
	lack error
}

// summarized is a View that says in one line, without the time of day, what has changed, where lines
// are printed rather than screens.
type summarized interface{ Summary() string }

// itemized is a View of several of which it says in one line each how they are, also without the time of
// day.
type itemized interface{ WatchItems() []render.Item }

// watchItems returns what a line is printed of; false for a view that is printed whole.
func watchItems(view render.View) ([]render.Item, bool) {
	switch v := view.(type) {
	case summarized:
		return []render.Item{{State: render.Words(v.Summary())}}, true
	case itemized:
		return v.WatchItems(), true
	default:
		return nil, false
	}
}

// pollFunc reads the state that is shown.
type pollFunc func(context.Context) (watchState, error)

// watchInterval is how often a watched state is polled.
const watchInterval = 2 * time.Second

// showOrWatch shows the present state, or watches it.
func (e *environment) showOrWatch(ctx context.Context, watching bool, poll pollFunc) error {
	return e.showOrWatchWithin(ctx, watching, noTimeout, poll)
}

// showOrWatchWithin has the timeout of a flag: at 0 a watch looks once.
func (e *environment) showOrWatchWithin(ctx context.Context, watching bool, timeout time.Duration, poll pollFunc) error {
	if watching {
		return e.watch(ctx, timeout, poll)
	}
	state, err := poll(ctx)
	if err != nil {
		return err
	}
	err = e.show(state.view, state.code)
	if state.lack != nil {
		err = errors.Join(state.lack, err)
	}
	return err
}

// watch shows what poll returns until it ends, or until the timeout. On a terminal the
// screen is redrawn in place and the last one stays; elsewhere a line is printed for each change.
// Failures after the first poll are printed, and it is tried again: a watch outlives a replica.
func (e *environment) watch(ctx context.Context, timeout time.Duration, poll pollFunc) error {
	ctx, look, lookTime, cancel := boundWait(ctx, timeout)
	defer cancel()
	unbounded := poll
	poll = func(ctx context.Context) (watchState, error) { return within(ctx, unbounded) }
	first, err := poll(look)
	if err = cmp.Or(err, first.lack); err != nil { // what is not there at first is mistyped
		return notWithin(look, lookTime, err)
	}
	if _, isTerminal := e.terminalWidth(); isTerminal && e.format.Screen() {
		return e.watchScreen(ctx, first, poll)
	}
	return e.watchLines(ctx, first, poll)
}

// notWithin returns an error of what ended before its first answer: that of the timeout, where it
// ended ctx.
func notWithin(ctx context.Context, timeout time.Duration, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return exit.Because(exit.NotYet, fmt.Errorf("not within %s: %w", timeout, err))
	}
	return err
}

// withinGrace is how long what ends with its context may take to do so.
const withinGrace = time.Second

// within returns what do returns, or that ctx has ended: reading the kinds of an API server that does
// not answer has no context, and outlasts it.
func within[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do(ctx)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	select { // what has the context ends with it, in words of its own
	case r := <-done:
		return r.value, r.err
	case <-time.After(withinGrace):
		var none T
		return none, fmt.Errorf("the API server does not answer: %w", ctx.Err())
	}
}

// ended returns how a watch ends: by its last state, at its timeout, or by ctrl-C.
func ended(ctx context.Context, last watchState) error {
	switch {
	case last.end:
		return exit.With(last.code)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return exit.With(exit.NotYet)
	default:
		return ctx.Err()
	}
}

func (e *environment) watchLines(ctx context.Context, next watchState, poll pollFunc) error {
	printed, note := changePrinter{environment: e}, retryNote{e: e}
	for {
		switch err := printed.print(next.view); {
		case err != nil && next.end:
			return endPrinted(next.code, err)
		case err != nil:
			return err
		case next.end:
			return ended(ctx, next)
		}
		for {
			select {
			case <-ctx.Done():
				return ended(ctx, next)
			case <-time.After(watchInterval):
			}
			var err error
			if next, err = poll(ctx); err == nil {
				if err = next.lack; err == nil {
					note.reset()
				} else {
					note.print(ctx, err)
				}
				break
			}
			note.print(ctx, err)
		}
	}
}

// retryNote prints why something is tried again, once per message.
type retryNote struct {
	e    *environment
	last string
}

// print prints err, unless ctx has ended: then nothing is tried again.
func (n *retryNote) print(ctx context.Context, err error) {
	if message := err.Error(); message != n.last && ctx.Err() == nil {
		n.e.printNote("%s; trying again", message)
		n.last = message
	}
}

func (n *retryNote) reset() { n.last = "" }

// changePrinter prints what of a view has changed since it was last printed: a line for each item, or
// the whole answer.
type changePrinter struct {
	*environment
	// lines that were printed, by item; answer without when it was observed, and as it was printed.
	lines           map[string]string
	answer, printed string
}

func (c *changePrinter) print(view render.View) error {
	items, ok := watchItems(view)
	if !ok || !c.format.Screen() {
		return c.printAnswer(view)
	}
	lines, options := map[string]string{}, c.options()
	for _, item := range items {
		key := item.Key
		for _, taken := lines[key]; taken; _, taken = lines[key] { // as of two nodes of one name
			key += " "
		}
		lines[key] = item.Print(options)
		if lines[key] != c.lines[key] {
			if err := c.printLine(lines[key]); err != nil {
				return err
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.lines)) {
		if _, ok := lines[key]; !ok {
			if err := c.printLine(render.Item{Key: strings.TrimSpace(key), State: render.Words("no longer listed")}.Print(options)); err != nil {
				return err
			}
		}
	}
	c.lines = lines
	return nil
}

func (c *changePrinter) printLine(line string) error {
	_, err := fmt.Fprintln(c.Out, c.now().Format(time.TimeOnly)+"  "+line)
	return err
}

// printAnswer prints a view whose data has changed, apart from when it was observed, since a time that
// passes is no change, and of which the format shows what has.
func (c *changePrinter) printAnswer(view render.View) error {
	data, err := json.Marshal(view)
	if err != nil {
		return fmt.Errorf("comparing %T: %w", view, err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return fmt.Errorf("comparing %T: %w", view, err)
	}
	delete(fields, "observedAt")
	if data, err = json.Marshal(fields); err != nil || string(data) == c.answer {
		return err
	}
	var text strings.Builder
	if err := c.format.Write(&text, view, c.options()); err != nil {
		return err
	}
	isFirst := c.answer == ""
	c.answer = string(data)
	if !isFirst && text.String() == c.printed {
		return nil
	}
	c.printed = text.String()
	separator := ""
	if !isFirst {
		separator = c.format.Separator()
	}
	_, err = io.WriteString(c.Out, separator+c.printed)
	return err
}

func (e *environment) watchScreen(ctx context.Context, first watchState, poll pollFunc) error {
	m := &screen{ctx: ctx, poll: poll, last: first, options: e.options(), wide: e.output == "wide"}
	if !first.end {
		program := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(e.In), tea.WithOutput(e.Out), tea.WithoutSignalHandler())
		if _, err := program.Run(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("drawing on the terminal: %w", err)
		}
	}
	err := e.format.Write(e.Out, m.last.view, e.options())
	switch {
	case m.interrupted:
		return exit.With(exit.Interrupted)
	case err != nil:
		return endPrinted(m.last.code, err)
	}
	return ended(ctx, m.last)
}

// screen is a view that is drawn anew in place, cut to the height of the terminal.
type screen struct {
	ctx         context.Context
	poll        pollFunc
	last        watchState
	failure     string
	options     render.Options
	wide        bool
	height      int
	interrupted bool
}

type pollResult struct {
	watchState
	err error
}

func (s *screen) Init() tea.Cmd { return s.next() }

func (s *screen) next() tea.Cmd {
	return tea.Tick(watchInterval, func(time.Time) tea.Msg {
		state, err := s.poll(s.ctx)
		return pollResult{state, err}
	})
}

func (s *screen) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch m := message.(type) {
	case tea.WindowSizeMsg:
		s.options.Width, s.height = m.Width, m.Height
	case tea.KeyPressMsg:
		switch m.String() {
		case "ctrl+c":
			s.interrupted = true
			return s, tea.Quit
		case "q", "esc":
			s.last.end = true
			return s, tea.Quit
		}
	case pollResult:
		if m.err != nil {
			s.failure = m.err.Error()
			return s, s.next()
		}
		s.last, s.failure = m.watchState, ""
		if s.last.lack != nil {
			s.failure = s.last.lack.Error()
		}
		if s.last.end {
			return s, tea.Quit
		}
		return s, s.next()
	}
	return s, nil
}

func (s *screen) View() tea.View {
	page := &render.Page{Wide: s.wide}
	s.last.view.Draw(page)
	if s.failure != "" {
		page.Gap()
		page.Lines(render.Attention.With("%s; trying again", s.failure))
	}
	lines := strings.Split(strings.TrimRight(render.Print(page, s.options), "\n"), "\n")
	if s.height > 0 && len(lines) > s.height {
		lines = append(lines[:s.height-1], "…")
	}
	view := tea.NewView(strings.Join(lines, "\n"))
	view.AltScreen = true
	return view
}
