package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sumsFile lists the sums of the files beside it, as sha256sum does.
const sumsFile = "SHA256SUMS"

// plugin is `kubectl ot`. Its module is its own.
var plugin = program{name: "kubectl-ot", pkg: ".", module: "cli"}

// buildPlugin builds a plugin for each platform and returns the names of the binaries.
func buildPlugin(ctx context.Context, o options, p program) (files []string, err error) {
	for _, platform := range o.pluginPlatforms {
		system, architecture, ok := strings.Cut(platform, "/")
		if !ok {
			return nil, fmt.Errorf("-plugin-platforms: a platform is a system and an architecture, as linux/amd64, and %q is none", platform)
		}
		binary, version, err := compileBinary(ctx, o, p, system, architecture)
		if err != nil {
			return nil, err
		}
		name := p.name + "-" + system + "-" + architecture
		if system == "windows" {
			name += ".exe"
		}
		if err := replaceFile(filepath.Join(o.directory, name), binary, 0o755); err != nil {
			return nil, err
		}
		files = append(files, name)
		fmt.Printf("%s %s, by %s\n", name, o.version, version)
	}
	return files, nil
}

// writeSums writes the sums of files of a directory.
func writeSums(directory string, files []string) error {
	var sums bytes.Buffer
	for _, name := range slices.Sorted(slices.Values(files)) {
		content, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), name)
	}
	return replaceFile(filepath.Join(directory, sumsFile), sums.Bytes(), 0o644)
}

// replaceFile replaces a file as a whole: the one before may be running, and is of other rights.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	next := path + ".new"
	if err := os.WriteFile(next, content, mode); err != nil {
		return err
	}
	if err := os.Chmod(next, mode); err != nil {
		return err
	}
	return os.Rename(next, path)
}
