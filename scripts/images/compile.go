package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

// builderGoVariables are the settings of Go that say where modules come from, where caches
// are and which version of Go runs. No other setting of the builder may reach the build:
// most change its bytes.
var builderGoVariables = []string{
	"GOAUTH", "GOCACHE", "GOCACHEPROG", "GOINSECURE", "GOMODCACHE", "GONOPROXY", "GONOSUMDB",
	"GOPATH", "GOPROXY", "GOSUMDB", "GOTMPDIR", "GOTOOLCHAIN", "GOVCS",
}

// goVariablePattern matches Go's variables, but not GOOGLE_….
var goVariablePattern = regexp.MustCompile(`^(GO[A-Z0-9]*=|C?GO_)`)

// buildEnvironment returns the environment of a build: of Go's settings builderGoVariables
// only, and every variable that is not Go's, such as PATH. The settings come from the
// environment or from `go env -w`; the build itself ignores the latter.
func buildEnvironment(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", append([]string{"env", "-json"}, builderGoVariables...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("running go env: %w", err)
	}
	var settings map[string]string
	if err := json.Unmarshal(out, &settings); err != nil {
		return nil, fmt.Errorf("decoding the output of go env: %w", err)
	}
	var all []string
	for _, variable := range os.Environ() {
		if !goVariablePattern.MatchString(variable) {
			all = append(all, variable)
		}
	}
	for _, name := range builderGoVariables {
		all = append(all, name+"="+settings[name])
	}
	return append(all, "GOENV=off", "GOWORK=off", "CGO_ENABLED=0"), nil
}

// compileBinary returns a static binary for a platform, without a trace of where it was built,
// and the version of Go that built it.
func compileBinary(ctx context.Context, o options, p program, system, architecture string) (binary []byte, version string, err error) {
	directory, err := os.MkdirTemp("", "ot-images-")
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = os.RemoveAll(directory) }()
	path := filepath.Join(directory, p.name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid= -X main.version="+o.version, "-o", path, p.pkg)
	cmd.Dir = p.module
	if cmd.Env, err = buildEnvironment(ctx); err != nil {
		return nil, "", err
	}
	cmd.Env = append(cmd.Env, "GOOS="+system, "GOARCH="+architecture)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("building %s for %s/%s: %w\n%s", p.name, system, architecture, err, out)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("reading the Go version of %s: %w", p.name, err)
	}
	binary, err = os.ReadFile(path)
	return binary, info.GoVersion, err
}
