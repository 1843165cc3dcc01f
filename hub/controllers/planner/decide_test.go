package planner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	policycontroller "github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/policy"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

const uid = types.UID("11111111-1111-1111-1111-111111111111")

// settledMember is a reporting member of which everything is known.
func settledMember(t *testing.T) snapshot {
	t.Helper()
	parsed, _, errs := policy.ParsePolicy(map[string]string{"concurrency": "4"})
	require.Empty(t, errs)
	return snapshot{
		Input: memberstatus.Input{Now: time.Now(), Member: &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", Generation: 1}}},
		namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "ot-member-frankfurt", Labels: map[string]string{v1alpha1.LabelMember: "frankfurt"},
		}},
		root: report.Root{
			ClusterUID: uid, Sequence: 1,
			Report: &v1alpha1.ReportRoot{ObservedAt: metav1.Now(), HeartbeatSeconds: 20},
		},
		syncResult:    mailbox.Findings{ConfirmedSequence: 1},
		policy:        policycontroller.State{Known: true, Policy: parsed},
		reportsSynced: true, mayPlan: true, mayRemove: true, imagesKnown: true, requestsKnown: true,
	}
}

func TestReportingMemberGetsPlan(t *testing.T) {
	d := decide(settledMember(t))
	require.NotNil(t, d.plan)
	assert.Equal(t, "4", d.plan.Spec.Policy["concurrency"])
	assert.Equal(t, uid, d.plan.Spec.ClusterUID)
	assert.Equal(t, "ot-member-frankfurt", d.plan.Namespace)
	assert.Equal(t, &d.plan.Spec.PlanVersion, d.status.Plan, "the status tells of the plan that is being made")

	s := settledMember(t)
	s.plan = d.plan
	again := decide(s)
	assert.Nil(t, again.plan)
}

func TestNothingIsPlannedWhileInputsAreUnknown(t *testing.T) {
	for name, change := range map[string]func(*snapshot){
		"reports or policy have not been read": func(s *snapshot) { s.mayPlan = false },
		"it never reported":                    func(s *snapshot) { s.root = report.Root{} },
		"another cluster reports":              func(s *snapshot) { s.Member.Status.ClusterUID = "other" },
		"its namespace is somebody else's":     func(s *snapshot) { s.namespace.Labels = nil },
		"its namespace is another member's":    func(s *snapshot) { s.namespace.Labels[v1alpha1.LabelMember] = "edge" },
		"its namespace is being deleted":       func(s *snapshot) { s.namespace.DeletionTimestamp = &metav1.Time{Time: s.Now} },
	} {
		t.Run(name, func(t *testing.T) {
			s := settledMember(t)
			change(&s)
			d := decide(s)
			assert.Nil(t, d.plan)
		})
	}
}

func TestStatusStaysUntilTheStoredReportsAreRead(t *testing.T) {
	s := settledMember(t)
	s.Member.Status = decide(s).status
	require.True(t, meta.IsStatusConditionTrue(s.Member.Status.Conditions, v1alpha1.ConditionIdentityConfirmed))
	s.root, s.reportsSynced, s.mayPlan = report.Root{}, false, false
	assert.Equal(t, s.Member.Status, decide(s).status)
	s.reportsSynced = true
	assert.False(t, meta.IsStatusConditionTrue(decide(s).status.Conditions, v1alpha1.ConditionIdentityConfirmed))
}

func TestNothingIsPlannedByUnconfirmedReport(t *testing.T) {
	for name, change := range map[string]func(*snapshot){
		"the member's own was not read yet":         func(s *snapshot) { s.syncResult.ConfirmedSequence = 0 },
		"the copy that came of it was not read yet": func(s *snapshot) { s.syncResult.ConfirmedSequence = s.root.Sequence + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			s := settledMember(t)
			change(&s)
			assert.Nil(t, decide(s).plan)
		})
	}
}

// A plan of a member in quarantine is not synced. What it says as the quarantine ends is that prunes
// are over which ended meanwhile, and nothing else new.
func TestQuarantineWithdrawsEndedPrunes(t *testing.T) {
	prune := v1alpha1.PlannedPrune{Namespace: "images", Name: "ubuntu", ImageUID: "image", UID: "prune"}
	s := settledMember(t)
	s.prunes = []v1alpha1.PlannedPrune{prune}
	s.plan = decide(s).plan
	require.Equal(t, s.prunes, s.plan.Spec.Prunes)
	s.Member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "reports 256 imports"}
	other, _, errs := policy.ParsePolicy(map[string]string{"concurrency": "7", "safeConcurrency": "1"})
	require.Empty(t, errs)
	s.policy.Policy = other
	assert.Nil(t, decide(s).plan, "the prune still runs")
	s.prunes = nil
	next := decide(s).plan
	require.NotNil(t, next)
	assert.Empty(t, next.Spec.Prunes)
	assert.Equal(t, s.plan.Spec.Policy, next.Spec.Policy)
	assert.Equal(t, s.plan.Spec.Sequence+1, next.Spec.Sequence)
	s.plan = next
	assert.Nil(t, decide(s).plan)
}

// While the desired images are unknown, as after a start of the hub, a plan keeps its
// images: an image that no plan names loses its protection.
func TestPlanKeepsImagesUntilDesiredImagesAreKnown(t *testing.T) {
	wanted := rollout.DesiredImages{
		Images:  []v1alpha1.PlannedImage{{Namespace: "images", Name: "ubuntu-2", Spec: apitest.FleetDiskImage("ubuntu").Obj().Spec.Template}},
		Kept:    []v1alpha1.KeptImage{{Namespace: "images", Name: "ubuntu-1"}},
		Retired: []v1alpha1.RetiredImage{{Namespace: "images", Name: "ubuntu-0"}},
	}
	s := settledMember(t)
	s.images = wanted
	first := decide(s).plan
	require.NotNil(t, first)
	assert.Equal(t, wanted, rollout.DesiredImages{Images: first.Spec.Images, Kept: first.Spec.Kept, Retired: first.Spec.Retired})

	s.plan, s.images, s.imagesKnown = first, rollout.DesiredImages{}, false
	assert.Nil(t, decide(s).plan, "nothing is written")

	other, _, errs := policy.ParsePolicy(map[string]string{"concurrency": "7"})
	require.Empty(t, errs)
	s.policy.Policy = other
	next := decide(s).plan
	require.NotNil(t, next, "a change of policy does not wait")
	assert.Equal(t, "7", next.Spec.Policy["concurrency"])
	assert.Equal(t, wanted, rollout.DesiredImages{Images: next.Spec.Images, Kept: next.Spec.Kept, Retired: next.Spec.Retired})

	s.root.Report.Plan = &v1alpha1.PlanVersion{Epoch: 3, Sequence: 1}
	next = decide(s).plan
	require.NotNil(t, next)
	assert.Equal(t, int64(4), next.Spec.Epoch, "nor does what a restored hub has to catch up on")
	assert.Equal(t, wanted.Images, next.Spec.Images)

	s.plan = nil
	assert.Nil(t, decide(s).plan, "the member may have a plan with images, that one without would take the place of")
	s.imagesKnown = true
	next = decide(s).plan
	require.NotNil(t, next)
	assert.Empty(t, next.Spec.Images, "now it is known that none is wanted")
}

// FleetDiskImages and ImagePrunes are read by different controllers. Neither waits for
// the other; the unknown part of the plan stays.
func TestPlanKeepsRequestsUntilTheyAreKnown(t *testing.T) {
	wanted := rollout.DesiredImages{
		Images: []v1alpha1.PlannedImage{{Namespace: "images", Name: "ubuntu-2", Spec: apitest.FleetDiskImage("ubuntu").Obj().Spec.Template}},
		Kept:   []v1alpha1.KeptImage{{Namespace: "images", Name: "ubuntu-1"}},
	}
	pruned := func(name string) []v1alpha1.PlannedPrune {
		return []v1alpha1.PlannedPrune{{Namespace: "images", Name: name, ImageUID: types.UID(name), UID: "prune"}}
	}
	s := settledMember(t)
	s.images, s.inquiries, s.prunes = wanted, []types.UID{"inquiry"}, pruned("debian-1")
	s.plan = decide(s).plan
	require.NotNil(t, s.plan)
	stored := &s.plan.Spec
	assert.Equal(t, []v1alpha1.PlanInquiry{{UID: "inquiry", Epoch: 1, Sequence: 1}}, stored.Inquiries)
	assert.Equal(t, pruned("debian-1"), stored.Prunes)

	next := func(change func(*snapshot)) *v1alpha1.ClusterPlan {
		s := s
		change(&s)
		return decide(s).plan
	}
	var nothing rollout.DesiredImages
	assert.Nil(t, next(func(s *snapshot) {}))

	none := next(func(s *snapshot) { s.images, s.inquiries, s.prunes = nothing, nil, nil })
	require.NotNil(t, none, "all is known")
	assert.Empty(t, none.Spec.Images)
	assert.Empty(t, none.Spec.Inquiries)
	assert.Empty(t, none.Spec.Prunes)

	onlyImages := next(func(s *snapshot) { s.images, s.inquiries, s.prunes, s.requestsKnown = nothing, nil, nil, false })
	require.NotNil(t, onlyImages, "the desired images are known")
	assert.Empty(t, onlyImages.Spec.Images)
	assert.Empty(t, onlyImages.Spec.Kept)
	assert.Equal(t, stored.Inquiries, onlyImages.Spec.Inquiries)
	assert.Equal(t, stored.Prunes, onlyImages.Spec.Prunes, "a prune that the plan stops naming is undone")

	onlyRequests := next(func(s *snapshot) {
		s.images, s.imagesKnown = nothing, false
		s.inquiries, s.prunes = []types.UID{"another"}, pruned("debian-2")
	})
	require.NotNil(t, onlyRequests, "the requests are known")
	assert.Equal(t, stored.Images, onlyRequests.Spec.Images)
	assert.Equal(t, stored.Kept, onlyRequests.Spec.Kept)
	assert.Equal(t, []v1alpha1.PlanInquiry{{UID: "another", Epoch: 1, Sequence: 2}}, onlyRequests.Spec.Inquiries)
	assert.Equal(t, pruned("debian-2"), onlyRequests.Spec.Prunes)

	inTheDark := func(s *snapshot) {
		s.images, s.inquiries, s.prunes, s.imagesKnown, s.requestsKnown = nothing, nil, nil, false, false
	}
	assert.Nil(t, next(inTheDark), "neither is known")

	restored := next(func(s *snapshot) {
		inTheDark(s)
		s.root.Report.Plan = &v1alpha1.PlanVersion{Epoch: 3, Sequence: 1}
	})
	require.NotNil(t, restored, "what a restored hub has to catch up on does not wait")
	assert.Equal(t, stored.Images, restored.Spec.Images)
	assert.Equal(t, []v1alpha1.PlanInquiry{{UID: "inquiry", Epoch: 4, Sequence: 1}}, restored.Spec.Inquiries)
	assert.Equal(t, stored.Prunes, restored.Spec.Prunes)

	for name, dark := range map[string]func(*snapshot){
		"neither is known":     inTheDark,
		"requests are unknown": func(s *snapshot) { s.requestsKnown = false },
		"images are unknown":   func(s *snapshot) { s.imagesKnown = false },
	} {
		assert.Nil(t, next(func(s *snapshot) {
			s.plan = nil
			dark(s)
		}), "%s: the member may have a plan that this one would take the place of", name)
	}
	first := next(func(s *snapshot) { s.plan = nil })
	require.NotNil(t, first)
	assert.Equal(t, stored.Prunes, first.Spec.Prunes)
}

func TestMemberNamespace(t *testing.T) {
	s := settledMember(t)
	s.namespace = nil
	assert.True(t, decide(s).createNamespace)

	for name, tt := range map[string]struct {
		change                              func(*snapshot)
		wantReason, wantMessage, wantIsTrue string
	}{
		"somebody else's": {
			func(s *snapshot) { s.namespace.Labels = nil },
			v1alpha1.ReasonNamespaceTaken, "kubectl label namespace ot-member-frankfurt pelotech.ot/member=frankfurt", v1alpha1.ConditionStalled,
		},
		"being deleted": {
			func(s *snapshot) { s.namespace.DeletionTimestamp = &metav1.Time{Time: s.Now} },
			string(v1alpha1.ReasonNamespaceTerminating), "it is created again afterwards", v1alpha1.ConditionReconciling,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := settledMember(t)
			s.Member.Status = decide(s).status // Ready may be True before
			tt.change(&s)
			d := decide(s)
			assert.False(t, d.createNamespace)
			ready := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionReady)
			require.NotNil(t, ready)
			assert.Equal(t, tt.wantReason, ready.Reason)
			assert.Contains(t, ready.Message, tt.wantMessage)
			statuscheck.RequireOneTrue(t, d.status.Conditions)
			assert.True(t, meta.IsStatusConditionTrue(d.status.Conditions, tt.wantIsTrue))
			assert.Positive(t, d.recheckAfter)

			s.Member.Status = d.status
			s.Now = s.Now.Add(time.Minute)
			again := decide(s).status
			assert.Equal(t, ready, meta.FindStatusCondition(again.Conditions, v1alpha1.ConditionReady), "nothing to write")
			assert.Equal(t, meta.FindStatusCondition(d.status.Conditions, tt.wantIsTrue), meta.FindStatusCondition(again.Conditions, tt.wantIsTrue))
		})
	}
}

func TestNothingIsPlannedForClusterOfOtherMember(t *testing.T) {
	s := settledMember(t)
	planned := decide(s)
	s.Holder = "berlin"
	d := decide(s)
	assert.Nil(t, d.plan)
	assert.False(t, d.withdrawMailbox)

	s.plan, s.grant, s.mayRemove = planned.plan, &v1alpha1.TransferGrant{}, false
	d = decide(s)
	assert.False(t, d.withdrawMailbox, "the budget does not know yet what it may be running")
	assert.Equal(t, budgetRetryDelay, d.recheckAfter)
	require.Equal(t, v1alpha1.ReasonDuplicateCluster, meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionIdentityConfirmed).Reason, "its status does not wait for that")
	s.mayRemove = true
	d = decide(s)
	assert.True(t, d.withdrawMailbox)
	assert.Empty(t, d.status.ClusterUID, "it claims nothing")
	identity := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionIdentityConfirmed)
	require.NotNil(t, identity)
	assert.Equal(t, v1alpha1.ReasonDuplicateCluster, identity.Reason)
	assert.Contains(t, identity.Message, "MemberCluster berlin")
}

// Members use a safe share without a request, so it must not be planned before there is
// room.
func TestPlanHasAdmittedSafeShare(t *testing.T) {
	s := settledMember(t)
	parsed, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": "4", "safeConcurrency": "3"})
	require.Empty(t, errs)
	s.policy.Policy = parsed
	assert.Nil(t, decide(s).plan, "the safe share is unknown yet")
	s.safe, s.safeKnown = 1, true
	s.Transfers = &v1alpha1.MemberTransfers{Held: 1}
	d := decide(s)
	require.NotNil(t, d.plan)
	assert.Equal(t, "1", d.plan.Spec.Policy["safeConcurrency"])
	assert.Equal(t, s.Transfers, d.status.Transfers)
}

// What the hub itself lacks is not blamed on the member.
func TestPolicyAcknowledgedSaysWhatTheHubWaitsFor(t *testing.T) {
	limited, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": "4", "safeConcurrency": "3"})
	require.Empty(t, errs)
	planned := decide(settledMember(t)).plan
	for name, tt := range map[string]struct {
		change func(*snapshot)
		want   string
	}{
		"first plan, images":   {func(s *snapshot) { s.imagesKnown = false }, "the first plan waits: the hub has not read all FleetDiskImages"},
		"first plan, requests": {func(s *snapshot) { s.requestsKnown = false }, "the first plan waits: the hub has not read all PruneReports and ImagePrunes"},
		"first plan, budget":   {func(s *snapshot) { s.policy.Policy = limited }, "the first plan waits: the hub does not know yet what the members hold of the fleet's budget"},
		"next plan, budget":    {func(s *snapshot) { s.plan, s.policy.Policy = planned, limited }, "is not planned yet: the hub does not know yet what the members hold of the fleet's budget"},
		"held policy, budget": {func(s *snapshot) {
			held := planned.DeepCopy()
			held.Spec.HeldPolicy = "any"
			s.plan, s.policy.Policy = held, limited
		}, "is held back until that changes; the next plan waits: the hub does not know yet what the members hold of the fleet's budget"},
		"policy": {func(s *snapshot) { s.policy, s.mayPlan = policycontroller.State{}, false }, "the hub has not read its policy ConfigMap yet"},
		"report": {func(s *snapshot) {
			s.syncResult.ConfirmedSequence, s.plan, s.policy.Policy, s.safeKnown = 0, planned, limited, true
		}, "is not planned yet: the hub has to read the member's report first"},
	} {
		t.Run(name, func(t *testing.T) {
			s := settledMember(t)
			tt.change(&s)
			d := decide(s)
			assert.Nil(t, d.plan)
			assert.Contains(t, meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionPolicyAcknowledged).Message, tt.want)
		})
	}
}

// A member may have taken up a plan without acknowledging it. What that plan allows
// counts until it or a later one is acknowledged.
func TestPlanRecordsBoundsOfSupersededPlan(t *testing.T) {
	s := settledMember(t)
	free := decide(s).plan // without limits
	require.NotNil(t, free)
	assert.Nil(t, budget.UnacknowledgedBounds(free))

	parsed, _, errs := policy.ParsePolicy(map[string]string{"fleetConcurrency": "4"})
	require.Empty(t, errs)
	s.plan, s.policy.Policy, s.safeKnown = free, parsed, true
	limited := decide(s).plan
	require.NotNil(t, limited)
	require.NotNil(t, budget.UnacknowledgedBounds(limited))
	assert.Equal(t, int32(4), budget.UnacknowledgedBounds(limited).Concurrency)
	assert.False(t, budget.UnacknowledgedBounds(limited).Limited)

	s.plan, s.images.Images = limited, []v1alpha1.PlannedImage{{Namespace: "farm", Name: "a"}}
	third := decide(s).plan
	require.NotNil(t, third)
	assert.Equal(t, budget.UnacknowledgedBounds(limited).Concurrency, budget.UnacknowledgedBounds(third).Concurrency, "nor was that one acknowledged")

	s.plan, s.images.Images = third, nil
	s.root.Report.Plan = &third.Spec.PlanVersion
	fourth := decide(s).plan
	require.NotNil(t, fourth)
	require.NotNil(t, budget.UnacknowledgedBounds(fourth), "the acknowledged plan is in force until the next one is acknowledged")
	assert.True(t, budget.UnacknowledgedBounds(fourth).Limited, "and the one without limits is not")
}

// Whoever deletes a MemberCluster and creates it again has another cluster accepted: the report that
// still lies in the namespace of the former must not make it the former cluster.
func TestRecreatedMemberIsNotTheFormerCluster(t *testing.T) {
	s := settledMember(t)
	s.namespace.DeletionTimestamp = &metav1.Time{Time: s.Now}
	d := decide(s)
	assert.Empty(t, d.status.ClusterUID)
	assert.Nil(t, d.plan)
	s.namespace = nil
	assert.Empty(t, decide(s).status.ClusterUID)
}

// Two hubs that have one member raise their plans above each other: this one gives way
// after a few times, says so, and goes on by itself.
func TestPlanIsNotRaisedWithoutEnd(t *testing.T) {
	s, raises := settledMember(t), &plan.Raises{}
	for range 20 {
		s.contestedFor = raises.Contested("frankfurt", s.Now)
		if d := decide(s); d.plan != nil {
			raised := s.plan != nil
			assert.Equal(t, raised, s.plan != nil && plan.IsRaise(&d.plan.Spec, &s.plan.Spec))
			if raised {
				raises.Record("frankfurt", s.Now)
			}
			s.plan = d.plan
		}
		s.root.Report.Plan = &v1alpha1.PlanVersion{Epoch: s.plan.Spec.Epoch + 1, Sequence: 1, Hash: "the other hub's"}
	}
	assert.Equal(t, int64(13), s.plan.Spec.Epoch, "1, and 6 times above the other hub's")
	d := decide(s)
	assert.Nil(t, d.plan)
	assert.Equal(t, v1alpha1.ReasonAnotherHub, meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionPolicyAcknowledged).Reason)
	assert.Positive(t, d.recheckAfter)
	assert.LessOrEqual(t, d.recheckAfter, 30*time.Minute)

	// The other hub is stopped, and the member takes up this hub's plan.
	s.root.Report.Plan = &s.plan.Spec.PlanVersion
	d = decide(s)
	assert.Equal(t, v1alpha1.ReasonAcknowledged, meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionPolicyAcknowledged).Reason)
	s.grant = &v1alpha1.TransferGrant{Spec: v1alpha1.TransferGrantSpec{Unlimited: true, Sequence: 3}}
	s.syncResult.NewerGrant = 4
	assert.Equal(t, v1alpha1.ReasonAnotherHub, meta.FindStatusCondition(decide(s).status.Conditions, v1alpha1.ConditionPolicyAcknowledged).Reason)
}
