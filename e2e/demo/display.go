//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// display shows what `kubectl get memberclusters`, `kubectl get otvm` and `kubectl get fdi` show.
// On a terminal it redraws the tables; elsewhere it prints a line for each change.
type display struct {
	terminal bool

	mu    sync.Mutex // progress is reported concurrently
	drawn int        // lines of the table on the terminal
	notes []string
	last  map[string]string
	now   time.Duration
}

func newDisplay() *display {
	return &display{terminal: term.IsTerminal(int(os.Stdout.Fd())), last: map[string]string{}}
}

// Write implements io.Writer: each write is a note.
func (s *display) Write(p []byte) (int, error) {
	s.printNote("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

func (s *display) printNote(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note := fmt.Sprintf("%6.1fs  %s", s.now.Seconds(), fmt.Sprintf(format, args...))
	if !s.terminal {
		fmt.Println(note)
		return
	}
	s.notes = append(s.notes, note)
}

const memberLayout = "%-8s %-9s %-8s %-6s %-6s %-6s %-6s %-6s %-22s %s"

var memberHeader = fmt.Sprintf(memberLayout, "MEMBER", "REACHABLE", "HEALTHY", "BUDGET", "SLOTS", "QUEUED", "READY", "FAILED", "POLICY FROM", "MESSAGE")

// memberRow formats a MemberCluster. Unknown values are empty.
func memberRow(m *v1alpha1.MemberCluster) string {
	st := m.Status
	source := ""
	if st.Policy != nil {
		source = st.Policy.Source
	}
	queued, ready, failed := "", "", ""
	if st.Images != nil {
		queued, ready, failed = fmt.Sprint(st.Images.Queued), fmt.Sprint(st.Images.Ready), fmt.Sprint(st.Images.Failed)
	}
	message := ""
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); c != nil && c.Status != metav1.ConditionTrue {
		message = c.Message
	}
	return strings.TrimRight(fmt.Sprintf(memberLayout, m.Name, conditionState(m, v1alpha1.ConditionReachable), conditionState(m, v1alpha1.ConditionAgentHealthy),
		formatCount(st.Budget), formatCount(st.SlotsUsed), queued, ready, failed, source, message), " ")
}

func conditionState(m *v1alpha1.MemberCluster, condition string) string {
	if c := meta.FindStatusCondition(m.Status.Conditions, condition); c != nil {
		return string(c.Status)
	}
	return ""
}

func formatCount(n *int32) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

const machineLayout = "%-8s %-13s %-16s %-12s %-10s %s"

var machineHeader = fmt.Sprintf(machineLayout, "MACHINE", "PHASE", "REASON", "IMAGE", "PROGRESS", "MESSAGE")

// machineRow formats a VirtualMachine.
func machineRow(vm *v1alpha1.VirtualMachine) string {
	progress := ""
	if img := vm.Status.Image; img != nil {
		progress = img.Progress
	}
	return strings.TrimRight(fmt.Sprintf(machineLayout, vm.Name, vm.Status.Phase, vm.Status.Reason,
		vm.Spec.VMDiskImageRef.Name, progress, vm.Status.Message), " ")
}

const rolloutLayout = "%-8s %-8s %-12s %-16s %-7s %-9s %-10s %-12s %s"

var rolloutHeader = fmt.Sprintf(rolloutLayout, "IMAGE", "VERSION", "PHASE", "REASON", "WAVE", "CLUSTERS", "SUCCEEDED", "PROGRESSING", "DEFERRED")

// rolloutRow formats a FleetDiskImage; empty for none.
func rolloutRow(img *v1alpha1.FleetDiskImage) string {
	if img.Name == "" {
		return ""
	}
	st := img.Status
	return strings.TrimRight(fmt.Sprintf(rolloutLayout, img.Name, img.Spec.Version, st.Phase, st.Reason, st.CurrentWave,
		fmt.Sprint(st.Clusters.Total), fmt.Sprint(st.Clusters.Succeeded), fmt.Sprint(st.Clusters.Progressing), fmt.Sprint(st.Clusters.Deferred)), " ")
}

func (s *display) update(now time.Duration, members []v1alpha1.MemberCluster, machines []v1alpha1.VirtualMachine, img *v1alpha1.FleetDiskImage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.now == 0
	s.now = now
	if s.terminal {
		s.redraw(members, machines, img)
		return
	}
	if first {
		fmt.Printf("         %s\n         %s\n         %s\n", memberHeader, machineHeader, rolloutHeader)
	}
	for i := range members {
		s.printChangedRow(members[i].Name, memberRow(&members[i]))
	}
	for i := range machines {
		s.printChangedRow(machines[i].Name, machineRow(&machines[i]))
	}
	if row := rolloutRow(img); row != "" {
		s.printChangedRow(img.Name, row)
	}
}

// printChangedRow prints a row unless it is the same as before.
func (s *display) printChangedRow(name, text string) {
	if s.last[name] != text {
		s.last[name] = text
		fmt.Printf("%6.1fs  %s\n", s.now.Seconds(), text)
	}
}

func (s *display) redraw(members []v1alpha1.MemberCluster, machines []v1alpha1.VirtualMachine, img *v1alpha1.FleetDiskImage) {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width < 40 {
		width = 100
	}
	lines := []string{fmt.Sprintf("%6.1fs", s.now.Seconds()), "", memberHeader}
	for i := range members {
		lines = append(lines, memberRow(&members[i]))
	}
	// One row for each VM, also for deleted ones: a redrawn table must not shrink.
	lines = append(lines, "", machineHeader)
	for i := range workspaceVMs {
		text := ""
		if i < len(machines) {
			text = machineRow(&machines[i])
		}
		lines = append(lines, text)
	}
	lines = append(lines, "", rolloutHeader, rolloutRow(img), "")
	lines = append(lines, s.notes...)
	if s.drawn > 0 {
		fmt.Printf("\x1b[%dA", s.drawn)
	}
	for _, line := range lines {
		if r := []rune(line); len(r) > width-1 {
			line = string(r[:width-2]) + "…"
		}
		fmt.Printf("\x1b[2K%s\n", line)
	}
	s.drawn = len(lines)
}
