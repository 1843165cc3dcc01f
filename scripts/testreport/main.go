//go:build linux

// Command testreport runs `go test` with its arguments and prints what that prints. It builds
// the agent, the hub and the kubectl plugin once for all packages. It closes with the ten
// packages that took the most CPU time, that of everything their tests started included:
//
//	go run ./scripts/testreport -count=1 ./...
//
// The exit code is go test's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// slowestPackages is how many rows the closing table has.
const slowestPackages = 10

func main() {
	if len(os.Args) > 3 && os.Args[1] == measureCommand {
		os.Exit(measure(os.Args[2], os.Args[3:]))
	}
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run returns go test's exit code.
func run(args []string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	module, err := findModule()
	if err != nil {
		return 0, err
	}
	usageDir, removeUsage, err := process.TempDir("ot-fleet-testreport-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = removeUsage() }()
	programs, removePrograms, err := process.TempDir("ot-fleet-programs-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = removePrograms() }()

	start := time.Now()
	if err := binaries.BuildAll(context.Background(), module.dir, programs); err != nil {
		return 0, err
	}
	cmd := exec.Command("go", append([]string{"test", "-json", fmt.Sprintf("-exec='%s' %s '%s'", self, measureCommand, usageDir)}, args...)...)
	// The last of equal variables counts: one that is inherited names no programs of this run.
	cmd.Env = append(os.Environ(), binaries.ProgramsVariable+"="+programs)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting go test: %w", err)
	}
	p := newPrinter(os.Stdout, isVerbose(args))
	readErr := p.printEvents(events)
	waitErr := cmd.Wait()
	if exit := (*exec.ExitError)(nil); waitErr != nil && !errors.As(waitErr, &exit) {
		return 0, fmt.Errorf("waiting for go test: %w", waitErr)
	}
	usage, usageErr := readUsage(usageDir, module)
	p.printSlowest(usage, slowestPackages, time.Since(start))
	return cmd.ProcessState.ExitCode(), errors.Join(readErr, usageErr)
}

func isVerbose(args []string) bool {
	for _, arg := range args {
		if name := strings.TrimLeft(arg, "-"); name != arg && (name == "v" || name == "v=true") {
			return true
		}
	}
	return false
}

// module is the main module: its import path and its directory.
type module struct{ path, dir string }

func findModule() (module, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Path}}\t{{.Dir}}").Output()
	if err != nil {
		return module{}, fmt.Errorf("finding the main module: %w", err)
	}
	path, dir, _ := strings.Cut(strings.TrimSpace(string(out)), "\t")
	return module{path, dir}, nil
}

// importPath returns the import path of the package in a directory of the module.
func (m module) importPath(dir string) string {
	relative, err := filepath.Rel(m.dir, dir)
	if err != nil || relative == "." {
		return m.path
	}
	return m.path + "/" + filepath.ToSlash(relative)
}
