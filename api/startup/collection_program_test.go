package startup

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/metrics"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// collectionFile is the environment variable of the file that TestProgramPacesCollections, as a process of its own,
// writes GOGC to: before it allocates, and once that has changed it.
const collectionFile = "OT_TEST_COLLECTION_FILE"

func TestProgramPacesCollections(t *testing.T) {
	if file := os.Getenv(collectionFile); file != "" {
		RunProgram("test", func() error { return os.WriteFile(file, []byte(allocateUntilPaced()), 0o600) })
		return
	}
	for name, tt := range map[string]struct{ env, want string }{
		"at rest, and then busy": {"", "50 100"},
		"the environment wins":   {"80", "80 80"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "gogc")
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestProgramPacesCollections$")
			cmd.Env = append(os.Environ(), collectionFile+"="+file, "GOGC="+tt.env, "GOMEMLIMIT=1GiB")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
			got, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, tt.want, string(got))
		})
	}
}

// allocateUntilPaced returns GOGC before and after garbage of several times maxBusyHeap, of which none lives. It gives
// up after ten times paceInterval, and at once where the environment sets it: nothing can follow then.
func allocateUntilPaced() string {
	readGOGC := func() string {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return strconv.FormatUint(sample[0].Value.Uint64(), 10)
	}
	first := readGOGC()
	const interval = paceInterval / 50
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for range 10 * paceInterval / interval {
		if os.Getenv("GOGC") != "" || readGOGC() != first {
			break
		}
		garbage = make([]byte, maxBusyHeap/25)
		<-ticker.C
	}
	return first + " " + readGOGC()
}

// garbage keeps the compiler from leaving the allocation out.
var garbage []byte
