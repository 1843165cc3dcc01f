//go:build linux

package process

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// ResidentMemory returns the process's resident memory in bytes.
func (p *Process) ResidentMemory() (int64, error) { return p.readMemory("VmRSS") }

// PeakMemory returns the peak of its resident memory since it started, or since the last
// ResetPeakMemory, in bytes.
func (p *Process) PeakMemory() (int64, error) { return p.readMemory("VmHWM") }

// ResetPeakMemory makes the kernel forget the peak.
func (p *Process) ResetPeakMemory() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.Pid()), []byte("5"), 0)
}

// smallMachineMiB is the memory of a machine on which a program has its HeapMiB.
const smallMachineMiB = 12 << 10

// collectorEnv has a program collect garbage when its heap is five times what is in use, or at
// its limit. By Go's defaults API servers spent a quarter of their CPU time on collection, and
// with KubeVirt's CRDs near a limit of 512 MiB two thirds.
func (o Options) collectorEnv() []string {
	if o.HeapMiB == 0 {
		return nil
	}
	limit := max(o.HeapMiB, o.HeapMiB*(MachineMemory()>>20)/smallMachineMiB)
	return []string{"GOGC=400", fmt.Sprintf("GOMEMLIMIT=%dMiB", limit)}
}

// MachineMemory returns the memory of the machine, or of the container, in bytes; 0 for unknown.
func MachineMemory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kilobytes int64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kilobytes); err != nil {
		return 0
	}
	machine := kilobytes << 10
	text, err = os.ReadFile("/sys/fs/cgroup/memory.max")
	if limit, notLimited := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && notLimited == nil {
		return min(machine, limit)
	}
	return machine
}

func (p *Process) readMemory(field string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("process %d has no %s: it has ended", p.Pid(), field)
	}
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	return kilobytes << 10, err
}
