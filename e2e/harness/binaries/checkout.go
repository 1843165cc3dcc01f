package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// CheckoutProgram is a program of this project.
type CheckoutProgram struct {
	// Name is its file name.
	Name string
	// Module is the folder of its module in the checkout; empty for the root. Package is its folder
	// in the module.
	Module, Package string
	// Version is what tests have stamped into it unless they say otherwise; empty for nothing.
	Version string
}

// PluginName is the file name by which kubectl finds the plugin.
const PluginName = "kubectl-ot"

// The programs of this project.
var (
	AgentProgram  = CheckoutProgram{Name: "ot-agent", Package: "agent"}
	HubProgram    = CheckoutProgram{Name: "ot-hub", Package: "hub"}
	PluginProgram = CheckoutProgram{Name: PluginName, Module: "cli", Package: ".", Version: "v0.0.0-test"}
)

// ProgramsVariable names a directory with the programs of this checkout, which FindPrebuilt returns.
// Invariant: it is set only for the go test that scripts/testreport runs, which has built them for
// that run and removes them with it.
const ProgramsVariable = "OT_FLEET_PROGRAMS"

// FindCheckout returns the root of this checkout.
var FindCheckout = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module's folder: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// BuildAll builds the programs of the checkout top, each with its Version, for FindPrebuilt. One after
// the other: concurrent builds would compile the packages that they share twice.
func BuildAll(ctx context.Context, top, directory string) error {
	for _, p := range []CheckoutProgram{AgentProgram, HubProgram, PluginProgram} {
		path := p.prebuiltPath(directory)
		if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("making the directory of %s: %w", p.Name, err)
		}
		if err := p.Build(ctx, top, p.Version, path); err != nil {
			return err
		}
	}
	return nil
}

// FindPrebuilt returns the path of the program in the directory that ProgramsVariable names; empty
// where that is not set.
func (p CheckoutProgram) FindPrebuilt() (string, error) {
	directory := os.Getenv(ProgramsVariable)
	if directory == "" {
		return "", nil
	}
	path := p.prebuiltPath(directory)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("finding %s, which was built for the run of tests that has set %s: %w", p.Name, ProgramsVariable, err)
	}
	return path, nil
}

// prebuiltPath is in a directory of the program's own: tests put that in PATH.
func (p CheckoutProgram) prebuiltPath(directory string) string {
	return filepath.Join(directory, p.Name, p.Name)
}

// Build builds the program of the checkout top and copies it to path. The last build stays in the
// cache, since the Go toolchain links nothing that has not changed; path gets a copy, since the next
// build must not change a running program. A version is stamped into it unless it is empty. Versions
// as long as versionPlaceholder share one build.
func (p CheckoutProgram) Build(ctx context.Context, top, version, path string) error {
	cache, err := cacheDirectory()
	if err != nil {
		return err
	}
	module := filepath.Join(top, p.Module)
	sum := sha256.Sum256([]byte(module))
	directory := filepath.Join(cache, "checkout-"+hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("making the cache directory for %s (set %s to a writable one): %w", p.Name, CacheVariable, err)
	}
	linked := version
	if len(version) == len(versionPlaceholder) {
		linked = versionPlaceholder
	}
	built, flags := filepath.Join(directory, p.Name), "-s -w"
	switch linked {
	case "":
	case versionPlaceholder:
		built, flags = built+"-any", flags+" -X main.version="+versionPlaceholder
	default:
		built, flags = built+"-"+version, flags+" -X main.version="+version
	}
	unlock, err := lockBuild(ctx, built+".lock", Name(p.Name))
	if err != nil {
		return err
	}
	defer unlock()
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags="+flags, "-o", built, "./"+p.Package)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", p.Name, err, out)
	}
	source := built
	if linked != version {
		source = path + ".stamped"
		defer os.Remove(source)
		if err := stampVersion(built, version, source); err != nil {
			return err
		}
	}
	// Another process copies: a file that this process, or a child forked meanwhile, has open for
	// writing cannot be executed.
	if out, err := exec.CommandContext(ctx, "cp", source, path).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w\n%s", p.Name, err, out)
	}
	return nil
}
