//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
)

// display tells the story: notes of what happens, and the screens of kubectl ot.
type display struct {
	plugin   *plugin.Plugin
	terminal bool
	start    time.Time

	mu sync.Mutex // progress is reported concurrently
	// screen is true after a screen, which ends with an empty line.
	screen bool
}

func newDisplay(p *plugin.Plugin) *display {
	return &display{plugin: p, terminal: term.IsTerminal(int(os.Stdout.Fd())), start: time.Now()}
}

// Write implements io.Writer: each write is a note.
func (s *display) Write(p []byte) (int, error) {
	s.printNote("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

func (s *display) printNote(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.screen = false
	fmt.Printf("%6.1fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// Exit codes of kubectl ot: what was asked for is done, and the others with which a question is
// answered.
var (
	done     = []int{0}
	answered = []int{0, 1, 3, 4, 5}
)

// runPlugin runs kubectl ot and shows its command and its screen. Another exit code than these
// is an error.
func (s *display) runPlugin(ctx context.Context, wantCodes []int, args ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := "$ kubectl ot " + strings.Join(args, " ")
	if s.terminal {
		line = "\x1b[1m" + line + "\x1b[0m"
	}
	if !s.screen {
		fmt.Println()
	}
	s.screen = true
	fmt.Println(line)
	cmd, err := s.plugin.Command(ctx, args...)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
			return fmt.Errorf("running kubectl ot %s: %w", strings.Join(args, " "), err)
		}
	}
	fmt.Println()
	if code := cmd.ProcessState.ExitCode(); !slices.Contains(wantCodes, code) {
		return fmt.Errorf("kubectl ot %s ended with exit code %d, which is none of %v", strings.Join(args, " "), code, wantCodes)
	}
	return nil
}
