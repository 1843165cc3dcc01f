package startup

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMemoryLimitIsThatOfTheContainer(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	for name, tt := range map[string]struct {
		text, env string
		want      int64
	}{
		"a limit":              {"1073741820\n", "", 966367638},
		"none":                 {"max\n", "", before},
		"none, of cgroups v1":  {"9223372036854771712\n", "", before},
		"broken":               {"x", "", before},
		"the environment wins": {"1073741820\n", "1GiB", before},
		"no file":              {"", "", before},
	} {
		t.Run(name, func(t *testing.T) {
			defer debug.SetMemoryLimit(before)
			t.Setenv("GOMEMLIMIT", tt.env)
			file := filepath.Join(t.TempDir(), "memory.max")
			if tt.text != "" {
				require.NoError(t, os.WriteFile(file, []byte(tt.text), 0o600))
			}
			limitMemory([]string{filepath.Join(t.TempDir(), "missing"), file})
			assert.Equal(t, tt.want, debug.SetMemoryLimit(-1))
		})
	}
}
