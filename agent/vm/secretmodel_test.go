package vm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/modelcheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// The model of the cloud-init Secret of a machine: two agents that apply it and trust for a while
// in what they have applied, and people who change and delete it unseen. Decisions are those of
// vm.Decide.
type secretState struct {
	// stored and wanted are contents: 0 for no Secret, 3 for what a person wrote.
	stored, wanted uint8
	// seen: an agent has visited the machine since the Secret was changed behind its back.
	seen   bool
	faults uint8
	agents [2]secretAgent
}

type secretAgent struct {
	// remembered content, and whether it was applied less than the delay ago.
	remembered uint8
	recent     bool
	// triggered: an event or a requeue that is due. waits: a requeue that is not due yet.
	triggered, waits bool
	// applying is the content of a request under way; 0 for none.
	applying uint8
}

type secretBug uint8

const (
	trustsForEver secretBug = iota + 1
	trustsWithoutRequeue
)

type secretModel struct {
	decisions  map[[3]uint8]secretDecision
	plantedBug secretBug
}

type secretDecision struct{ applies, requeues bool }

func (m *secretModel) InitialState() secretState {
	s := secretState{wanted: 1, faults: 4}
	for i := range s.agents {
		s.agents[i].triggered = true
	}
	return s
}

func (m *secretModel) Canonical(s *secretState) secretState { return *s }

func (m *secretModel) Format(s *secretState) string { return fmt.Sprintf("%+v", *s) }

func (m *secretModel) IsAtRest(s *secretState) bool {
	return s.agents[0].isIdle() && s.agents[1].isIdle()
}

func (a *secretAgent) isIdle() bool { return !a.triggered && !a.waits && a.applying == 0 }

func (m *secretModel) ForEachStep(s *secretState, visit func(modelcheck.Step[secretState])) {
	emit := func(fault bool, what string, change func(*secretState)) {
		next := *s
		change(&next)
		step := modelcheck.Step[secretState]{Next: next, Fault: fault, Describe: func() string { return what }}
		if m.IsAtRest(&next) && next.seen && next.stored != next.wanted {
			step.Violation = "the Secret stays as somebody left it"
		}
		visit(step)
	}
	for i := range s.agents {
		agent := &s.agents[i]
		if agent.triggered && agent.applying == 0 {
			emit(false, fmt.Sprint("agent ", i, " visits the machine"), func(s *secretState) {
				a := &s.agents[i]
				d := m.decide(a, s.wanted)
				a.triggered, s.seen = false, true
				if d.applies {
					a.applying, a.waits, a.remembered = s.wanted, false, 0
				} else if d.requeues && m.plantedBug != trustsWithoutRequeue {
					a.waits = true
				}
			})
		}
		if agent.applying != 0 {
			emit(false, fmt.Sprint("agent ", i, " applies the Secret"), func(s *secretState) {
				a := &s.agents[i]
				s.stored = a.applying
				s.seen = s.seen && s.stored == s.wanted // a paused agent applies what is no longer wanted
				a.remembered, a.recent, a.applying = a.applying, true, 0
			})
		}
		if s.faults > 0 {
			emit(true, fmt.Sprint("agent ", i, " starts anew"), func(s *secretState) {
				s.agents[i] = secretAgent{triggered: true}
				s.faults--
			})
		}
	}
	emit(false, "the delay passes", func(s *secretState) {
		for i := range s.agents {
			a := &s.agents[i]
			a.recent = a.recent && m.plantedBug == trustsForEver
			a.triggered, a.waits = a.triggered || a.waits, false
		}
	})
	if s.faults == 0 {
		return
	}
	for stored, what := range map[uint8]string{0: "deletes", 3: "changes"} {
		emit(true, "a person "+what+" the Secret", func(s *secretState) { s.stored, s.seen, s.faults = stored, false, s.faults-1 })
	}
	emit(true, "something of the machine changes", func(s *secretState) { s.triggerAll() })
	emit(true, "a person changes the spec", func(s *secretState) {
		s.wanted, s.seen = 3-s.wanted, false
		s.triggerAll()
	})
}

func (s *secretState) triggerAll() {
	s.faults--
	for i := range s.agents {
		s.agents[i].triggered = true
	}
}

// decide calls vm.Decide, once per input.
func (m *secretModel) decide(a *secretAgent, wanted uint8) secretDecision {
	key := [3]uint8{a.remembered, wanted, 0}
	if a.recent {
		key[2] = 1
	}
	d, known := m.decisions[key]
	if !known {
		d = decideSecret(key)
		m.decisions[key] = d
	}
	return d
}

// runningMachine returns a machine that runs, with cloud-init data that depend on content.
func runningMachine(t require.TestingT, content uint8) *world {
	b := apitest.VirtualMachine("ns", "vm").WithResources("1", "1Gi", "").WithUsers(v1alpha1.User{Name: fmt.Sprint("user-", content)})
	w := newWorld(t, b).withRootDisk(goldenImage(1), cdiv1.Succeeded).withRunningVM()
	w.reconcile()
	return w
}

func decideSecret(key [3]uint8) secretDecision {
	w := runningMachine(panics{}, key[1])
	if key[0] != 0 {
		w.AppliedSecret = vm.AppliedSecret{Digest: vm.DigestSecret(runningMachine(panics{}, key[0]).cloudInitSecret), At: w.Now.Add(-10 * time.Second)}
	}
	if key[2] == 0 {
		w.AppliedSecret.At = w.Now.Add(-time.Hour)
	}
	d := w.decide()
	return secretDecision{d.ApplySecret != nil, d.RequeueAfter > 0 && d.RequeueAfter <= 30*time.Second}
}

type panics struct{}

func (panics) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (panics) FailNow()                          {}

func TestTrustInAppliedSecretIsSafe(t *testing.T) {
	explore := func(bug secretBug) modelcheck.Result {
		return modelcheck.Explore(t, &secretModel{decisions: map[[3]uint8]secretDecision{}, plantedBug: bug}, modelcheck.Options[secretState]{})
	}
	got := explore(0)
	assert.Empty(t, got.Violation, got.FormatTrace())
	for bug, want := range map[secretBug]string{trustsForEver: modelcheck.Deadlock, trustsWithoutRequeue: "the Secret stays as somebody left it"} {
		got := explore(bug)
		assert.Equal(t, want, got.Violation)
		t.Logf("found in %d steps%s", len(got.Trace), got.FormatTrace())
	}
}

// Only a Secret that this process has just applied, for a machine that is there, is not applied.
func TestAppliedSecretIsNotAppliedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		change      func(*world)
		wantApplied bool
	}{
		"just applied":           {func(*world) {}, false},
		"long ago":               {func(w *world) { w.AppliedSecret.At = w.Now.Add(-30 * time.Second) }, true},
		"by a clock set back":    {func(w *world) { w.AppliedSecret.At = w.Now.Add(time.Second) }, true},
		"of another spec":        {func(w *world) { w.VM.Spec.Users[0].Name = "other" }, true},
		"of a former machine":    {func(w *world) { w.AppliedSecret.Digest = "other" }, true},
		"by nobody":              {func(w *world) { w.AppliedSecret = vm.AppliedSecret{} }, true},
		"the machine is created": {func(w *world) { w.KubeVirtVM = nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := runningMachine(t, 1)
			w.AppliedSecret = vm.AppliedSecret{Digest: vm.DigestSecret(w.cloudInitSecret), At: w.Now.Add(-10 * time.Second)}
			tt.change(w)
			d := w.decide()
			assert.Equal(t, tt.wantApplied, d.ApplySecret != nil)
			if !tt.wantApplied {
				assert.Equal(t, 20*time.Second, d.RequeueAfter)
			}
		})
	}
}
