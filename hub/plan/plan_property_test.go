package plan_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// hubState is the content of a backup of the hub.
type hubState struct {
	requestedPolicy int // the policy of the ConfigMap; each change by a person has a higher number
	invalid         bool
	images          int
	plan            *v1alpha1.ClusterPlanSpec
	report          *v1alpha1.ReportRoot
	// since is when the member took up the plan that the report answers; what it says of
	// images may be as old.
	since int
	// inquiries and prunes that have started and not ended.
	inquiries []types.UID
	prunes    []v1alpha1.PlannedPrune
}

// ledger is the content of a backup of the member.
type ledger struct {
	plan  *v1alpha1.ClusterPlanSpec
	since int
}

// planModel is a hub and a member, which can both be restored from backups.
type planModel struct {
	t                 *rapid.T
	hub               hubState
	hubBackup         hubState
	unconfirmed       bool
	cutOff            bool // for so long that the hub takes the member for away
	requestedPolicies int  // in total
	step              int  // the current step
	// begun has the step at which each inquiry started.
	begun map[types.UID]int
	// Copies that relays have read and not written yet, and those of relays that were
	// paused when the hub was restored.
	plansInFlight, plansOfPausedRelay []*v1alpha1.ClusterPlanSpec
	// nonces is how many the agent has drawn.
	nonces int
	// refused is the member's copy of the plan if its agent refuses the policy in it.
	refused *v1alpha1.PlanVersion
	// plans made since the hub was restored
	made         map[*v1alpha1.ClusterPlanSpec]bool
	member       ledger
	memberBackup ledger
}

func (w *planModel) planInput() plan.Input {
	v := plan.Input{
		ClusterUID: uid, Current: w.hub.plan, Report: w.hub.report, ReportClusterUID: uid, ReportUnconfirmed: w.unconfirmed, CutOff: w.cutOff,
		PolicySource: fmt.Sprint("asked ", w.hub.requestedPolicy), Images: []v1alpha1.PlannedImage{plannedImage("a", fmt.Sprintf("%dGi", w.hub.images+1))},
		Inquiries: w.hub.inquiries, Prunes: w.hub.prunes,
	}
	if w.hub.report != nil {
		v.PruneNonce = w.hub.report.PruneNonce
	}
	if w.refused != nil && w.hub.plan != nil && w.refused.Compare(w.hub.plan.PlanVersion) > 0 {
		v.NewerMemberPlan = *w.refused // the relay reads before it writes
	}
	if !w.hub.invalid && w.hub.requestedPolicy > 0 {
		v.DesiredPolicy = data{"concurrency": fmt.Sprint(w.hub.requestedPolicy)}
	}
	return v
}

// nextPlan checks the invariants of every decision.
func (w *planModel) nextPlan() (v1alpha1.ClusterPlanSpec, bool) {
	v := w.planInput()
	next, write, isHeld := plan.Next(v)
	w.requireNoEndedPrune(&next, v)
	if !write {
		if v.Current != nil {
			require.Equal(w.t, *v.Current, next)
		}
		return next, false
	}
	assert.Equal(w.t, next.HeldPolicy != "", isHeld)
	assert.Equal(w.t, plan.Hash(&next), next.Hash)
	for name, old := range map[string]*v1alpha1.PlanVersion{"current": versionOf(v.Current), "reported": v.Report.Plan} {
		if old == nil {
			continue
		}
		order := next.PlanVersion.Compare(*old)
		if next.Hash == old.Hash {
			require.GreaterOrEqual(w.t, order, 0, "%s: %v after %v", name, next.PlanVersion, *old)
		} else {
			require.Positive(w.t, order, "%s: %v after %v", name, next.PlanVersion, *old)
		}
	}
	if c := meta.FindStatusCondition(v.Report.Conditions, v1alpha1.ConditionPlanAccepted); c != nil {
		require.Positive(w.t, next.PlanVersion.Compare(v.NewerMemberPlan), "%v after the copy %v", next.PlanVersion, v.NewerMemberPlan)
	}
	for _, asked := range next.Inquiries {
		require.Equal(w.t, next.Epoch, asked.Epoch, "%v", next)
		require.LessOrEqual(w.t, asked.Sequence, next.Sequence, "%v", next)
	}
	v.Current = &next
	_, again, _ := plan.Next(v)
	require.False(w.t, again, "a second look writes again")
	return next, true
}

// requireNoEndedPrune: once no prune of a plan is requested, the hub's plan names none, whether or not
// the member has confirmed anything. That of a member that is cut off names none that has ended, whatever
// else runs: the member is synced before the hub plans by what it says. A newer plan of the member is not
// written over.
func (w *planModel) requireNoEndedPrune(next *v1alpha1.ClusterPlanSpec, v plan.Input) {
	if len(next.Prunes) == 0 {
		return
	}
	if has := v.Report.Plan; w.unconfirmed && has != nil {
		order := has.Compare(v.Current.PlanVersion)
		if order > 0 || order == 0 && has.Hash != v.Current.Hash {
			return
		}
	}
	if w.unconfirmed && v.NewerMemberPlan != (v1alpha1.PlanVersion{}) {
		return
	}
	isRequested := func(p v1alpha1.PlannedPrune) bool { return slices.Contains(w.hub.prunes, p) }
	require.True(w.t, slices.ContainsFunc(next.Prunes, isRequested), "%v of %v", next.Prunes, w.hub.prunes)
	if w.cutOff {
		require.False(w.t, slices.ContainsFunc(next.Prunes, func(p v1alpha1.PlannedPrune) bool { return !isRequested(p) }), "%v of %v", next.Prunes, w.hub.prunes)
	}
}

// policyRefused is the condition of a member that cannot use a plan's policy.
var policyRefused = metav1.Condition{Type: v1alpha1.ConditionPlanAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPlanPolicyInvalid}

func versionOf(p *v1alpha1.ClusterPlanSpec) *v1alpha1.PlanVersion {
	if p == nil {
		return nil
	}
	return &p.PlanVersion
}

func (w *planModel) planOnHub() {
	if next, write := w.nextPlan(); write {
		w.hub.plan = &next
		w.made[&next] = true
	}
}

// deliverPlan models the agent: it refuses a plan that is older than the acknowledged
// one, or a different one of the same version. A relay does not write over a newer copy.
func (w *planModel) deliverPlan(p *v1alpha1.ClusterPlanSpec) {
	if p == nil || w.refused != nil && p.Compare(*w.refused) < 0 {
		return
	}
	w.refused = nil
	if has := w.member.plan; has != nil {
		order := p.PlanVersion.Compare(has.PlanVersion)
		if order < 0 || order == 0 && p.Hash != has.Hash {
			return
		}
		require.GreaterOrEqual(w.t, requestedPolicyOf(p), requestedPolicyOf(has), "an older policy wins: %v after %v", p, has)
	}
	if w.member.plan == nil || w.member.plan.PlanVersion != p.PlanVersion {
		w.member.since = w.step
	}
	w.member.plan = p
}

func (w *planModel) startInquiry() types.UID {
	uid := types.UID(fmt.Sprintf("inquiry-%06d", len(w.begun)))
	w.begun[uid] = w.step
	w.hub.inquiries = append(slices.Clone(w.hub.inquiries), uid)
	return uid
}

// isAnswered reports whether the hub's copy of the report answers an inquiry.
func (w *planModel) isAnswered(asked v1alpha1.PlanInquiry) bool {
	answers := w.hub.report.Plan
	if answers == nil || answers.Compare(v1alpha1.PlanVersion{Epoch: asked.Epoch, Sequence: asked.Sequence}) < 0 {
		return false
	}
	order := answers.Compare(w.hub.plan.PlanVersion)
	return order < 0 || order == 0 && answers.Hash == w.hub.plan.Hash
}

// requireNoPrematureAnswer: an answer must rest on observations after the question.
func (w *planModel) requireNoPrematureAnswer() {
	if w.hub.plan == nil || w.hub.report == nil {
		return
	}
	for _, asked := range w.hub.plan.Inquiries {
		if w.isAnswered(asked) {
			require.Greater(w.t, w.hub.since, w.begun[asked.UID], "%v answers %v of %v", w.hub.report.Plan, asked, w.hub.plan)
		}
	}
}

// requestedPolicyOf returns the number of the policy in a plan.
func requestedPolicyOf(p *v1alpha1.ClusterPlanSpec) int {
	n, _ := strconv.Atoi(p.Policy["concurrency"])
	return n
}

func (w *planModel) syncReport() {
	root := &v1alpha1.ReportRoot{}
	if w.member.plan != nil {
		root = acknowledgingReport(w.member.plan)
	}
	if w.refused != nil {
		root.Conditions = []metav1.Condition{policyRefused}
	}
	if w.nonces > 0 {
		root.PruneNonce = fmt.Sprint("boot/", w.nonces)
	}
	w.hub.report, w.hub.since, w.unconfirmed, w.cutOff = root, w.member.since, false, false
}

func TestNextPlanSurvivesRestores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &planModel{t: t, unconfirmed: true, made: map[*v1alpha1.ClusterPlanSpec]bool{}, begun: map[types.UID]int{}}
		ask := func() {
			w.requestedPolicies++
			w.hub.requestedPolicy = w.requestedPolicies
		}
		t.Repeat(map[string]func(*rapid.T){
			"a person changes the ConfigMap": func(*rapid.T) { ask() },
			"the ConfigMap breaks or heals":  func(*rapid.T) { w.hub.invalid = !w.hub.invalid },
			"other images":                   func(*rapid.T) { w.hub.images++ },
			"an inquiry begins":              func(*rapid.T) { w.startInquiry() },
			"an inquiry ends": func(*rapid.T) {
				if len(w.hub.inquiries) > 0 {
					w.hub.inquiries = w.hub.inquiries[1:]
				}
			},
			"prunes begin": func(t *rapid.T) {
				for n := range rapid.IntRange(1, 3).Draw(t, "prunes") {
					w.hub.prunes = append(slices.Clone(w.hub.prunes), plannedPrune(fmt.Sprintf("%06d-%d", w.step, n)))
				}
			},
			"the agent asks about prunes": func(*rapid.T) { w.nonces++ },
			"a prune ends": func(*rapid.T) {
				if len(w.hub.prunes) > 0 {
					w.hub.prunes = w.hub.prunes[1:]
				}
			},
			"prunes end one after another": func(*rapid.T) {
				for len(w.hub.prunes) > 0 {
					w.hub.prunes = w.hub.prunes[1:]
					w.planOnHub()
				}
			},
			"another hub is elected":               func(*rapid.T) { w.unconfirmed, w.cutOff = true, false },
			"it does not read the member for long": func(*rapid.T) { w.cutOff = w.unconfirmed },
			"the hub is restored over a longer life of the member": func(*rapid.T) {
				w.syncReport()
				w.planOnHub()
				w.hubBackup = w.hub
				ask()
				w.planOnHub()
				w.deliverPlan(w.hub.plan)
				w.hub, w.unconfirmed, w.cutOff, w.plansInFlight, w.plansOfPausedRelay = w.hubBackup, true, true, nil, nil
				clear(w.made)
			},
			"plan":   func(*rapid.T) { w.planOnHub() },
			"report": func(*rapid.T) { w.syncReport() },
			"a relay reads the plan": func(*rapid.T) {
				if w.hub.plan != nil {
					w.plansInFlight = append(w.plansInFlight, w.hub.plan)
				}
			},
			"a relay writes the plan": func(t *rapid.T) {
				if len(w.plansInFlight) > 0 {
					w.deliverPlan(rapid.SampledFrom(w.plansInFlight).Draw(t, "copy"))
				}
			},
			"all goes well": func(*rapid.T) {
				w.syncReport()
				w.planOnHub()
				w.deliverPlan(w.hub.plan)
			},
			"the member is cut off": func(t *rapid.T) {
				for range rapid.IntRange(1, 3).Draw(t, "plans") {
					w.hub.images++
					w.planOnHub()
				}
			},
			"a paused relay wakes": func(t *rapid.T) {
				if len(w.plansOfPausedRelay) > 0 && w.made[w.member.plan] {
					w.deliverPlan(rapid.SampledFrom(w.plansOfPausedRelay).Draw(t, "copy"))
				}
			},
			"a copy comes to be that the agent refuses": func(t *rapid.T) {
				v := v1alpha1.PlanVersion{Epoch: rapid.Int64Range(1, 9).Draw(t, "epoch"), Sequence: rapid.Int64Range(1, 9).Draw(t, "sequence")}
				if has := w.member.plan; w.refused == nil && (has == nil || v.Compare(has.PlanVersion) > 0) {
					w.refused = &v
				}
			},
			"backup of the hub":    func(*rapid.T) { w.hubBackup = w.hub },
			"backup of the member": func(*rapid.T) { w.memberBackup = w.member },
			"restore of the hub": func(*rapid.T) {
				// What a paused relay still holds shows only in what the member
				// acknowledged of that time. An epoch that only the hub has seen, or that
				// both have forgotten, is lost.
				w.plansOfPausedRelay = nil
				if has, back := w.member.plan, w.hubBackup.plan; has != nil && (back == nil || has.Compare(back.PlanVersion) > 0) {
					for _, p := range w.plansInFlight {
						if p.Epoch <= has.Epoch {
							w.plansOfPausedRelay = append(w.plansOfPausedRelay, p)
						}
					}
				}
				w.hub, w.unconfirmed, w.cutOff, w.plansInFlight = w.hubBackup, true, false, nil
				clear(w.made)
			},
			"restore of the member": func(*rapid.T) { w.member, w.plansOfPausedRelay = w.memberBackup, nil },
			"": func(*rapid.T) {
				w.requireNoPrematureAnswer()
				w.step++
			},
		})

		// In the end, with a valid ConfigMap, the next change of a person reaches the
		// member, and is answered.
		w.hub.invalid = false
		if w.hub.requestedPolicy == 0 {
			ask()
		}
		w.syncReport()
		w.planOnHub()
		w.hub.inquiries = nil
		ask()
		last := w.startInquiry()
		w.planOnHub()
		w.step++
		w.deliverPlan(w.hub.plan)
		w.syncReport()
		require.Equal(t, w.hub.requestedPolicy, requestedPolicyOf(w.member.plan))
		require.Equal(t, w.hub.plan, w.member.plan)
		require.Equal(t, last, w.hub.plan.Inquiries[0].UID)
		require.True(t, w.isAnswered(w.hub.plan.Inquiries[0]))
		w.requireNoPrematureAnswer()
		_, write := w.nextPlan()
		require.False(t, write)
	})
}
