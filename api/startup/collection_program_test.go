package startup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// collectionFile is the environment variable of the file that TestProgramPacesCollections, as a process of its own,
// writes GOGC to: before it allocates, once that has changed it, and once it was given rest and gave memory back.
const collectionFile = "OT_TEST_COLLECTION_FILE"

func TestProgramPacesCollections(t *testing.T) {
	if file := os.Getenv(collectionFile); file != "" {
		RunProgram("test", func() error { return os.WriteFile(file, []byte(allocateUntilPaced()), 0o600) })
		return
	}
	for name, tt := range map[string]struct{ env, want string }{
		"at rest, busy, at rest": {"", "50, 100, 50 after giving back"},
		"the environment wins":   {"80", "80, 80, 80"},
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

// allocateUntilPaced returns GOGC before and after garbage of several times maxBusyHeap, of which none lives, and after
// rest. It gives up after ten times paceInterval more than each takes, and at once where the environment sets
// GOGC: nothing can follow then.
func allocateUntilPaced() string {
	first := readUint("/gc/gogc:percent")
	awaitPacing(10*paceInterval, func() bool {
		garbage = make([]byte, maxBusyHeap/25)
		return readUint("/gc/gogc:percent") != first
	})
	busy, before := readUint("/gc/gogc:percent"), readUint("/gc/cycles/forced:gc-cycles")
	gaveBack := ""
	awaitPacing((restingIntervals+10)*paceInterval, func() bool {
		if readUint("/gc/cycles/forced:gc-cycles") > before {
			gaveBack = " after giving back"
		}
		return gaveBack != ""
	})
	return fmt.Sprintf("%d, %d, %d%s", first, busy, readUint("/gc/gogc:percent"), gaveBack)
}

func readUint(metric string) uint64 {
	sample := []metrics.Sample{{Name: metric}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// awaitPacing calls holds until it returns true, for at most a time.
func awaitPacing(limit time.Duration, holds func() bool) {
	const interval = paceInterval / 50
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for range limit / interval {
		if os.Getenv("GOGC") != "" || holds() {
			return
		}
		<-ticker.C
	}
}

// garbage keeps the compiler from leaving the allocation out.
var garbage []byte
