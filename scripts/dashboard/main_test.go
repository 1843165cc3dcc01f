package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newProject has sources, what is built from them, and tools that write what they are called
// with.
func newProject(t *testing.T) (builder, *bytes.Buffer) {
	t.Helper()
	folder := t.TempDir()
	for name, text := range map[string]string{
		"package-lock.json":        "lock 1",
		"src/main.ts":              "source",
		"dist/index.html":          "built of source\n",
		"node_modules/.bin/tsc":    "#!/bin/sh\necho tsc \"$@\"\n",
		"node_modules/.bin/vitest": "#!/bin/sh\necho vitest \"$@\"\n",
		"node_modules/.bin/vite":   "#!/bin/sh\nmkdir -p dist && echo built of $(cat src/main.ts) > dist/index.html\n",
	} {
		writeFile(t, filepath.Join(folder, name), text)
	}
	writeTools(t, "v20.19.0", `echo run >> npm.log; mkdir -p node_modules`)
	out := &bytes.Buffer{}
	return builder{folder: folder, out: out}, out
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(text), 0o755))
}

// writeTools puts node and npm into PATH, in front of what is there.
func writeTools(t *testing.T, version, npm string) {
	t.Helper()
	programs := t.TempDir()
	writeFile(t, filepath.Join(programs, "node"), "#!/bin/sh\necho "+version+"\n")
	writeFile(t, filepath.Join(programs, "npm"), "#!/bin/sh\n"+npm+"\n")
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
}

func TestBuiltFilesAreCompared(t *testing.T) {
	for name, tt := range map[string]struct {
		change    map[string]string
		wantError string
	}{
		"as committed":             {nil, ""},
		"sources that changed":     {map[string]string{"src/main.ts": "another"}, "index.html has other bytes"},
		"a file that is left over": {map[string]string{"dist/assets/old.js": "old"}, "assets/old.js is no longer built"},
		"a file that is missing":   {map[string]string{"node_modules/.bin/vite": "#!/bin/sh\nmkdir dist && echo built of source > dist/index.html && touch dist/new.js\n"}, "new.js is missing"},
		"types that do not fit":    {map[string]string{"node_modules/.bin/tsc": "#!/bin/sh\nexit 1\n"}, "tsc --noEmit: exit status 1"},
		"a unit test that fails":   {map[string]string{"node_modules/.bin/vitest": "#!/bin/sh\nexit 1\n"}, "vitest run --reporter=dot: exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newProject(t)
			require.NoError(t, b.prepare())
			for file, text := range tt.change {
				writeFile(t, filepath.Join(b.folder, file), text)
			}
			err := b.compareBuilt()
			if tt.wantError == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.wantError)
		})
	}
}

func TestBuiltFilesAreReplaced(t *testing.T) {
	b, out := newProject(t)
	require.NoError(t, b.prepare())
	writeFile(t, filepath.Join(b.folder, "src/main.ts"), "another")
	require.NoError(t, b.replaceBuilt())
	text, err := os.ReadFile(filepath.Join(b.folder, "dist", "index.html"))
	require.NoError(t, err)
	assert.Equal(t, "built of another\n", string(text))
	assert.Equal(t, "tsc --noEmit\nvitest run --reporter=dot\n", out.String())
	require.NoError(t, b.compareBuilt())
	out.Reset()
	require.NoError(t, b.runTests())
	assert.Equal(t, "vitest run --reporter=dot\n", out.String())
}

func TestPackagesAreInstalledOnceForALock(t *testing.T) {
	b, _ := newProject(t)
	for _, lock := range []string{"lock 1", "lock 1", "lock 2", "lock 2"} {
		writeFile(t, filepath.Join(b.folder, "package-lock.json"), lock)
		require.NoError(t, b.prepare())
	}
	runs, err := os.ReadFile(filepath.Join(b.folder, "npm.log"))
	require.NoError(t, err)
	assert.Equal(t, "run\nrun\n", string(runs))
}

// Only Go, make and git are needed: without the rest it is skipped, and says why. Packages
// that cannot be installed for another reason are an error.
func TestMachinesWithoutNpmAreSkipped(t *testing.T) {
	for name, tt := range map[string]struct {
		version, npm string
		empty        bool
		wantSkipped  string
		wantError    string
	}{
		"no npm":                 {empty: true, wantSkipped: "there is no npm"},
		"an old Node.js":         {version: "v18.20.4", npm: "true", wantSkipped: "Node.js is v18.20.4; install 20.19 or later"},
		"no Node.js at all":      {version: "; exit 1", npm: "true", wantSkipped: "there is no node"},
		"no network":             {version: "v22.12.0", npm: "echo npm error code ENOTFOUND; exit 1", wantSkipped: "the npm registry does not answer (ENOTFOUND)"},
		"a lock that is broken":  {version: "v24.0.0", npm: "echo npm error code EUSAGE; exit 1", wantError: "EUSAGE"},
		"everything is in place": {version: "v20.19.0", npm: "mkdir -p node_modules"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newProject(t)
			if tt.empty {
				t.Setenv("PATH", t.TempDir())
			} else {
				writeTools(t, tt.version, tt.npm)
			}
			err := b.prepare()
			var skipped skippedError
			switch {
			case tt.wantSkipped != "":
				require.ErrorAs(t, err, &skipped)
				assert.Contains(t, skipped.reason, tt.wantSkipped)
			case tt.wantError != "":
				require.ErrorContains(t, err, tt.wantError)
				assert.NotErrorAs(t, err, &skipped)
			default:
				require.NoError(t, err)
			}
		})
	}
}

func TestSupportedVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"v20.19.2\n": true, "v20.18.9": false, "v21.7.0": false, "v22.11.0": false, "v22.12.0": true, "v24.1.0": true, "18": false, "": false,
	} {
		assert.Equal(t, want, isSupported(version), version)
	}
}
