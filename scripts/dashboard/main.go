// Command dashboard checks the sources of the dashboard, tests them, and builds them into
// ui/dist. With -check it builds into another folder, and fails where ui/dist differs: what is
// committed is what the sources make. With -test it only runs the unit tests. Without npm it says so and succeeds: hub, kubectl plugin
// and images are built from ui/dist, with Go alone. It runs in the repository's root.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	check := flag.Bool("check", false, "compare ui/dist with a new build instead of replacing it")
	test := flag.Bool("test", false, "only run the unit tests")
	flag.Parse()
	b := builder{folder: "ui", out: os.Stdout}
	run := b.replaceBuilt
	switch {
	case *check:
		run = b.compareBuilt
	case *test:
		run = b.runTests
	}
	err := b.prepare()
	if err == nil {
		err = run()
	}
	if skipped, ok := errors.AsType[skippedError](err); ok {
		fmt.Printf("dashboard: skipped, ui/dist is taken as it is: %s\n", skipped.reason)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

// skippedError is why a machine cannot build the dashboard.
type skippedError struct{ reason string }

func (e skippedError) Error() string { return e.reason }

// builder builds the sources in a folder.
type builder struct {
	folder string
	out    io.Writer
}

// prepare checks that the machine can build, and installs the packages.
func (b builder) prepare() error {
	if err := checkNode(); err != nil {
		return err
	}
	return b.installPackages()
}

func (b builder) replaceBuilt() error { return b.build(b.folder) }

// compareBuilt builds in another folder: what is built may not depend on where.
func (b builder) compareBuilt() error {
	elsewhere, err := os.MkdirTemp("", "dashboard-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(elsewhere) }()
	if err := copySources(b.folder, elsewhere); err != nil {
		return err
	}
	if err := b.build(elsewhere); err != nil {
		return err
	}
	return compareFolders(filepath.Join(b.folder, "dist"), filepath.Join(elsewhere, "dist"))
}

// checkNode returns why the programs cannot be used: Vite needs Node.js 20.19 or later.
func checkNode() error {
	if _, err := exec.LookPath("npm"); err != nil {
		return skippedError{"there is no npm; install Node.js 20.19 or later to build it"}
	}
	text, err := exec.Command("node", "--version").Output()
	if err != nil {
		return skippedError{"there is no node; install Node.js 20.19 or later to build it"}
	}
	if !isSupported(string(text)) {
		return skippedError{fmt.Sprintf("Node.js is %s; install 20.19 or later to build it", strings.TrimSpace(string(text)))}
	}
	return nil
}

var nodeVersion = regexp.MustCompile(`^v([0-9]+)\.([0-9]+)\.`)

func isSupported(version string) bool {
	found := nodeVersion.FindStringSubmatch(version)
	if found == nil {
		return false
	}
	major, _ := strconv.Atoi(found[1])
	minor, _ := strconv.Atoi(found[2])
	return major == 20 && minor >= 19 || major == 22 && minor >= 12 || major > 22
}

// unreachable are parts of npm's messages where its registry cannot be reached.
var unreachable = []string{"ENOTFOUND", "EAI_AGAIN", "ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "EHOSTUNREACH", "ENOTCACHED"}

// installPackages installs what package-lock.json names, unless that was done already.
func (b builder) installPackages() error {
	lock, err := os.ReadFile(filepath.Join(b.folder, "package-lock.json"))
	if err != nil {
		return fmt.Errorf("reading the list of packages: %w", err)
	}
	stamp := filepath.Join(b.folder, "node_modules", ".installed-lock.json")
	if installed, err := os.ReadFile(stamp); err == nil && string(installed) == string(lock) {
		return nil
	}
	cmd := exec.Command("npm", "ci", "--include=dev", "--prefer-offline", "--no-audit", "--no-fund")
	cmd.Dir = b.folder
	if output, err := cmd.CombinedOutput(); err != nil {
		for _, code := range unreachable {
			if strings.Contains(string(output), code) {
				return skippedError{"the npm registry does not answer (" + code + "), and its packages are not installed"}
			}
		}
		return fmt.Errorf("installing packages by npm ci: %w\n%s", err, output)
	}
	return os.WriteFile(stamp, lock, 0o644)
}

// runTests runs the unit tests: those of pure functions, without a browser. They compare with golden
// files of the command line, so they run where those are.
func (b builder) runTests() error { return b.runTool(b.folder, "vitest", "run", "--reporter=dot") }

// build checks types and builds in a folder, and runs the unit tests.
func (b builder) build(folder string) error {
	if err := b.runTool(folder, "tsc", "--noEmit"); err != nil {
		return err
	}
	if err := b.runTests(); err != nil {
		return err
	}
	return b.runTool(folder, "vite", "build", "--emptyOutDir", "--logLevel=warn")
}

// runTool runs a program of the packages.
func (b builder) runTool(folder, name string, arguments ...string) error {
	program, err := filepath.Abs(filepath.Join(b.folder, "node_modules", ".bin", name))
	if err != nil {
		return err
	}
	cmd := exec.Command(program, arguments...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, b.out, b.out
	// What is built may not depend on the machine.
	cmd.Env = append(os.Environ(), "NODE_ENV=production", "TZ=UTC", "LC_ALL=C", "NO_COLOR=1")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(arguments, " "), err)
	}
	return nil
}
