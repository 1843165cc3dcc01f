package plan_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// confirmationBug is a bug that the model of how a prune begins can have, to prove that it would be found.
type confirmationBug int

const (
	noConfirmationBug confirmationBug = iota
	beginsUnconfirmed
	confirmsUnknownPrunes
	repeatsNonces
	nonceNeverLapses
	keepsFormerNonce
	drawsWhenItAsks
	renewsWithEachReport
)

// nonceLifeSteps is how many steps of the model a nonce lives.
const nonceLifeSteps = 12

// confirmationModel is a hub and a member. Other hubs are elected, plans and reports are brought late or
// not at all, and the agent restarts.
type confirmationModel struct {
	bug confirmationBug
	now int

	plan   *v1alpha1.ClusterPlanSpec
	report *v1alpha1.ReportRoot
	// prunes that are requested, and the step at which each other one ended.
	prunes []v1alpha1.PlannedPrune
	ended  map[types.UID]int
	count  int
	// confirmed: this hub has read the report in the member; known: and all requests.
	confirmed, known bool

	copied  *v1alpha1.ClusterPlanSpec
	begun   map[types.UID]bool
	nonce   string
	asks    bool // the next report has another nonce
	drawnAt int
	process int // how often the agent has started
	drawn   int // nonces of this process

	// reportDelay is how many steps after what it reports the agent writes a report once all settles, as
	// --report-interval does; reportDue is the step of the next one, 0 for none.
	reportDelay, reportDue int
}

func newConfirmationModel(bug confirmationBug) *confirmationModel {
	return &confirmationModel{bug: bug, report: &v1alpha1.ReportRoot{}, confirmed: true, known: true, ended: map[types.UID]int{}, begun: map[types.UID]bool{}}
}

func (m *confirmationModel) planOnHub() {
	v := plan.Input{
		ClusterUID: uid, ReportClusterUID: uid, Current: m.plan, Report: m.report, ReportUnconfirmed: !m.confirmed,
		DesiredPolicy: concurrencyPolicy(3), PolicySource: "its ConfigMap", Prunes: m.prunes, PruneNonce: m.report.PruneNonce,
	}
	if !m.known {
		if m.plan == nil {
			return
		}
		v.Prunes = m.plan.Prunes
		if m.bug != confirmsUnknownPrunes {
			v.PruneNonce = ""
		}
	}
	if m.bug == keepsFormerNonce && m.plan != nil && m.plan.ConfirmedNonce != nil && *m.plan.ConfirmedNonce != "" {
		v.PruneNonce = *m.plan.ConfirmedNonce
	}
	if next, write, _ := plan.Next(v); write {
		m.plan = &next
	}
}

func (m *confirmationModel) hasLapsed() bool {
	return m.nonce == "" || m.bug != nonceNeverLapses && m.now-m.drawnAt >= nonceLifeSteps
}

func (m *confirmationModel) drawNonce() {
	m.drawn++
	m.nonce, m.asks, m.drawnAt = fmt.Sprintf("process-%d/%d", m.process, m.drawn), false, m.now
	if m.bug == repeatsNonces {
		m.nonce = fmt.Sprint(m.drawn)
	}
}

// writeReport writes the root of the report, which draws the nonce that it carries.
func (m *confirmationModel) writeReport() {
	switch {
	case m.asks && m.hasLapsed():
		m.drawNonce()
	case m.bug == renewsWithEachReport:
		m.drawnAt = m.now
	}
	m.report, m.confirmed, m.reportDue = &v1alpha1.ReportRoot{PruneNonce: m.nonce}, true, 0
	if m.copied != nil {
		m.report.Plan = &m.copied.PlanVersion
	}
}

// runAgent begins what the plan confirms, and asks about the rest.
func (m *confirmationModel) runAgent() (violation string) {
	if m.copied == nil {
		return ""
	}
	for _, p := range m.copied.Prunes {
		if m.begun[p.UID] {
			continue
		}
		if echo := m.copied.ConfirmedNonce; m.bug != beginsUnconfirmed && (m.hasLapsed() || echo == nil || *echo != m.nonce) {
			if m.hasLapsed() && m.bug == drawsWhenItAsks {
				m.drawNonce()
				m.enqueueReport()
			} else if m.hasLapsed() && !m.asks {
				m.asks = true
				m.enqueueReport()
			}
			continue
		}
		ended := m.ended[p.UID]
		switch m.begun[p.UID] = true; {
		case ended == 0:
		case ended <= m.drawnAt:
			return "a prune begins that had ended when the agent asked"
		case m.now-ended > nonceLifeSteps:
			return "a prune begins that ended longer ago than a nonce lives"
		}
	}
	return ""
}

// enqueueReport has a report written, with all that comes until then.
func (m *confirmationModel) enqueueReport() {
	if m.reportDue == 0 {
		m.reportDue = m.now + m.reportDelay
	}
}

func (m *confirmationModel) step(n int, choose func(n int) int) (violation string) {
	m.now++
	switch n {
	case 0:
		m.count++
		p := plannedPrune(fmt.Sprintf("%06d", m.count))
		p.UID = types.UID(p.Name)
		m.prunes = append(m.prunes[:len(m.prunes):len(m.prunes)], p)
	case 1:
		if len(m.prunes) > 0 {
			i := choose(len(m.prunes))
			m.ended[m.prunes[i].UID] = m.now
			m.prunes = append(m.prunes[:i:i], m.prunes[i+1:]...)
		}
	case 2:
		m.planOnHub()
	case 3:
		m.copied = m.plan
	case 4:
		m.writeReport()
	case 5:
		return m.runAgent()
	case 6: // another hub is elected
		m.confirmed, m.known = false, false
	case 7:
		m.known = true
	case 8: // the agent restarts
		m.process++
		m.nonce, m.asks, m.drawn, m.reportDue = "", false, 0, 0
	}
	return ""
}

// run lets everything happen, then what is left to itself settles, and returns what is wrong; empty if
// nothing is. choose returns a number below n.
//
// Invariant: however late the agent's reports are, a prune that is requested begins: only from the report
// to the plan that answers it must take less than a nonce lives.
func (m *confirmationModel) run(choose func(n int) int) string {
	m.reportDelay = choose(2 * nonceLifeSteps)
	for range 300 {
		if violation := m.step(choose(9), choose); violation != "" {
			return violation
		}
	}
	m.enqueueReport() // it restarts, or something else has changed
	for range 20 {
		for _, n := range []int{7, 4, 2, 3, 5} {
			if n == 4 && (m.reportDue == 0 || m.now < m.reportDue) {
				continue
			}
			if violation := m.step(n, choose); violation != "" {
				return violation
			}
		}
	}
	for _, p := range m.prunes {
		if !m.begun[p.UID] {
			return "a prune that is requested does not begin"
		}
	}
	if v := *m.plan; len(m.prunes) == 0 && v.ConfirmedNonce != nil {
		return "a plan without prunes confirms a nonce"
	}
	return ""
}

func TestPrunesBeginWhereTheyAreStillRequested(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		require.Empty(t, newConfirmationModel(noConfirmationBug).run(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "step") }))
	})
}

func TestModelOfConfirmationFindsPlantedBugs(t *testing.T) {
	for bug, want := range map[confirmationBug]string{
		beginsUnconfirmed:     "a prune begins that ended longer ago than a nonce lives",
		confirmsUnknownPrunes: "a prune begins that had ended when the agent asked",
		repeatsNonces:         "a prune begins that had ended when the agent asked",
		nonceNeverLapses:      "a prune begins that ended longer ago than a nonce lives",
		keepsFormerNonce:      "a prune that is requested does not begin",
		drawsWhenItAsks:       "a prune that is requested does not begin",
		renewsWithEachReport:  "a prune begins that had ended when the agent asked",
	} {
		found := ""
		for seed := uint64(0); seed < 500 && found != want; seed++ {
			found = newConfirmationModel(bug).run(rand.New(rand.NewPCG(seed, 1)).IntN)
		}
		assert.Equal(t, want, found, "bug %d", bug)
	}
}

func TestPlanConfirmsNonceOfItsPrunes(t *testing.T) {
	const none = "no field"
	for name, tt := range map[string]struct {
		current, asked string
		prunes         []v1alpha1.PlannedPrune
		want           string
		wantWrite      bool
	}{
		"nothing was asked":                       {none, "", []v1alpha1.PlannedPrune{plannedPrune("a")}, "", true}, // a plan of an older hub
		"nothing was asked yet":                   {"", "", []v1alpha1.PlannedPrune{plannedPrune("a")}, "", false},
		"the agent asks":                          {"", "boot/1", []v1alpha1.PlannedPrune{plannedPrune("a")}, "boot/1", true},
		"it was answered":                         {"boot/1", "boot/1", []v1alpha1.PlannedPrune{plannedPrune("a")}, "boot/1", false},
		"it was answered, and asks nothing since": {"boot/1", "", []v1alpha1.PlannedPrune{plannedPrune("a")}, "boot/1", false},
		"it asks again":                           {"boot/1", "boot/2", []v1alpha1.PlannedPrune{plannedPrune("a")}, "boot/2", true},
		"nothing is pruned any more":              {"boot/1", "boot/1", nil, none, true},
	} {
		t.Run(name, func(t *testing.T) {
			current := newPlan(planVersion(1, 5), concurrencyPolicy(3))
			current.Prunes = []v1alpha1.PlannedPrune{plannedPrune("a")}
			if tt.current != none {
				current.ConfirmedNonce = &tt.current
			}
			current.Hash = plan.Hash(current)
			next, write, _ := plan.Next(plan.Input{
				ClusterUID: uid, Current: current, Report: acknowledgingReport(current), ReportClusterUID: uid,
				DesiredPolicy: current.Policy, PolicySource: current.PolicySource, Prunes: tt.prunes, PruneNonce: tt.asked,
			})
			assert.Equal(t, tt.wantWrite, write)
			got := none
			if next.ConfirmedNonce != nil {
				got = *next.ConfirmedNonce
			}
			assert.Equal(t, tt.want, got)
			assert.Equal(t, plan.Hash(&next), next.Hash)
			if tt.wantWrite {
				assert.Equal(t, current.Sequence+1, next.Sequence)
				assert.NotEqual(t, current.Hash, next.Hash)
			}
		})
	}
}
