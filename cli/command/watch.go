package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
}

// summarized is a View that says in one line, without the time of day, what has changed, where lines
// are printed rather than screens.
type summarized interface{ Summary() string }

// pollFunc reads the state that is shown.
type pollFunc func(context.Context) (watchState, error)

// watchInterval is how often a watched state is polled.
const watchInterval = 2 * time.Second

// showOrWatch shows the present state, or watches it.
func (e *environment) showOrWatch(ctx context.Context, watching bool, timeout time.Duration, poll pollFunc) error {
	if watching {
		return e.watch(ctx, timeout, poll)
	}
	state, err := poll(ctx)
	if err != nil {
		return err
	}
	return e.show(state.view, state.code)
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
	if err != nil {
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
	shown, note := "", retryNote{e: e}
	for {
		content, err := e.contentOf(next.view)
		if err != nil {
			return err
		}
		if content != shown {
			err := e.printChange(next.view, content, shown == "")
			switch {
			case err != nil && next.end:
				return endPrinted(next.code, err)
			case err != nil:
				return err
			}
			shown = content
		}
		if next.end {
			return ended(ctx, next)
		}
		for {
			select {
			case <-ctx.Done():
				return ended(ctx, next)
			case <-time.After(watchInterval):
			}
			if next, err = poll(ctx); err == nil {
				note.reset()
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

// printChange prints the line of a change, which is content, or the whole answer.
func (e *environment) printChange(view render.View, content string, isFirst bool) error {
	if _, ok := view.(summarized); ok && e.format.Screen() {
		_, err := fmt.Fprintln(e.Out, e.printable(e.now().Format(time.TimeOnly)+"  "+content))
		return err
	}
	if !isFirst {
		if _, err := io.WriteString(e.Out, e.format.Separator()); err != nil {
			return err
		}
	}
	return e.format.Write(e.Out, view, e.options())
}

// contentOf returns what is printed of a view, apart from when it was observed: a time that passes is
// no change, nor is what a line does not say.
func (e *environment) contentOf(view render.View) (string, error) {
	if s, ok := view.(summarized); ok && e.format.Screen() {
		return s.Summary(), nil
	}
	data, err := json.Marshal(view)
	if err != nil {
		return "", fmt.Errorf("comparing %T: %w", view, err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return "", fmt.Errorf("comparing %T: %w", view, err)
	}
	delete(fields, "observedAt")
	data, err = json.Marshal(fields)
	return string(data), err
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
