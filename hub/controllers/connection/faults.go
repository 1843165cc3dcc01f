package connection

import "sync"

// Fault is why a member has no credential that anybody could reach it with.
type Fault struct {
	// Reason is one of condition Reachable's; Message says what to do.
	Reason, Message string
}

// Faults are what keeps members from having a credential, as the elected replica has
// found: it alone makes them, and who is to carry can only wait.
type Faults struct {
	mu      sync.Mutex
	of      map[string]Fault
	changed []func(member string)
}

// Of a member; false for none.
func (f *Faults) Of(member string) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fault, is := f.of[member]
	return fault, is
}

// OnChange has something done, without blocking, when the Fault of a member changes.
// Call it before the controllers start.
func (f *Faults) OnChange(do func(member string)) { f.changed = append(f.changed, do) }

func (f *Faults) set(member string, fault *Fault) {
	f.mu.Lock()
	before, was := f.of[member]
	if f.of == nil {
		f.of = map[string]Fault{}
	}
	if fault == nil {
		delete(f.of, member)
	} else {
		f.of[member] = *fault
	}
	same := fault == nil && !was || fault != nil && was && before == *fault
	f.mu.Unlock()
	if same {
		return
	}
	for _, do := range f.changed {
		do(member)
	}
}
