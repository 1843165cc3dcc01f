package fleet_test

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
	"github.com/pelotech/ot-fleet/hub/fleet"
)

// hubState is what a backup of the hub holds.
type hubState struct {
	asks    int // what the ConfigMap asks for: each change by a person is a higher number
	invalid bool
	images  int
	plan    *v1alpha1.ClusterPlanSpec
	report  *v1alpha1.ReportRoot
	// since is when the member took up the plan that the report answers: what it says
	// of the images may be as old as that.
	since int
	// inquiries that have been begun, and not ended.
	inquiries []types.UID
}

// ledger is what a backup of the member holds.
type ledger struct {
	plan  *v1alpha1.ClusterPlanSpec
	since int
}

// planWorld is a hub and a member, both of which can be restored from backups.
type planWorld struct {
	t           *rapid.T
	hub         hubState
	hubBackup   hubState
	unconfirmed bool
	asked       int // ever
	step        int // that is made
	// begun is when inquiries were, ever.
	begun map[types.UID]int
	// Copies that relays have read and not written yet, and those of relays that
	// were paused when the hub was restored.
	underWay, paused []*v1alpha1.ClusterPlanSpec
	// refused is the member's copy of the plan where its agent refuses that for its
	// policy.
	refused *v1alpha1.PlanVersion
	// plans made since the hub was restored
	made         map[*v1alpha1.ClusterPlanSpec]bool
	member       ledger
	memberBackup ledger
}

func (w *planWorld) view() fleet.PlanView {
	v := fleet.PlanView{
		ClusterUID: uid, Current: w.hub.plan, Report: w.hub.report, ReportClusterUID: uid, Unconfirmed: w.unconfirmed,
		Source: fmt.Sprint("asked ", w.hub.asks), Images: []v1alpha1.PlannedImage{image("a", fmt.Sprintf("%dGi", w.hub.images+1))},
		Inquiries: w.hub.inquiries,
	}
	if w.refused != nil && w.hub.plan != nil && w.refused.Compare(w.hub.plan.PlanVersion) > 0 {
		v.Ahead = *w.refused // the relay looks before it carries
	}
	if !w.hub.invalid && w.hub.asks > 0 {
		v.Desired = data{"concurrency": fmt.Sprint(w.hub.asks)}
	}
	return v
}

// decide checks what every decision must keep.
func (w *planWorld) decide() (v1alpha1.ClusterPlanSpec, bool) {
	v := w.view()
	next, write, isHeld := fleet.NextPlan(v)
	if !write {
		if v.Current != nil {
			require.Equal(w.t, *v.Current, next)
		}
		return next, false
	}
	assert.Equal(w.t, next.HeldPolicy != "", isHeld)
	assert.Equal(w.t, fleet.PlanHash(&next), next.Hash)
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
		require.Positive(w.t, next.PlanVersion.Compare(v.Ahead), "%v after the copy %v", next.PlanVersion, v.Ahead)
	}
	for _, asked := range next.Inquiries {
		require.Equal(w.t, next.Epoch, asked.Epoch, "%v", next)
		require.LessOrEqual(w.t, asked.Sequence, next.Sequence, "%v", next)
	}
	v.Current = &next
	_, again, _ := fleet.NextPlan(v)
	require.False(w.t, again, "a second look writes again")
	return next, true
}

// refusal is what a member says that can do nothing with a plan's policy.
var refusal = metav1.Condition{Type: v1alpha1.ConditionPlanAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPlanPolicyFaulty}

func versionOf(p *v1alpha1.ClusterPlanSpec) *v1alpha1.PlanVersion {
	if p == nil {
		return nil
	}
	return &p.PlanVersion
}

func (w *planWorld) planStep() {
	if next, write := w.decide(); write {
		w.hub.plan = &next
		w.made[&next] = true
	}
}

// arrive is the agent: it refuses what is older than what it acknowledged, or
// another of the same version. A relay writes nothing over a newer copy.
func (w *planWorld) arrive(p *v1alpha1.ClusterPlanSpec) {
	if p == nil || w.refused != nil && p.Compare(*w.refused) < 0 {
		return
	}
	w.refused = nil
	if has := w.member.plan; has != nil {
		order := p.PlanVersion.Compare(has.PlanVersion)
		if order < 0 || order == 0 && p.Hash != has.Hash {
			return
		}
		require.GreaterOrEqual(w.t, asked(p), asked(has), "an older policy wins: %v after %v", p, has)
	}
	if w.member.plan == nil || w.member.plan.PlanVersion != p.PlanVersion {
		w.member.since = w.step
	}
	w.member.plan = p
}

func (w *planWorld) begin() types.UID {
	uid := types.UID(fmt.Sprintf("inquiry-%06d", len(w.begun)))
	w.begun[uid] = w.step
	w.hub.inquiries = append(slices.Clone(w.hub.inquiries), uid)
	return uid
}

// answered tells whether the report that the hub has answers an inquiry of its plan.
func (w *planWorld) answered(asked v1alpha1.PlanInquiry) bool {
	answers := w.hub.report.Plan
	if answers == nil || answers.Compare(v1alpha1.PlanVersion{Epoch: asked.Epoch, Sequence: asked.Sequence}) < 0 {
		return false
	}
	order := answers.Compare(w.hub.plan.PlanVersion)
	return order < 0 || order == 0 && answers.Hash == w.hub.plan.Hash
}

// nothingAnswersInAdvance: what counts as an answer was looked at after the question.
func (w *planWorld) nothingAnswersInAdvance() {
	if w.hub.plan == nil || w.hub.report == nil {
		return
	}
	for _, asked := range w.hub.plan.Inquiries {
		if w.answered(asked) {
			require.Greater(w.t, w.hub.since, w.begun[asked.UID], "%v answers %v of %v", w.hub.report.Plan, asked, w.hub.plan)
		}
	}
}

// asked is which wish of a person a plan carries.
func asked(p *v1alpha1.ClusterPlanSpec) int {
	n, _ := strconv.Atoi(p.Policy["concurrency"])
	return n
}

func (w *planWorld) reportStep() {
	root := &v1alpha1.ReportRoot{}
	if w.member.plan != nil {
		root = acknowledging(w.member.plan)
	}
	if w.refused != nil {
		root.Conditions = []metav1.Condition{refusal}
	}
	w.hub.report, w.hub.since, w.unconfirmed = root, w.member.since, false
}

func TestNextPlanProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &planWorld{t: t, unconfirmed: true, made: map[*v1alpha1.ClusterPlanSpec]bool{}, begun: map[types.UID]int{}}
		ask := func() {
			w.asked++
			w.hub.asks = w.asked
		}
		t.Repeat(map[string]func(*rapid.T){
			"a person changes the ConfigMap": func(*rapid.T) { ask() },
			"the ConfigMap breaks or heals":  func(*rapid.T) { w.hub.invalid = !w.hub.invalid },
			"other images":                   func(*rapid.T) { w.hub.images++ },
			"an inquiry begins":              func(*rapid.T) { w.begin() },
			"an inquiry ends": func(*rapid.T) {
				if len(w.hub.inquiries) > 0 {
					w.hub.inquiries = w.hub.inquiries[1:]
				}
			},
			"plan":   func(*rapid.T) { w.planStep() },
			"report": func(*rapid.T) { w.reportStep() },
			"a relay reads the plan": func(*rapid.T) {
				if w.hub.plan != nil {
					w.underWay = append(w.underWay, w.hub.plan)
				}
			},
			"a relay writes the plan": func(t *rapid.T) {
				if len(w.underWay) > 0 {
					w.arrive(rapid.SampledFrom(w.underWay).Draw(t, "copy"))
				}
			},
			"all goes well": func(*rapid.T) {
				w.reportStep()
				w.planStep()
				w.arrive(w.hub.plan)
			},
			"the member is cut off": func(t *rapid.T) {
				for range rapid.IntRange(1, 3).Draw(t, "plans") {
					w.hub.images++
					w.planStep()
				}
			},
			"a paused relay wakes": func(t *rapid.T) {
				if len(w.paused) > 0 && w.made[w.member.plan] {
					w.arrive(rapid.SampledFrom(w.paused).Draw(t, "copy"))
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
				// What a paused relay still holds shows only by what the member acknowledged
				// of its time: of an epoch that only the hub has seen, or of anything that
				// both have forgotten, nobody knows.
				w.paused = nil
				if has, back := w.member.plan, w.hubBackup.plan; has != nil && (back == nil || has.Compare(back.PlanVersion) > 0) {
					for _, p := range w.underWay {
						if p.Epoch <= has.Epoch {
							w.paused = append(w.paused, p)
						}
					}
				}
				w.hub, w.unconfirmed, w.underWay = w.hubBackup, true, nil
				clear(w.made)
			},
			"restore of the member": func(*rapid.T) { w.member, w.paused = w.memberBackup, nil },
			"": func(*rapid.T) {
				w.nothingAnswersInAdvance()
				w.step++
			},
		})

		// Whatever has happened: once there is a valid ConfigMap, what a person asks
		// for next reaches the member, and is answered.
		w.hub.invalid = false
		if w.hub.asks == 0 {
			ask()
		}
		w.reportStep()
		w.planStep()
		w.hub.inquiries = nil
		ask()
		last := w.begin()
		w.planStep()
		w.step++
		w.arrive(w.hub.plan)
		w.reportStep()
		require.Equal(t, w.hub.asks, asked(w.member.plan))
		require.Equal(t, w.hub.plan, w.member.plan)
		require.Equal(t, last, w.hub.plan.Inquiries[0].UID)
		require.True(t, w.answered(w.hub.plan.Inquiries[0]))
		w.nothingAnswersInAdvance()
		_, write := w.decide()
		require.False(t, write)
	})
}
