package vm

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/vm"
)

// memory is what this process remembers of its own writes. Invariant: nothing that is decided by it
// lasts: another process, or the same one a little later, decides without it.
type memory struct {
	mu       sync.Mutex
	machines map[types.NamespacedName]machineMemory
	// networks has when a NetworkAttachmentDefinition was found last.
	networks map[types.NamespacedName]time.Time
}

type machineMemory struct {
	secret vm.AppliedSecret
	// statusStoredAt is when the status was stored last, messageStoredAt when that changed the message
	// of Ready or SpecAdjusted.
	statusStoredAt, messageStoredAt time.Time
	// dataVolumes has when the DataVolume of each disk was first seen, by its name.
	dataVolumes map[string]seenDataVolume
}

type seenDataVolume struct {
	uid types.UID
	at  time.Time
}

func (m *memory) get(machine types.NamespacedName) machineMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.machines[machine]
}

func (m *memory) change(machine types.NamespacedName, change func(*machineMemory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.machines == nil {
		m.machines = map[types.NamespacedName]machineMemory{}
	}
	remembered := m.machines[machine]
	change(&remembered)
	m.machines[machine] = remembered
}

func (m *memory) setSecret(machine types.NamespacedName, secret vm.AppliedSecret) {
	m.change(machine, func(remembered *machineMemory) { remembered.secret = secret })
}

func (m *memory) setStatusStored(machine types.NamespacedName, at time.Time, messageChanged bool) {
	m.change(machine, func(remembered *machineMemory) {
		remembered.statusStoredAt = at
		if messageChanged {
			remembered.messageStoredAt = at
		}
	})
}

// seeDataVolume returns for how long a DataVolume of a machine has been known.
func (m *memory) seeDataVolume(machine types.NamespacedName, name string, uid types.UID, now time.Time) (seenFor time.Duration) {
	m.change(machine, func(remembered *machineMemory) {
		if remembered.dataVolumes == nil {
			remembered.dataVolumes = map[string]seenDataVolume{}
		}
		if remembered.dataVolumes[name].uid != uid {
			remembered.dataVolumes[name] = seenDataVolume{uid, now}
		}
		seenFor = now.Sub(remembered.dataVolumes[name].at)
	})
	return seenFor
}

func (m *memory) forget(machine types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.machines, machine)
}

// networkLifetime is how long a network that was found is not looked up again, for all machines: a
// visit of each that is not ready asks for each of its networks.
const networkLifetime = 30 * time.Second

func (m *memory) hasNetwork(name types.NamespacedName, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, known := m.networks[name]
	return known && now.Sub(found) < networkLifetime
}

// addNetwork forgets the networks that were found long ago.
func (m *memory) addNetwork(name types.NamespacedName, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, found := range m.networks {
		if now.Sub(found) >= networkLifetime {
			delete(m.networks, other)
		}
	}
	if m.networks == nil {
		m.networks = map[types.NamespacedName]time.Time{}
	}
	m.networks[name] = now
}
