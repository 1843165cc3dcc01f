package top_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	"github.com/pelotech/ot-fleet/cli/top"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

const gib = 1 << 30

func newSnapshot() top.Snapshot {
	rates := []v1alpha1.SourceRate{
		{Name: "eu-bucket", P20: 40 << 20, P50: 60 << 20, P80: 80 << 20, Samples: 12, TransferredBytes: 3 << 40},
		{Name: "other", P20: 8 << 20, P50: 10 << 20, P80: 12 << 20, Samples: 5},
	}
	bergen := &v1alpha1.ReportedActivity{Budget: 3, Slots: 2, Queued: 2, Rates: rates, ObservedAt: metav1.NewTime(now), Active: []v1alpha1.ActiveImport{
		{Namespace: "vmdi-farm", Name: "win-11", Source: "eu-bucket", BytesDone: 17 * gib, BytesTotal: 60 * gib, BytesPerSecond: 58 << 20, Attempt: 1, MaxAttempts: 4},
		{Namespace: "vmdi-farm", Name: "fedora-42", Source: "other", BytesDone: gib, AtMostBytes: 12 * gib, BytesPerSecond: 1 << 20, Attempt: 3, MaxAttempts: 4},
	}, Head: []v1alpha1.QueuedImport{{Namespace: "vmdi-farm", Name: "debian-13", Source: "eu-bucket", Bytes: 8 * gib, QueuedAt: metav1.NewTime(now.Add(-14 * time.Minute))}}}
	frankfurt := &v1alpha1.ReportedActivity{Budget: 1, Slots: 1, ObservedAt: metav1.NewTime(now), Active: []v1alpha1.ActiveImport{
		{Namespace: "vmdi-farm", Name: "ubuntu-2.1.0", Source: "eu-bucket", BytesDone: 20 * gib, BytesTotal: 24 * gib, Attempt: 1, MaxAttempts: 4},
	}}
	return top.Snapshot{Now: now, Clusters: []top.ClusterActivity{
		{Name: "bergen", Activity: bergen, Granted: ptr.To[int32](3), Failed: ptr.To[int32](0)}, {Name: "frankfurt", Activity: frankfurt, Failed: ptr.To[int32](1)}, {Name: "edge-3", Unknown: v1alpha1.ReasonSilent},
	}}
}

func TestScreens(t *testing.T) {
	for _, subject := range top.Subjects {
		rendertest.Golden(t, string(subject), now, top.New(newSnapshot(), subject, "", ""))
	}
	rendertest.Golden(t, "idle", now, top.New(top.Snapshot{Now: now}, top.Imports, "", ""))
}

func TestFilterAndOrder(t *testing.T) {
	names := func(filter, sortBy string) (all []string) {
		for _, i := range top.New(newSnapshot(), top.Imports, filter, sortBy).Imports {
			all = append(all, i.Name)
		}
		return all
	}
	assert.Equal(t, []string{"win-11", "fedora-42", "ubuntu-2.1.0"}, names("", "left"), "without an estimate it is last")
	assert.Equal(t, []string{"fedora-42", "ubuntu-2.1.0", "win-11"}, names("", "image"))
	assert.Equal(t, []string{"win-11"}, names("BERGEN vmdi-farm/win", ""))
	assert.Equal(t, int32(3), top.New(newSnapshot(), top.Imports, "win", "").Totals.Slots, "totals are of the fleet")
	for _, subject := range top.Subjects {
		for _, order := range top.Orders(subject) {
			assert.Equal(t, order, top.New(newSnapshot(), subject, "", order).SortedBy)
		}
	}
}

// namedKeys are those that are no letter.
var namedKeys = map[string]tea.KeyPressMsg{
	"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "tab": {Code: tea.KeyTab}, "backspace": {Code: tea.KeyBackspace},
	"up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "pgup": {Code: tea.KeyPgUp}, "pgdown": {Code: tea.KeyPgDown},
	"ctrl+c": {Code: 'c', Mod: tea.ModCtrl},
}

// press sends keys to a model and returns its screen.
func press(m *top.Model, keys ...string) string {
	for _, key := range keys {
		message, named := namedKeys[key]
		if !named {
			message.Text, message.Code = key, []rune(key)[0]
		}
		if _, command := m.Update(message); command != nil && (key == "enter" || key == "t") {
			m.Update(command())
		}
	}
	return m.View().Content
}

func newModel() *top.Model {
	return top.NewModel(context.Background(), newSnapshot(), top.Imports, render.Options{Width: 100}, time.Second)
}

// markedLine returns the line with the cursor.
func markedLine(screen string) string {
	for line := range strings.Lines(screen) {
		if strings.Contains(line, "›") {
			return line
		}
	}
	return ""
}

func TestKeys(t *testing.T) {
	m := newModel()
	var asked []string
	m.Open = func(_ context.Context, verb string, row top.Row, _ render.Options) (string, error) {
		asked = append(asked, fmt.Sprint(verb, row))
		return "why it waits", nil
	}
	assert.Contains(t, markedLine(press(m)), "win-11")
	assert.Contains(t, markedLine(press(m, "down", "down", "down", "down")), "ubuntu-2.1.0", "the cursor stays on the rows")
	assert.Contains(t, markedLine(press(m, "up")), "fedora-42")
	assert.Equal(t, "why it waits", press(m, "enter"))
	assert.Contains(t, press(m, "esc"), "fedora-42", "any key returns")
	press(m, "t", "esc")
	assert.Equal(t, []string{"why{bergen vmdi-farm fedora-42}", "tree{bergen vmdi-farm fedora-42}"}, asked)

	assert.Contains(t, press(m, "s"), "imports by rate")
	screen := press(m, "/", "u", "b", "x", "backspace")
	assert.Contains(t, screen, "/ub_")
	assert.NotContains(t, screen, "win-11")
	assert.Contains(t, press(m, "enter"), "with ub")
	assert.Contains(t, press(m, "/", "esc"), "win-11")
	assert.Contains(t, press(m, "/", "q"), "/q_", "q is a letter there")
	press(m, "esc")

	assert.Contains(t, press(m, "tab"), "QUEUED")
	assert.Contains(t, press(m, "tab"), "TRANSFERRED")
	before := len(asked)
	press(m, "enter")
	assert.Len(t, asked, before, "there is no screen about a source")
	assert.Contains(t, press(m, "?"), "pause the screen")
	press(m, "?")
}

func TestCtrlCEndsAtAnyTime(t *testing.T) {
	for _, keys := range [][]string{nil, {"/", "a"}, {"?"}, {"p"}} {
		m := newModel()
		press(m, append(keys, "ctrl+c")...)
		assert.True(t, m.Interrupted, keys)
	}
	m := newModel()
	_, command := m.Update(tea.KeyPressMsg{Text: "q", Code: 'q'})
	require.NotNil(t, command)
	assert.IsType(t, tea.QuitMsg{}, command())
	assert.False(t, m.Interrupted)
}

// TestLongOverlaysAreScrolled: commands come last, and are reached on any terminal.
func TestLongOverlaysAreScrolled(t *testing.T) {
	m := newModel()
	m.Open = func(context.Context, string, top.Row, render.Options) (string, error) {
		lines := make([]string, 30)
		for i := range lines {
			lines[i] = fmt.Sprintf("line %d", i+1)
		}
		return strings.Join(lines, "\n") + "\n", nil
	}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 10})
	_, open := m.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
	m.Update(open())
	text := press(m)
	assert.Contains(t, text, "line 9\n")
	assert.NotContains(t, text, "line 10")
	assert.Contains(t, text, "9 of 30 lines")
	assert.Contains(t, press(m, "down"), "line 10\n")
	text = press(m, "pgdown", "pgdown", "pgdown", "pgdown")
	assert.Contains(t, text, "line 30\n")
	assert.NotContains(t, text, "line 21\n")
	assert.Len(t, strings.Split(text, "\n"), 10)
	assert.Contains(t, press(m, "pgup", "pgup", "pgup", "pgup"), "line 1\n")
	assert.NotContains(t, press(m, "x"), "line 1\n", "any other key closes it")
}

func TestPollsReplaceTheScreen(t *testing.T) {
	m := newModel()
	results := []struct {
		snapshot top.Snapshot
		err      error
	}{{err: errors.New("the replica is gone")}, {snapshot: top.Snapshot{Now: now}}, {snapshot: newSnapshot()}}
	m.Poll = func(context.Context) (top.Snapshot, error) {
		next := results[0]
		results = results[1:]
		return next.snapshot, next.err
	}
	m = top.NewModel(t.Context(), newSnapshot(), top.Imports, render.Options{Width: 100}, time.Nanosecond)
	poll := func(context.Context) (top.Snapshot, error) {
		next := results[0]
		results = results[1:]
		return next.snapshot, next.err
	}
	m.Poll = poll
	update := func() { m.Update(m.Init()()) }
	update()
	assert.Contains(t, press(m), "the replica is gone; trying again")
	assert.Contains(t, press(m), "win-11", "the last known stays")
	press(m, "p")
	update()
	assert.Contains(t, press(m), "win-11", "it is paused")
	press(m, "p")
	results = append(results, struct {
		snapshot top.Snapshot
		err      error
	}{snapshot: top.Snapshot{Now: now}})
	update()
	update()
	assert.Contains(t, press(m), "Nothing is imported.")
}

// No line is wider, and no screen higher than the terminal; the cursor is always on it.
func TestScreenFitsTheTerminal(t *testing.T) {
	s := newSnapshot()
	for i := range 60 {
		s.Clusters[0].Activity.Active = append(s.Clusters[0].Activity.Active, v1alpha1.ActiveImport{Namespace: "vmdi-farm", Name: fmt.Sprintf("image-%03d", i), BytesTotal: gib})
	}
	for _, size := range []tea.WindowSizeMsg{{Width: 120, Height: 40}, {Width: 80, Height: 24}, {Width: 40, Height: 10}} {
		m := top.NewModel(t.Context(), s, top.Imports, render.Options{}, time.Second)
		m.Update(size)
		for range 70 {
			screen := press(m, "down")
			lines := strings.Split(screen, "\n")
			require.LessOrEqual(t, len(lines), size.Height)
			for _, line := range lines {
				require.LessOrEqual(t, ansi.StringWidth(line), size.Width, line)
			}
			require.NotEmpty(t, markedLine(screen))
		}
		assert.Contains(t, markedLine(press(m)), "ubuntu-2.1")
	}
}
