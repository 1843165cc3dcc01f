package binaries

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"strings"
)

// versionPlaceholder is linked into a program in place of a version, so that programs of several
// versions are linked once. No other text of a program has it.
const versionPlaceholder = "v?~^#!"

// Without -trimpath, Go adds the linker's flags to the build information, which is in a file twice.
const buildInfoCopies = 2

// stampVersion copies a program that was linked with versionPlaceholder, with a version in its place.
func stampVersion(program, version, path string) error {
	if len(version) != len(versionPlaceholder) {
		return fmt.Errorf("stamping version %q into %s: it has not %d characters", version, program, len(versionPlaceholder))
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("reading the build information of %s: %w", program, err)
	}
	want := 1
	for _, setting := range info.Settings {
		want += buildInfoCopies * strings.Count(setting.Value, versionPlaceholder)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if got := bytes.Count(content, []byte(versionPlaceholder)); got != want {
		return fmt.Errorf("stamping version %s into %s: it has the placeholder %d times instead of %d", version, program, got, want)
	}
	return os.WriteFile(path, bytes.ReplaceAll(content, []byte(versionPlaceholder), []byte(version)), 0o755)
}
