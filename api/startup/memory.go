package startup

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryLimitFiles have the limit of the container, by cgroups v2 and v1.
var memoryLimitFiles = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// limitMemory has Go collect garbage more often as the memory nears 90 % of the container's limit. By
// default it lets the heap double before, and a burst of large objects ends in an OOM kill. An
// environment variable GOMEMLIMIT wins.
func limitMemory(files []string) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && limit > 0 && limit < math.MaxInt64/2 {
			debug.SetMemoryLimit(limit / 10 * 9)
		}
		return
	}
}
