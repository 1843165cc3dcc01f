// Package binaries builds the real programs of local control planes once, from pinned Go modules,
// and keeps them in a cache outside the source tree that the whole machine shares.
//
// Each program has a Go module of its own below this directory, so that its dependencies never
// mix with the project's.
package binaries

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Name is the file name of a program.
type Name string

// The programs.
const (
	APIServer          Name = "kube-apiserver"
	ControllerManager  Name = "kube-controller-manager"
	Scheduler          Name = "kube-scheduler"
	Kubectl            Name = "kubectl"
	Etcd               Name = "etcd"
	KWOK               Name = "kwok"
	CDI                Name = "cdi-controller"
	KubeVirt           Name = "virt-controller"
	VirtAPI            Name = "virt-api"
	SnapshotController Name = "snapshot-controller"
	Helm               Name = "helm"
)

// Paths maps a program to the absolute path of its executable.
type Paths map[Name]string

const (
	// CacheVariable overrides the cache directory.
	CacheVariable = "OT_FLEET_CACHE"
	// AssetsVariable names a directory in envtest's layout with kube-apiserver, etcd and kubectl
	// to use instead. A version that Component.Variable requests takes precedence.
	AssetsVariable = "KUBEBUILDER_ASSETS"
)

// All lists every program in the order in which to build them.
func All() []Name {
	var names []Name
	for _, r := range recipes {
		names = append(names, r.name)
	}
	return names
}

// PathVariable returns a variable PATH that finds these programs first.
func (p Paths) PathVariable() string {
	var all []string
	for _, path := range p {
		all = append(all, filepath.Dir(path))
	}
	return "PATH=" + strings.Join(append(all, os.Getenv("PATH")), string(os.PathListSeparator))
}

// progress is where builds are reported.
var progress = struct {
	sync.Mutex
	out io.Writer
}{out: os.Stderr}

// ReportTo has builds reported to a writer, a line at a time, instead of standard error.
func ReportTo(w io.Writer) {
	progress.Lock()
	defer progress.Unlock()
	progress.out = w
}

func reportProgress(format string, args ...any) {
	progress.Lock()
	defer progress.Unlock()
	fmt.Fprintf(progress.out, format, args...)
}

// Ensure returns the paths of the named programs and builds those that are
// missing. Several processes may call it at once: one builds, the others wait.
// What happens and how long it takes is reported on standard error.
func Ensure(ctx context.Context, names ...Name) (Paths, error) {
	paths := Paths{}
	var missing []recipe
	for _, name := range names {
		i := slices.IndexFunc(recipes, func(r recipe) bool { return r.name == name })
		if i < 0 {
			return nil, fmt.Errorf("providing program %q: unknown name, known are %v", name, All())
		}
		if path, ok := findInAssets(recipes[i]); ok {
			paths[name] = path
			continue
		}
		missing = append(missing, recipes[i])
	}
	if len(missing) == 0 {
		return paths, nil
	}
	source, err := sourceDirectory()
	if err != nil {
		return nil, err
	}
	cache, err := cacheDirectory()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentModules)
	for _, programs := range groupByModule(missing) {
		group.Go(func() error {
			for _, r := range programs {
				path, err := ensureBuilt(ctx, r, filepath.Join(source, r.directory), cache)
				if err != nil {
					return err
				}
				mu.Lock()
				paths[r.name] = path
				mu.Unlock()
			}
			return nil
		})
	}
	return paths, group.Wait()
}

// concurrentModules is how many modules are built at a time: linking keeps one core busy.
const concurrentModules = 2

// groupByModule groups recipes by the module that pins them, in order. Concurrent builds of
// one module would compile the same packages.
func groupByModule(recipes []recipe) [][]recipe {
	var groups [][]recipe
	for _, r := range recipes {
		i := slices.IndexFunc(groups, func(g []recipe) bool { return g[0].directory == r.directory })
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}

func findInAssets(r recipe) (string, bool) {
	assets := os.Getenv(AssetsVariable)
	if assets == "" || !r.inAssets || r.requestedVersion() != "" {
		return "", false
	}
	path := filepath.Join(assets, string(r.name))
	info, err := os.Stat(path)
	return path, err == nil && info.Mode().IsRegular()
}

// sourceDirectory finds this directory upwards from the working directory: a binary built with
// -trimpath does not know it.
func sourceDirectory() (string, error) {
	working, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the sources of the tools to build: %w", err)
	}
	for dir := working; ; dir = filepath.Dir(dir) {
		candidate := filepath.Join(dir, "e2e", "harness", "binaries")
		if _, err := os.Stat(filepath.Join(candidate, "kubernetes", "go.mod")); err == nil {
			return candidate, nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("finding the sources of the tools in %s: %w", candidate, err)
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding e2e/harness/binaries above %s: not there; run from within the checkout", working)
		}
	}
}

func cacheDirectory() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory for built tools (set %s): %w", CacheVariable, err)
	}
	return filepath.Join(dir, "ot-fleet"), nil
}
