//go:build linux

package process

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
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
