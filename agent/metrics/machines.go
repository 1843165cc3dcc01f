package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Machines counts VirtualMachines by phase and reason. NewMachines creates it.
type Machines struct {
	mu     sync.Mutex
	states map[types.NamespacedName]machineState
}

type machineState struct {
	phase  v1alpha1.MachinePhase
	reason v1alpha1.Reason
}

var machinesDesc = prometheus.NewDesc(namespace+"_virtual_machines", "VirtualMachines by phase and reason.", []string{"phase", "reason"}, nil)

// NewMachines registers the metric.
func NewMachines(r prometheus.Registerer) *Machines {
	m := &Machines{states: map[types.NamespacedName]machineState{}}
	r.MustRegister(m)
	return m
}

// Set records the state of a machine.
func (m *Machines) Set(name types.NamespacedName, phase v1alpha1.MachinePhase, reason v1alpha1.Reason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states[name] = machineState{phase, reason}
}

// Delete removes a machine.
func (m *Machines) Delete(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.states, name)
}

// Describe implements prometheus.Collector.
func (m *Machines) Describe(ch chan<- *prometheus.Desc) { ch <- machinesDesc }

// Collect implements prometheus.Collector. It counts the machines at each scrape.
func (m *Machines) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[machineState]int{}
	for _, phase := range []v1alpha1.MachinePhase{v1alpha1.MachineProvisioning, v1alpha1.MachineReady, v1alpha1.MachineFailed} {
		counts[machineState{phase, ""}] = 0
	}
	for _, state := range m.states {
		counts[state]++
	}
	for state, n := range counts {
		ch <- prometheus.MustNewConstMetric(machinesDesc, prometheus.GaugeValue, float64(n), string(state.phase), string(state.reason))
	}
}
