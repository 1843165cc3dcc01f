package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// copySources copies a folder without what is built, and links its packages.
func copySources(from, to string) error {
	packages, err := filepath.Abs(filepath.Join(from, "node_modules"))
	if err != nil {
		return err
	}
	if err := os.Symlink(packages, filepath.Join(to, "node_modules")); err != nil {
		return fmt.Errorf("linking the packages: %w", err)
	}
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case name == "node_modules" || name == "dist":
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("copying the sources: %w", err)
		}
		return os.WriteFile(filepath.Join(to, name), text, 0o644)
	})
}

// readFolder returns all files of a folder by name.
func readFolder(folder string) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		files[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", folder, err)
	}
	return files, nil
}

// compareFolders returns an error that names each file that differs.
func compareFolders(committed, built string) error {
	old, err := readFolder(committed)
	if err != nil {
		return err
	}
	now, err := readFolder(built)
	if err != nil {
		return err
	}
	var differ []string
	for name, text := range now {
		if before, found := old[name]; !found {
			differ = append(differ, name+" is missing")
		} else if !bytes.Equal(before, text) {
			differ = append(differ, name+" has other bytes")
		}
	}
	for name := range old {
		if _, found := now[name]; !found {
			differ = append(differ, name+" is no longer built")
		}
	}
	if len(differ) == 0 {
		return nil
	}
	slices.Sort(differ)
	return fmt.Errorf("%s is not what its sources make: run make ui, and commit it:\n  %s", committed, strings.Join(differ, "\n  "))
}
