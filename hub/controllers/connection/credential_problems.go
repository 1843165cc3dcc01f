package connection

import "sync"

// CredentialProblem is why the hub has no credential for a member.
type CredentialProblem struct {
	// Reason is one of those of condition Reachable; Message says what to do.
	Reason, Message string
}

// CredentialProblems holds the problems that the elected replica found. Only it creates
// credentials; the replica that syncs can only wait.
type CredentialProblems struct {
	mu       sync.Mutex
	byMember map[string]CredentialProblem
	onChange []func(member string)
}

// ForMember returns the problem of a member, if any.
func (f *CredentialProblems) ForMember(member string) (CredentialProblem, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	problem, ok := f.byMember[member]
	return problem, ok
}

// OnChange calls do when the problem of a member changes. do must not block. Call it
// before the controllers start.
func (f *CredentialProblems) OnChange(do func(member string)) { f.onChange = append(f.onChange, do) }

func (f *CredentialProblems) setProblem(member string, problem *CredentialProblem) {
	f.mu.Lock()
	before, existed := f.byMember[member]
	if f.byMember == nil {
		f.byMember = map[string]CredentialProblem{}
	}
	if problem == nil {
		delete(f.byMember, member)
	} else {
		f.byMember[member] = *problem
	}
	unchanged := problem == nil && !existed || problem != nil && existed && before == *problem
	f.mu.Unlock()
	if unchanged {
		return
	}
	for _, do := range f.onChange {
		do(member)
	}
}
