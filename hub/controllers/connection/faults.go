package connection

import "sync"

// CredentialProblem is why a member has no credential that anybody could reach it with.
type CredentialProblem struct {
	// Reason is one of condition Reachable's; Message says what to do.
	Reason, Message string
}

// CredentialProblems are what keeps members from having a credential, as the elected replica has
// found: it alone makes them, and who is to carry can only wait.
type CredentialProblems struct {
	mu       sync.Mutex
	byMember map[string]CredentialProblem
	onChange []func(member string)
}

// ForMember a member; false for none.
func (f *CredentialProblems) ForMember(member string) (CredentialProblem, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fault, is := f.byMember[member]
	return fault, is
}

// OnChange has something done, without blocking, when the Fault of a member changes.
// Call it before the controllers start.
func (f *CredentialProblems) OnChange(do func(member string)) { f.onChange = append(f.onChange, do) }

func (f *CredentialProblems) setProblem(member string, fault *CredentialProblem) {
	f.mu.Lock()
	before, was := f.byMember[member]
	if f.byMember == nil {
		f.byMember = map[string]CredentialProblem{}
	}
	if fault == nil {
		delete(f.byMember, member)
	} else {
		f.byMember[member] = *fault
	}
	same := fault == nil && !was || fault != nil && was && before == *fault
	f.mu.Unlock()
	if same {
		return
	}
	for _, do := range f.onChange {
		do(member)
	}
}
