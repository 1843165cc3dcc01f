package plan_test

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/apitest"
	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

type data = map[string]string

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func timeAt(second int) *metav1.Time {
	t := metav1.NewTime(now.Add(time.Duration(second) * time.Second))
	return &t
}

const uid = types.UID("11111111-0000-0000-0000-000000000000")

func concurrencyPolicy(n int) data { return apitest.Policy().Concurrency(int32(n)).ToData() }

func withKey(d data, key, value string) data {
	d = maps.Clone(d)
	d[key] = value
	return d
}

// grantsPolicy is that of a fleet with a budget.
func grantsPolicy(concurrency, safe int) data {
	return withKey(concurrencyPolicy(concurrency), "safeConcurrency", strconv.Itoa(safe))
}

func windowOf(hour string, concurrency int32) string {
	return apipolicy.Windows{{Cron: "0 " + hour + " * * *", Duration: 8 * time.Hour, Concurrency: &concurrency}}.String()
}

func planVersion(epoch, sequence int64) v1alpha1.PlanVersion {
	return v1alpha1.PlanVersion{Epoch: epoch, Sequence: sequence}
}

// newPlan returns a plan with the hash of its content.
func newPlan(v v1alpha1.PlanVersion, policy data, images ...v1alpha1.PlannedImage) *v1alpha1.ClusterPlanSpec {
	p := &v1alpha1.ClusterPlanSpec{PlanVersion: v, ClusterUID: uid, Policy: policy, PolicySource: "fleet default", Images: images}
	p.Hash = plan.Hash(p)
	return p
}

func withHeldPolicy(p *v1alpha1.ClusterPlanSpec, by data) *v1alpha1.ClusterPlanSpec {
	p.HeldPolicy, p.PolicySource = plan.HashPolicy(by), "the member's"
	return p
}

// acknowledgingReport returns the report of a member that runs a plan.
func acknowledgingReport(p *v1alpha1.ClusterPlanSpec) *v1alpha1.ReportRoot {
	v := p.PlanVersion
	return &v1alpha1.ReportRoot{Plan: &v, PlanPolicy: p.Policy, PlanPolicySource: "the member's"}
}

func plannedImage(name, size string) v1alpha1.PlannedImage {
	return v1alpha1.PlannedImage{Namespace: "images", Name: name, Spec: v1alpha1.VMDiskImageSpec{
		Name: name, SourceType: v1alpha1.SourceHTTP, URL: "https://images.example.com/" + name, DiskSize: resource.MustParse(size),
	}}
}

func TestNextPlan(t *testing.T) {
	fresh := &v1alpha1.ReportRoot{}
	edited := newPlan(planVersion(1, 4), concurrencyPolicy(3))
	edited.Policy = concurrencyPolicy(99)
	otherHash := acknowledgingReport(newPlan(planVersion(1, 4), concurrencyPolicy(5)))
	noHash := acknowledgingReport(newPlan(planVersion(1, 4), concurrencyPolicy(3)))
	noHash.Plan.Hash = ""
	fewerKeys := acknowledgingReport(newPlan(planVersion(1, 9), data{"concurrency": "5"}))
	noPolicy := acknowledgingReport(newPlan(planVersion(1, 9), nil))
	moved := newPlan(planVersion(1, 4), concurrencyPolicy(3))
	moved.ClusterUID = "another"

	for name, tt := range map[string]struct {
		current   *v1alpha1.ClusterPlanSpec
		report    *v1alpha1.ReportRoot
		reporter  types.UID // another cluster than the known one
		desired   data
		source    string // default: "fleet default"
		images    []v1alpha1.PlannedImage
		want      v1alpha1.PlanVersion
		wantFrom  data // the policy
		wantBy    string
		wantWrite bool
		wantHeld  bool
	}{
		"no plan without a report": {desired: concurrencyPolicy(3)},
		"nor by the report of another cluster": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: fresh, reporter: "another", desired: concurrencyPolicy(5),
			want: planVersion(1, 4), wantFrom: concurrencyPolicy(3), wantBy: "fleet default",
		},
		"none that says nothing": {report: fresh},
		"the first": {
			report: fresh, desired: concurrencyPolicy(3),
			want: planVersion(1, 1), wantFrom: concurrencyPolicy(3), wantBy: "fleet default", wantWrite: true,
		},
		"the first, with images alone": {
			report: fresh, images: []v1alpha1.PlannedImage{plannedImage("a", "1Gi")},
			want: planVersion(1, 1), wantBy: "fleet default", wantWrite: true,
		},
		"nothing new": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: acknowledgingReport(newPlan(planVersion(1, 4), concurrencyPolicy(3))), desired: concurrencyPolicy(3),
			want: planVersion(1, 4), wantFrom: concurrencyPolicy(3), wantBy: "fleet default",
		},
		"another policy": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: acknowledgingReport(newPlan(planVersion(1, 4), concurrencyPolicy(3))), desired: concurrencyPolicy(5),
			want: planVersion(1, 5), wantFrom: concurrencyPolicy(5), wantBy: "fleet default", wantWrite: true,
		},
		"another source alone is no new version": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: fresh, desired: concurrencyPolicy(3), source: "override a=b",
			want: planVersion(1, 4), wantFrom: concurrencyPolicy(3), wantBy: "override a=b", wantWrite: true,
		},
		"other images": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: fresh, desired: concurrencyPolicy(3), images: []v1alpha1.PlannedImage{plannedImage("a", "1Gi")},
			want: planVersion(1, 5), wantFrom: concurrencyPolicy(3), wantBy: "fleet default", wantWrite: true,
		},
		"the same images in another order and writing": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3), plannedImage("a", "1Gi"), plannedImage("b", "1Gi")), report: fresh, desired: concurrencyPolicy(3),
			images: []v1alpha1.PlannedImage{plannedImage("b", "1024Mi"), plannedImage("a", "1Gi")},
			want:   planVersion(1, 4), wantFrom: concurrencyPolicy(3), wantBy: "fleet default",
		},
		"without a valid policy the last one stays": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: acknowledgingReport(newPlan(planVersion(1, 4), concurrencyPolicy(3))),
			want: planVersion(1, 4), wantFrom: concurrencyPolicy(3), wantBy: "fleet default",
		},
		"a plan that somebody edited": {
			current: edited, report: acknowledgingReport(newPlan(planVersion(1, 4), concurrencyPolicy(3))), desired: concurrencyPolicy(3),
			want: planVersion(1, 5), wantFrom: concurrencyPolicy(3), wantBy: "fleet default", wantWrite: true,
		},
		"a plan for the cluster that was here before": {
			current: moved, report: fresh, desired: concurrencyPolicy(3),
			want: planVersion(1, 5), wantFrom: concurrencyPolicy(3), wantBy: "fleet default", wantWrite: true,
		},
		"a member that was restored gets the same plan": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: acknowledgingReport(newPlan(planVersion(1, 2), concurrencyPolicy(7))), desired: concurrencyPolicy(3),
			want: planVersion(1, 4), wantFrom: concurrencyPolicy(3), wantBy: "fleet default",
		},
		"and one of an earlier epoch": {
			current: newPlan(planVersion(2, 1), concurrencyPolicy(3)), report: acknowledgingReport(newPlan(planVersion(1, 99), concurrencyPolicy(7))), desired: concurrencyPolicy(3),
			want: planVersion(2, 1), wantFrom: concurrencyPolicy(3), wantBy: "fleet default",
		},

		"the hub was restored": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: acknowledgingReport(newPlan(planVersion(1, 7), concurrencyPolicy(5))), desired: concurrencyPolicy(3),
			want: planVersion(2, 1), wantFrom: concurrencyPolicy(5), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"and has given the version to another content": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: otherHash, desired: concurrencyPolicy(3),
			want: planVersion(2, 1), wantFrom: concurrencyPolicy(5), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"a report without a hash": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: noHash, desired: concurrencyPolicy(3),
			want: planVersion(1, 4), wantFrom: concurrencyPolicy(3), wantBy: "fleet default",
		},
		"the hub is new": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), concurrencyPolicy(5))), desired: concurrencyPolicy(3),
			want: planVersion(4, 1), wantFrom: concurrencyPolicy(5), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"the hub is new and has no policy": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), concurrencyPolicy(5))),
			want:   planVersion(4, 1), wantFrom: concurrencyPolicy(5), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"nothing is held back where both want the same": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), concurrencyPolicy(5))), desired: concurrencyPolicy(5),
			want: planVersion(4, 1), wantFrom: concurrencyPolicy(5), wantBy: "fleet default", wantWrite: true,
		},
		"also where an older version wrote fewer keys": {
			report: fewerKeys, desired: concurrencyPolicy(5),
			want: planVersion(2, 1), wantFrom: concurrencyPolicy(5), wantBy: "fleet default", wantWrite: true,
		},
		"nor where the member's plan had no policy": {
			current: newPlan(planVersion(1, 4), concurrencyPolicy(3)), report: noPolicy, desired: concurrencyPolicy(3),
			want: planVersion(2, 1), wantFrom: concurrencyPolicy(3), wantBy: "fleet default", wantWrite: true,
		},
		"held, and nothing new": {
			current: withHeldPolicy(newPlan(planVersion(2, 1), concurrencyPolicy(5)), concurrencyPolicy(3)), report: acknowledgingReport(newPlan(planVersion(2, 1), concurrencyPolicy(5))), desired: concurrencyPolicy(3),
			want: planVersion(2, 1), wantFrom: concurrencyPolicy(5), wantBy: "the member's", wantHeld: true,
		},
		"held while there is no valid policy": {
			current: withHeldPolicy(newPlan(planVersion(2, 1), concurrencyPolicy(5)), concurrencyPolicy(3)), report: fresh,
			want: planVersion(2, 1), wantFrom: concurrencyPolicy(5), wantBy: "the member's", wantHeld: true,
		},
		"held until the ConfigMap asks for something else": {
			current: withHeldPolicy(newPlan(planVersion(2, 1), concurrencyPolicy(5)), concurrencyPolicy(3)), report: fresh, desired: concurrencyPolicy(4),
			want: planVersion(2, 2), wantFrom: concurrencyPolicy(4), wantBy: "fleet default", wantWrite: true,
		},
		"or for the held policy": {
			current: withHeldPolicy(newPlan(planVersion(2, 1), concurrencyPolicy(5)), concurrencyPolicy(3)), report: fresh, desired: concurrencyPolicy(5),
			want: planVersion(2, 1), wantFrom: concurrencyPolicy(5), wantBy: "fleet default", wantWrite: true,
		},
		"other images go into a plan that holds a policy": {
			current: withHeldPolicy(newPlan(planVersion(2, 1), concurrencyPolicy(5)), concurrencyPolicy(3)), report: fresh, desired: concurrencyPolicy(3), images: []v1alpha1.PlannedImage{plannedImage("a", "1Gi")},
			want: planVersion(2, 2), wantFrom: concurrencyPolicy(5), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"held, and limited by the fleet's budget": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), concurrencyPolicy(256))), desired: grantsPolicy(5, 1),
			want: planVersion(4, 1), wantFrom: grantsPolicy(5, 1), wantBy: "fleet default", wantWrite: true,
		},
		"less than the budget permits stays": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), concurrencyPolicy(3))), desired: grantsPolicy(5, 1),
			want: planVersion(4, 1), wantFrom: grantsPolicy(3, 1), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"so does what does not count for it": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), withKey(concurrencyPolicy(9), "retryLimit", "7"))), desired: grantsPolicy(5, 1),
			want: planVersion(4, 1), wantFrom: withKey(grantsPolicy(5, 1), "retryLimit", "7"), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"a long attempt, windows and a safe share are the member's word": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), withKey(withKey(withKey(concurrencyPolicy(9), "retryLimit", "7"), "attemptTimeout", "12h0m0s"), "safeConcurrency", "99"))), desired: grantsPolicy(5, 1),
			want: planVersion(4, 1), wantFrom: withKey(grantsPolicy(5, 1), "retryLimit", "7"), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"windows are held, too, within what the budget permits": {
			report:  acknowledgingReport(newPlan(planVersion(3, 7), withKey(concurrencyPolicy(0), "windows", windowOf("22", 8)))),
			desired: grantsPolicy(4, 1),
			want:    planVersion(4, 1), wantFrom: withKey(grantsPolicy(0, 1), "windows", windowOf("22", 4)), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"a window of the ConfigMap permits as much at any time": {
			report:  acknowledgingReport(newPlan(planVersion(3, 7), withKey(concurrencyPolicy(8), "retryLimit", "7"))),
			desired: withKey(grantsPolicy(0, 1), "windows", windowOf("22", 8)),
			want:    planVersion(4, 1), wantFrom: withKey(grantsPolicy(8, 1), "retryLimit", "7"), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"held although the admitted safe share has changed": {
			current: withHeldPolicy(newPlan(planVersion(2, 1), withKey(grantsPolicy(5, 0), "retryLimit", "7")), withKey(grantsPolicy(5, 0), "safeConcurrency", "")), report: fresh, desired: grantsPolicy(5, 2),
			want: planVersion(2, 2), wantFrom: withKey(grantsPolicy(5, 2), "retryLimit", "7"), wantBy: "the member's", wantWrite: true, wantHeld: true,
		},
		"what cannot be read is not held under a budget": {
			report: acknowledgingReport(newPlan(planVersion(3, 7), data{"concurrency": "many"})), desired: grantsPolicy(5, 1),
			want: planVersion(4, 1), wantFrom: grantsPolicy(5, 1), wantBy: "fleet default", wantWrite: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := plan.Input{
				ClusterUID: uid, Current: tt.current, Report: tt.report, ReportClusterUID: uid,
				DesiredPolicy: tt.desired, PolicySource: "fleet default", Images: tt.images,
			}
			if tt.source != "" {
				v.PolicySource = tt.source
			}
			if tt.reporter != "" {
				v.ReportClusterUID = tt.reporter
			}
			got, write, isHeld := plan.Next(v)
			gotVersion := got.PlanVersion
			gotVersion.Hash = ""
			assert.Equal(t, tt.want, gotVersion)
			assert.Equal(t, tt.wantFrom, got.Policy)
			assert.Equal(t, tt.wantBy, got.PolicySource)
			assert.Equal(t, tt.wantWrite, write)
			assert.Equal(t, tt.wantHeld, isHeld)
			assert.Equal(t, tt.wantHeld, got.HeldPolicy != "")
			if !write {
				return
			}
			assert.Equal(t, uid, got.ClusterUID)
			assert.Equal(t, plan.Hash(&got), got.Hash)
			v.Current = &got
			again, write, _ := plan.Next(v)
			assert.False(t, write, "a second look writes nothing: %v", again)
		})
	}
}

func TestNextPlanRisesAboveBlockingCopy(t *testing.T) {
	current := newPlan(planVersion(1, 7), concurrencyPolicy(3))
	refused := acknowledgingReport(current)
	refused.Conditions = []metav1.Condition{policyRefused}
	older := acknowledgingReport(newPlan(planVersion(2, 4), concurrencyPolicy(5)))
	older.Conditions = refused.Conditions
	accepted := acknowledgingReport(current)
	accepted.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlanAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPlanInForce}}
	for name, tt := range map[string]struct {
		report   *v1alpha1.ReportRoot
		ahead    v1alpha1.PlanVersion
		want     v1alpha1.PlanVersion
		wantFrom data
	}{
		"none is ahead":                   {refused, v1alpha1.PlanVersion{}, planVersion(1, 7), concurrencyPolicy(3)},
		"refused":                         {refused, planVersion(3, 10), planVersion(4, 1), concurrencyPolicy(3)},
		"was gone over since":             {refused, planVersion(1, 6), planVersion(1, 7), concurrencyPolicy(3)},
		"to be acknowledged":              {accepted, planVersion(1, 10), planVersion(1, 7), concurrencyPolicy(3)},
		"above one that was acknowledged": {older, planVersion(3, 1), planVersion(4, 1), concurrencyPolicy(5)},
		"below one that was acknowledged": {older, planVersion(1, 9), planVersion(3, 1), concurrencyPolicy(5)},
	} {
		t.Run(name, func(t *testing.T) {
			next, write, _ := plan.Next(plan.Input{
				ClusterUID: uid, ReportClusterUID: uid, Current: current, Report: tt.report, NewerMemberPlan: tt.ahead, DesiredPolicy: concurrencyPolicy(3), PolicySource: "fleet default",
			})
			assert.Equal(t, tt.want.Compare(current.PlanVersion) > 0, write)
			next.Hash = ""
			assert.Equal(t, tt.want, next.PlanVersion)
			assert.Equal(t, tt.wantFrom, next.Policy)
		})
	}
}

// A policy that was held for lack of another one stays held when that one comes: it would
// have been held if it had been there in time.
func TestNextPlanHoldsTheFirstPolicy(t *testing.T) {
	v := plan.Input{ClusterUID: uid, ReportClusterUID: uid, Report: acknowledgingReport(newPlan(planVersion(3, 7), concurrencyPolicy(5)))}
	next, write, isHeld := plan.Next(v)
	assert.True(t, write && isHeld)

	v.Current, v.DesiredPolicy, v.PolicySource = &next, concurrencyPolicy(3), "fleet default"
	next, write, isHeld = plan.Next(v)
	assert.True(t, write && isHeld)
	assert.Equal(t, concurrencyPolicy(5), next.Policy)
	assert.Equal(t, int64(1), next.Sequence, "nothing changes for the member")

	v.DesiredPolicy = concurrencyPolicy(4)
	next, write, isHeld = plan.Next(v)
	assert.True(t, write)
	assert.False(t, isHeld)
	assert.Equal(t, concurrencyPolicy(4), next.Policy)
}

func TestNextPlanDoesNotChangeItsInput(t *testing.T) {
	images := []v1alpha1.PlannedImage{plannedImage("b", "1Gi"), plannedImage("a", "1Gi")}
	current := newPlan(planVersion(1, 4), concurrencyPolicy(3))
	before := current.DeepCopy()
	next, _, _ := plan.Next(plan.Input{ClusterUID: uid, ReportClusterUID: uid, Report: &v1alpha1.ReportRoot{}, Current: current, DesiredPolicy: concurrencyPolicy(5), Images: images})
	assert.Equal(t, "a", next.Images[0].Name)
	assert.Equal(t, "b", images[0].Name)
	assert.Equal(t, before, current)
}

// A plan is written again for each field of an image that changes.
func TestEveryFieldOfAnImageChangesThePlan(t *testing.T) {
	image := plannedImage("a", "1Gi")
	input := plan.Input{ClusterUID: uid, ReportClusterUID: uid, Report: &v1alpha1.ReportRoot{}, DesiredPolicy: concurrencyPolicy(3), Images: []v1alpha1.PlannedImage{image}}
	current, _, _ := plan.Next(input)
	input.Current, input.Report = &current, acknowledgingReport(&current)
	_, write, _ := plan.Next(input)
	require.False(t, write)
	for field, spec := range apitest.SpecVariants(image.Spec) {
		changed := image
		changed.Spec = spec
		input.Images = []v1alpha1.PlannedImage{changed}
		next, write, _ := plan.Next(input)
		assert.True(t, write, field)
		assert.NotEqual(t, current.Hash, next.Hash, field)
	}
	changed := image
	changed.Retry = "1"
	input.Images = []v1alpha1.PlannedImage{changed}
	next, write, _ := plan.Next(input)
	assert.True(t, write, "retry")
	assert.NotEqual(t, current.Hash, next.Hash, "retry")
}

func TestPlanAndPolicyHashes(t *testing.T) {
	a, b := plannedImage("a", "1Gi"), plannedImage("b", "1Gi")
	hashes := map[string]string{}
	of := func(p v1alpha1.ClusterPlanSpec) string {
		if p.ClusterUID == "" {
			p.ClusterUID = uid
		}
		return plan.Hash(&p)
	}
	kept, retired := v1alpha1.KeptImage{Namespace: "images", Name: "a"}, v1alpha1.RetiredImage{Namespace: "images", Name: "a"}
	later := retired
	later.UnreferencedFor.Duration = time.Hour
	undone := plannedPrune("a")
	undone.Undo = true
	for name, p := range map[string]v1alpha1.ClusterPlanSpec{
		"nothing":         {},
		"another cluster": {ClusterUID: "another"},
		"policy":          {Policy: concurrencyPolicy(1)},
		"another policy":  {Policy: concurrencyPolicy(2)},
		"image":           {Images: []v1alpha1.PlannedImage{a}},
		"images":          {Images: []v1alpha1.PlannedImage{a, b}},
		"larger image":    {Images: []v1alpha1.PlannedImage{plannedImage("a", "2Gi"), b}},
		"kept":            {Kept: []v1alpha1.KeptImage{kept}},
		"retired":         {Retired: []v1alpha1.RetiredImage{retired}},
		"retired later":   {Retired: []v1alpha1.RetiredImage{later}},
		"kept beside":     {Images: []v1alpha1.PlannedImage{b}, Kept: []v1alpha1.KeptImage{kept}},
		"inquiry":         {Inquiries: []v1alpha1.PlanInquiry{newInquiry("a", 1, 1)}},
		"inquiries":       {Inquiries: []v1alpha1.PlanInquiry{newInquiry("a", 1, 1), newInquiry("b", 1, 1)}},
		"prune":           {Prunes: []v1alpha1.PlannedPrune{plannedPrune("a")}},
		"prunes":          {Prunes: []v1alpha1.PlannedPrune{plannedPrune("a"), plannedPrune("b")}},
		"prune undone":    {Prunes: []v1alpha1.PlannedPrune{undone}},
	} {
		h := of(p)
		assert.Empty(t, hashes[h], "%s hashes like %s", name, hashes[h])
		assert.LessOrEqual(t, len(h), 64)
		hashes[h] = name
	}
	assert.Equal(t, of(v1alpha1.ClusterPlanSpec{Policy: data{}}), of(v1alpha1.ClusterPlanSpec{}))
	planned := a
	planned.PlannedAt = timeAt(0)
	assert.Equal(t, of(v1alpha1.ClusterPlanSpec{Images: []v1alpha1.PlannedImage{b, planned}}), of(v1alpha1.ClusterPlanSpec{Images: []v1alpha1.PlannedImage{a, b}}))
	assert.Equal(t, "fb37cd58d54f7b19015837006b2d618b", of(v1alpha1.ClusterPlanSpec{Policy: data{"concurrency": "3"}, Images: []v1alpha1.PlannedImage{a}}),
		"a hub that is upgraded finds its plans as they were")
	assert.Equal(t, "94a589c5f14edb0f85ca25f2a48e1e9f", of(v1alpha1.ClusterPlanSpec{Kept: []v1alpha1.KeptImage{kept}, Retired: []v1alpha1.RetiredImage{later}}),
		"also what a hub from before inquiries and prunes has made")
	assert.Equal(t, of(v1alpha1.ClusterPlanSpec{Inquiries: []v1alpha1.PlanInquiry{newInquiry("a", 1, 1), newInquiry("b", 1, 1)}}),
		of(v1alpha1.ClusterPlanSpec{Inquiries: []v1alpha1.PlanInquiry{newInquiry("b", 7, 7), newInquiry("a", 3, 4)}}), "which plan was the first with them is for the hub")
	assert.Equal(t, of(v1alpha1.ClusterPlanSpec{Prunes: []v1alpha1.PlannedPrune{plannedPrune("a"), plannedPrune("b")}}), of(v1alpha1.ClusterPlanSpec{Prunes: []v1alpha1.PlannedPrune{plannedPrune("b"), plannedPrune("a")}}))
	assert.Equal(t, plan.HashPolicy(concurrencyPolicy(5)), plan.HashPolicy(data{"concurrency": "5"}), "a default counts as absent")
	assert.NotEqual(t, plan.HashPolicy(concurrencyPolicy(5)), plan.HashPolicy(concurrencyPolicy(6)))
	assert.NotEmpty(t, fmt.Sprint(plan.HashPolicy(nil)))
}

// assertNextPlan checks whether a plan is written, and that it is written once.
func assertNextPlan(t *testing.T, v plan.Input, wantWrite bool) {
	t.Helper()
	next, write, _ := plan.Next(v)
	assert.Equal(t, wantWrite, write)
	if !write {
		assert.Equal(t, *v.Current, next)
		return
	}
	assert.Equal(t, v.Current.Sequence+1, next.Sequence)
	v.Current = &next
	_, again, _ := plan.Next(v)
	assert.False(t, again)
}

func TestNextPlanCarriesKeptAndRetiredImages(t *testing.T) {
	planned := plannedImage("c", "1Gi")
	planned.PlannedAt = timeAt(0)
	view := func(current *v1alpha1.ClusterPlanSpec) plan.Input {
		return plan.Input{
			ClusterUID: uid, ReportClusterUID: uid, Report: &v1alpha1.ReportRoot{}, Current: current,
			Images:  []v1alpha1.PlannedImage{planned},
			Kept:    []v1alpha1.KeptImage{{Namespace: "images", Name: "b"}, {Namespace: "images", Name: "a"}},
			Retired: []v1alpha1.RetiredImage{{Namespace: "images", Name: "old"}, {Namespace: "images", Name: "older"}},
		}
	}
	current, write, _ := plan.Next(view(nil))
	assert.True(t, write)
	assert.Equal(t, []v1alpha1.KeptImage{{Namespace: "images", Name: "a"}, {Namespace: "images", Name: "b"}}, current.Kept)
	assert.Equal(t, view(nil).Retired, current.Retired)
	assert.Equal(t, timeAt(0), current.Images[0].PlannedAt)

	for name, tt := range map[string]struct {
		change    func(*plan.Input)
		wantWrite bool
	}{
		"nothing": {change: func(*plan.Input) {}},
		"another order": {change: func(v *plan.Input) {
			v.Kept[0], v.Kept[1] = v.Kept[1], v.Kept[0]
			v.Retired[0], v.Retired[1] = v.Retired[1], v.Retired[0]
		}},
		"since when it is planned": {change: func(v *plan.Input) { v.Images[0].PlannedAt = timeAt(7) }},
		"one is not kept":          {change: func(v *plan.Input) { v.Kept = v.Kept[1:] }, wantWrite: true},
		"one is not retired":       {change: func(v *plan.Input) { v.Retired = nil }, wantWrite: true},
		"one goes later":           {change: func(v *plan.Input) { v.Retired[0].UnreferencedFor.Duration = time.Hour }, wantWrite: true},
		"somebody edited the plan": {change: func(v *plan.Input) { v.Current.Kept = nil }, wantWrite: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := view(current.DeepCopy())
			v.Images[0].PlannedAt = planned.PlannedAt.DeepCopy()
			tt.change(&v)
			assertNextPlan(t, v, tt.wantWrite)
		})
	}
}

// BenchmarkNextPlan measures a member of which nothing has changed.
func BenchmarkNextPlan(b *testing.B) {
	v := plan.Input{ClusterUID: uid, ReportClusterUID: uid, Report: &v1alpha1.ReportRoot{}, DesiredPolicy: concurrencyPolicy(3), PolicySource: "fleet default"}
	for i := range 200 {
		v.Images = append(v.Images, plannedImage(fmt.Sprintf("image-%03d", i), "10Gi"))
		v.Kept = append(v.Kept, v1alpha1.KeptImage{Namespace: "images", Name: fmt.Sprintf("former-%03d", i)})
	}
	current, _, _ := plan.Next(v)
	v.Current = &current
	b.ReportAllocs()
	for b.Loop() {
		if _, write, _ := plan.Next(v); write {
			b.Fatal("nothing is to be written")
		}
	}
}
