//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// screen shows a table that is drawn anew on a terminal, and a line for each
// change elsewhere.
type screen struct {
	terminal bool
	drawn    int // lines of the table on the terminal
	notes    []string
	last     map[string]string
	now      time.Duration
}

func newScreen() *screen {
	return &screen{terminal: term.IsTerminal(int(os.Stdout.Fd())), last: map[string]string{}}
}

func (s *screen) say(format string, args ...any) {
	note := fmt.Sprintf("%6.1fs  %s", s.now.Seconds(), fmt.Sprintf(format, args...))
	if !s.terminal {
		fmt.Println(note)
		return
	}
	s.notes = append(s.notes, note)
}

func (s *screen) show(now time.Duration, images []*v1alpha1.VMDiskImage, ledger *v1alpha1.SyncLedger) {
	s.now = now
	if s.terminal {
		s.draw(images, ledger)
		return
	}
	for _, img := range images {
		state := fmt.Sprintf("%-9s %s", img.Status.Phase, img.Status.Reason)
		if s.last[img.Name] == state || img.Status.Phase == "" {
			continue
		}
		s.last[img.Name] = state
		fmt.Printf("%6.1fs  %-16s %-26s %s\n", now.Seconds(), img.Name, state, img.Status.Message)
	}
}

var colours = map[v1alpha1.Phase]string{
	v1alpha1.PhaseSyncing:   "\x1b[36m",
	v1alpha1.PhaseSucceeded: "\x1b[32m",
	v1alpha1.PhaseFailed:    "\x1b[31m",
}

func (s *screen) draw(images []*v1alpha1.VMDiskImage, ledger *v1alpha1.SyncLedger) {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width < 40 {
		width = 100
	}
	var lines []string
	slots, budget := 0, int32(0)
	if ledger.Status != nil {
		slots, budget = len(ledger.Status.Slots), ledger.Status.Budget
	}
	lines = append(lines, fmt.Sprintf("%6.1fs  slots %s%s %d of %d   ready %d   failed %d", s.now.Seconds(),
		strings.Repeat("#", slots), strings.Repeat(".", max(0, int(budget)-slots)), slots, budget,
		count(images, v1alpha1.PhaseSucceeded), count(images, v1alpha1.PhaseFailed)), "",
		fmt.Sprintf("%-16s %-10s %-16s %s", "IMAGE", "PHASE", "REASON", "MESSAGE"))
	for _, img := range images {
		st := img.Status
		line := fmt.Sprintf("%-16s %-10s %-16s %s", img.Name, st.Phase, st.Reason, st.Message)
		if r := []rune(line); len(r) > width-1 {
			line = string(r[:width-2]) + "…"
		}
		if colour := colours[st.Phase]; colour != "" {
			line = colour + line + "\x1b[0m"
		}
		lines = append(lines, line)
	}
	lines = append(lines, "")
	lines = append(lines, s.notes...)
	if s.drawn > 0 {
		fmt.Printf("\x1b[%dA", s.drawn)
	}
	for _, line := range lines {
		fmt.Printf("\x1b[2K%s\n", line)
	}
	s.drawn = len(lines)
}
