//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
)

// dashboardPatience is how long the dashboard may take to print its address.
const dashboardPatience = 30 * time.Second

// dashboardLog is what the dashboard prints.
func (b backgroundFleet) dashboardLog() string { return b.path("dashboard.log") }

// startDashboard starts kubectl ot dashboard in the background, in place of the one before, whose
// address may have been used. It returns the new address. It ends with the fleet.
func (b backgroundFleet) startDashboard(ctx context.Context) (address string, err error) {
	program, err := findPlugin()
	if err != nil {
		return "", err
	}
	b.endDashboard()
	log, err := os.OpenFile(b.dashboardLog(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, dashboardVerb, "--no-open") //nolint:gosec // built from this checkout
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), markVariable+"="+string(b), "KUBECONFIG="+b.kubeconfig(), "OT_HUB="+hubContext)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, dashboardPatience)
	defer cancel()
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	for {
		printed, err := os.ReadFile(b.dashboardLog())
		if err != nil {
			return "", err
		}
		for line := range bytes.Lines(printed) {
			if bytes.Contains(line, []byte("/#key=")) && bytes.HasSuffix(line, []byte("\n")) {
				return strings.TrimSpace(string(line)), nil
			}
		}
		select {
		case <-ended:
			return "", errors.New(strings.TrimSpace(string(printed)))
		case <-ctx.Done():
			return "", fmt.Errorf("it printed no address: %s", strings.TrimSpace(string(printed)))
		case <-ticker.C:
		}
	}
}

// offerDashboard starts kubectl ot dashboard for as long as the story is told, and notes its address. The
// story does not depend on it.
func (s *display) offerDashboard(ctx context.Context) {
	address, err := s.startDashboard(ctx)
	if err != nil {
		s.printNote("no dashboard: %v", err)
		return
	}
	s.printNote("watch it in a browser: %s", address)
}

func (s *display) startDashboard(ctx context.Context) (address string, err error) {
	cmd, err := s.plugin.Command(ctx, dashboardVerb, "--no-open")
	if err != nil {
		return "", err
	}
	var problems bytes.Buffer
	printed, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		return "", err
	}
	patience := time.AfterFunc(dashboardPatience, func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(printed)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "/#key=") {
			patience.Stop()
			go func() {
				for lines.Scan() { // to its end, which is that of the story
				}
				_ = cmd.Wait() // it is killed
			}()
			return strings.TrimSpace(lines.Text()), nil
		}
	}
	_ = cmd.Wait()
	return "", fmt.Errorf("kubectl ot dashboard printed no address: %s", strings.TrimSpace(problems.String()))
}

// dashboardVerb is that of the dashboard's process.
const dashboardVerb = "dashboard"

// endDashboard ends the dashboard of the fleet, if one runs.
func (b backgroundFleet) endDashboard() {
	for _, p := range b.listProcesses() {
		if p.arguments[0] == plugin.Name && slices.Contains(p.arguments, dashboardVerb) {
			_ = syscall.Kill(p.pid, syscall.SIGTERM) // fails for one that has ended
		}
	}
}

// findPlugin returns the plugin that make up has built, else the one in PATH.
func findPlugin() (string, error) {
	built, err := filepath.Abs(filepath.Join("bin", plugin.Name))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(built); err == nil {
		return built, nil
	}
	return exec.LookPath(plugin.Name)
}
