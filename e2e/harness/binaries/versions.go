package binaries

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Component is a project whose programs can be built in several versions. Its pinned version is in
// the go.mod of the directory of its name.
type Component string

// The components.
const (
	KubernetesComponent Component = "kubernetes"
	CDIComponent        Component = "cdi"
	KubeVirtComponent   Component = "kubevirt"
)

// Components lists the components.
func Components() []Component {
	return []Component{KubernetesComponent, CDIComponent, KubeVirtComponent}
}

// Variable returns the environment variable that requests another version than the pinned one.
func (c Component) Variable() string { return "OT_" + strings.ToUpper(string(c)) + "_VERSION" }

// Version returns the version of a component that Ensure provides.
func Version(c Component) (string, error) {
	i := slices.IndexFunc(recipes, func(r recipe) bool { return r.directory == string(c) })
	if version := recipes[i].requestedVersion(); version != "" {
		return version, nil
	}
	source, err := sourceDirectory()
	if err != nil {
		return "", err
	}
	return recipes[i].pinnedVersion(filepath.Join(source, recipes[i].directory))
}

// UnavailableError says that the modules of a version cannot be downloaded.
type UnavailableError struct {
	Module, Version string
	// Answer is what the go command says.
	Answer string
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s@%s cannot be built, a module of it cannot be downloaded: %s", e.Module, e.Version, e.Answer)
}

// requestedVersion returns the version that the environment requests; empty for the pinned one.
func (r recipe) requestedVersion() string {
	if !slices.Contains(Components(), Component(r.directory)) {
		return ""
	}
	version := os.Getenv(Component(r.directory).Variable())
	if version == "" {
		return ""
	}
	return "v" + strings.TrimPrefix(version, "v")
}

// modFlag lets builds add to go.mod and go.sum what the written module lacks.
const modFlag = "-mod=mod"

// knownSums are the checksums of modules that not every mirror of the checksum database knows. They
// are those of the files of the tag in the component's repository.
const knownSums = `kubevirt.io/containerized-data-importer v1.64.0 h1:e7GkbDL3/Jyya9WDWRAMpL+SEvS1QvMQIQOHilF20Vg=
kubevirt.io/containerized-data-importer v1.64.0/go.mod h1:XyBFuBZuGoNEHhPYEMzZYOOA6C+VTDclo2rIiOJxSkI=
`

// sourcesOf returns the nested module for another version: our sources, and a go.mod with all
// that the component's own one requires. The go.sum does not determine what is built.
func (r recipe) sourcesOf(ctx context.Context, version string, pinned []sourceFile) ([]sourceFile, error) {
	goMod, err := r.readGoMod(ctx, version)
	if err != nil {
		return nil, err
	}
	var sources []sourceFile
	for _, file := range pinned {
		switch file.name {
		case "go.sum":
			continue
		case "go.mod":
			file.content = goMod
		default:
			if file.content, err = r.adapt(version, file); err != nil {
				return nil, err
			}
		}
		sources = append(sources, file)
	}
	return sources, nil
}

// goModJSON is the part that is needed of what `go mod edit -json` prints.
type goModJSON struct {
	Require []moduleVersion
	Replace []struct{ Old, New moduleVersion }
}

type moduleVersion struct{ Path, Version string }

// goMods has the go.mod files that this process has written, by module and version.
var goMods = struct {
	sync.Mutex
	written map[string][]byte
}{written: map[string][]byte{}}

func (r recipe) readGoMod(ctx context.Context, version string) ([]byte, error) {
	goMods.Lock()
	defer goMods.Unlock()
	key := r.module + "@" + version
	if goMods.written[key] == nil {
		goMod, err := r.writeGoMod(ctx, version)
		if err != nil {
			return nil, err
		}
		goMods.written[key] = goMod
	}
	return goMods.written[key], nil
}

// writeGoMod returns the component's go.mod of a version as that of a module which requires the
// component. Directories of its repository become modules.
func (r recipe) writeGoMod(ctx context.Context, version string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "ot-fleet-gomod-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "go.mod")
	err = errors.Join(os.WriteFile(file, []byte("module any\n"), 0o644), os.WriteFile(filepath.Join(dir, "go.sum"), []byte(knownSums), 0o644))
	if err != nil {
		return nil, err
	}
	// go list does not download the go.mod.
	info, err := runGo(ctx, dir, "mod", "download", "-json", r.module+"@"+version)
	var module struct{ GoMod, Error string }
	if jsonErr := json.Unmarshal(info, &module); err != nil || jsonErr != nil {
		return nil, &UnavailableError{r.module, version, lastLine(cmp.Or(module.Error, fmt.Sprint(errors.Join(err, jsonErr))))}
	}
	text, err := os.ReadFile(module.GoMod)
	if err != nil {
		return nil, fmt.Errorf("reading the go.mod of %s@%s: %w", r.module, version, err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, err
	}
	parsed, err := runGo(ctx, dir, "mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	var upstream goModJSON
	if err := json.Unmarshal(parsed, &upstream); err != nil {
		return nil, fmt.Errorf("parsing the go.mod of %s@%s: %w", r.module, version, err)
	}
	edits := append([]string{
		"mod", "edit", "-module=github.com/pelotech/ot-fleet/e2e/harness/binaries/" + r.directory,
		"-require=" + r.module + "@" + version,
	}, r.replaceEdits(version, upstream)...)
	if _, err := runGo(ctx, dir, edits...); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// replaceEdits returns the flags of `go mod edit` that turn directories of the component's
// repository into modules.
func (r recipe) replaceEdits(version string, upstream goModJSON) []string {
	var edits []string
	replace := func(path, with, version string) {
		edits = append(edits, "-replace="+path+"="+with+"@"+version)
	}
	replaced := map[string]bool{}
	for _, entry := range upstream.Replace {
		replaced[entry.Old.Path] = true
	}
	for _, required := range upstream.Require {
		if required.Version == "v0.0.0" && !replaced[required.Path] {
			replace(required.Path, required.Path, r.stagedVersion(version))
		}
	}
	for _, entry := range upstream.Replace {
		switch {
		case entry.New.Version == "":
			replace(entry.Old.Path, entry.Old.Path, r.stagedVersion(version))
		case !strings.Contains(strings.Split(entry.New.Path, "/")[0], "."): // a slip in CDI's go.mod
			replace(entry.Old.Path, entry.Old.Path, entry.New.Version)
		}
	}
	return edits
}

// stagedVersion is the version of the modules that a component publishes from its repository:
// v0.34.2 of Kubernetes v1.34.2, and its own of others.
func (r recipe) stagedVersion(version string) string {
	if Component(r.directory) == KubernetesComponent {
		return "v0" + strings.TrimPrefix(version, "v1")
	}
	return version
}

// writeModule writes a module to a temporary directory, and downloads what its programs need. The
// pinned module's checksums are kept: the versions have many modules in common.
func (r recipe) writeModule(ctx context.Context, version, pinned string, sources []sourceFile) (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp("", "ot-fleet-"+r.directory+"-")
	if err != nil {
		return "", nil, fmt.Errorf("writing the module of %s@%s: %w", r.module, version, err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	sums, err := os.ReadFile(filepath.Join(pinned, "go.sum"))
	for _, file := range append(slices.Clone(sources), sourceFile{"go.sum", append(sums, knownSums...)}) {
		path := filepath.Join(dir, file.name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, file.content, 0o644))
	}
	if err != nil {
		remove()
		return "", nil, fmt.Errorf("writing the module of %s@%s: %w", r.module, version, err)
	}
	if _, err := runGo(ctx, dir, "list", "-deps", r.pkg); err != nil {
		remove()
		return "", nil, &UnavailableError{r.module, version, err.Error()}
	}
	return dir, remove, nil
}

// runGo runs a go command. The error is the last thing that it prints.
func runGo(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, goEnvironment(modFlag)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = errors.New(lastLine(string(exit.Stderr)))
	}
	return out, err
}

// goPosition is what the go command puts before an error: its name, or where a package is imported.
var goPosition = regexp.MustCompile(`^(go|\S+\.go:\d+:\d+): `)

// lastLine returns the last line of the output of a go command with those that it continues, which
// are indented.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	first := len(lines) - 1
	for first > 0 && strings.HasPrefix(lines[first], "\t") {
		first--
	}
	text = strings.Join(strings.Fields(strings.Join(lines[first:], " ")), " ")
	return goPosition.ReplaceAllString(text, "")
}
