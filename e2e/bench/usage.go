//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// clockTick is the unit of CPU time in /proc: 1/100 s on all platforms that Go supports.
const clockTick = time.Second / 100

// readCPUTime returns the CPU time of a process from /proc.
func readCPUTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading its CPU time: %w", err)
	}
	// The name in brackets can contain any character. User and system time are the fields 14
	// and 15, counted from 1.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	const user, system = 14 - 3, 15 - 3
	if len(fields) <= system {
		return 0, fmt.Errorf("reading its CPU time: /proc/%d/stat is %q", pid, stat)
	}
	u, err := strconv.ParseInt(fields[user], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading its CPU time: %w", err)
	}
	s, err := strconv.ParseInt(fields[system], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading its CPU time: %w", err)
	}
	return time.Duration(u+s) * clockTick, nil
}

// readPlaneCPUTime returns the CPU time of a control plane's API server and etcd, which are found by
// its directory in their arguments.
func readPlaneCPUTime(plane *controlplane.ControlPlane) (all time.Duration, err error) {
	commandLines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, path := range commandLines {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), plane.Dir()) {
			continue // ended, or another process
		}
		name, _, _ := strings.Cut(string(line), "\x00")
		if base := filepath.Base(name); base != string(binaries.APIServer) && base != string(binaries.Etcd) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return 0, err
		}
		one, err := readCPUTime(pid)
		if err != nil {
			return 0, err
		}
		all += one
	}
	return all, nil
}

// metricsServer is a process that serves metrics.
type metricsServer interface {
	ReadMetrics(ctx context.Context) (string, error)
}

// memoryUse is the memory of a program, in bytes.
type memoryUse struct{ heap, resident float64 }

// perThingSince returns the growth since before, divided by a number of things.
func (m memoryUse) perThingSince(before memoryUse, things int) memoryUse {
	return memoryUse{(m.heap - before.heap) / float64(things), (m.resident - before.resident) / float64(things)}
}

// memorySettles is longer than a program that was busy takes to give memory back.
const memorySettles = 15 * time.Second

// readMemory reads the memory of a program at rest: after a garbage collection, and once it gives nothing
// more back.
func readMemory(ctx context.Context, p metricsServer, pprof string) (m memoryUse, err error) {
	for {
		before := m.resident
		if m, err = readCollectedMemory(ctx, p, pprof); err != nil || before > 0 && m.resident > 0.99*before {
			return m, err
		}
		if err := trigger.Sleep(ctx, memorySettles); err != nil {
			return m, err
		}
	}
}

func readCollectedMemory(ctx context.Context, p metricsServer, pprof string) (m memoryUse, err error) {
	if _, err := readProfile(ctx, pprof, "heap?gc=1"); err != nil {
		return m, fmt.Errorf("having it collect its garbage: %w", err)
	}
	if m.heap, err = readMetric(ctx, p, "go_memstats_heap_alloc_bytes"); err != nil {
		return m, err
	}
	m.resident, err = readMetric(ctx, p, "process_resident_memory_bytes")
	return m, err
}

// readProfile returns what a program answers to a request for a profile.
func readProfile(ctx context.Context, pprof, profile string) ([]byte, error) {
	return readURL(ctx, "http://"+pprof+"/debug/pprof/"+profile)
}

// readURL returns the body of what a program answers, whatever its status.
func readURL(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return io.ReadAll(response.Body)
}

// readMetric reads a metric of a program; the name includes its labels.
func readMetric(ctx context.Context, p metricsServer, name string) (float64, error) {
	text, err := p.ReadMetrics(ctx)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("metric %s does not exist", name)
}

// loadAverage returns the machine's load average over the last minute.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
