package answers_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func condition(of string, status metav1.ConditionStatus) metav1.Condition {
	return metav1.Condition{Type: of, Status: status, Reason: "Because", Message: "message", LastTransitionTime: metav1.NewTime(now)}
}

func TestStateOfMember(t *testing.T) {
	reported := &v1alpha1.MemberImages{}
	ready := []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue)}
	stalled := []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse), condition(v1alpha1.ConditionStalled, metav1.ConditionTrue)}
	for name, tt := range map[string]struct {
		spec   v1alpha1.MemberClusterSpec
		status v1alpha1.MemberClusterStatus
		want   readapi.MemberState
	}{
		"all is well":           {status: v1alpha1.MemberClusterStatus{Images: reported, Conditions: ready}, want: readapi.MemberReady},
		"nothing is known":      {want: readapi.MemberNeverReported},
		"silent":                {status: v1alpha1.MemberClusterStatus{Images: reported, Conditions: ready, SilentSince: ptr.To(metav1.NewTime(now))}, want: readapi.MemberSilent},
		"silent before all":     {status: v1alpha1.MemberClusterStatus{SilentSince: ptr.To(metav1.NewTime(now)), Conditions: stalled}, want: readapi.MemberSilent},
		"failed images":         {status: v1alpha1.MemberClusterStatus{Images: &v1alpha1.MemberImages{Failed: 1}, Conditions: ready}, want: readapi.MemberFailing},
		"a person is needed":    {status: v1alpha1.MemberClusterStatus{Images: reported, Conditions: stalled}, want: readapi.MemberStalled},
		"needed from the start": {status: v1alpha1.MemberClusterStatus{Conditions: stalled}, want: readapi.MemberStalled},
		"on its way":            {status: v1alpha1.MemberClusterStatus{Images: reported}, want: readapi.MemberNotReady},
		"in quarantine":         {spec: v1alpha1.MemberClusterSpec{Quarantine: &v1alpha1.MemberQuarantine{Reason: "r"}}, status: v1alpha1.MemberClusterStatus{Images: reported, Conditions: ready}, want: readapi.MemberQuarantined},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := answers.StateOfMember(&v1alpha1.MemberCluster{Spec: tt.spec, Status: tt.status})
			assert.Equal(t, tt.want, got)
			assert.True(t, got != readapi.MemberReady || why == nil)
		})
	}
}

// A summary is a few kB whatever the fleet, each member has one state, and what it leaves out is
// counted.
func TestSummaryIsBounded(t *testing.T) {
	long := strings.Repeat("long message ", 200)
	for _, size := range []int{1, 1000} {
		f := answers.Fleet{Activities: map[string]inventory.Activity{}, Policy: answers.PolicyInForce{Refused: true, Message: long}}
		for i := range size {
			m := v1alpha1.MemberCluster{}
			m.Name = fmt.Sprintf("member-%04d", i)
			m.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionStalled, metav1.ConditionTrue), condition(v1alpha1.ConditionReady, metav1.ConditionFalse)}
			m.Status.Conditions[1].Message = long
			m.Status.Images = &v1alpha1.MemberImages{Failed: 7}
			for range 5 {
				m.Status.Failing = append(m.Status.Failing, v1alpha1.ImageSummary{Namespace: "farm", Name: "image", Message: long})
			}
			f.Members = append(f.Members, m)
			f.Images = append(f.Images, *apitest.FleetDiskImage(m.Name).WithGeneration(1).WithStatus(v1alpha1.FleetDiskImageStatus{ObservedGeneration: 1, Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval, Message: long}).Obj())
		}
		s := answers.Summarize(&f)
		text, err := json.Marshal(s)
		require.NoError(t, err)
		assert.Less(t, len(text), 14<<10)
		assert.Equal(t, size, s.Members.Stalled)
		assert.Equal(t, 7*size, s.Failing.Images)
		assert.Equal(t, 2*size+1, s.Attention.Total)
		assert.Equal(t, size, s.Rollouts.Total)
		assert.Equal(t, size, s.Transfers.Fleet.UnknownMembers, "no member tells what it downloads")
		assert.Nil(t, s.Transfers.Fleet.BytesPerSecond, "which is not nothing")
		assert.Nil(t, s.Transfers.Fleet.Limit)
	}
}

func TestStatesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := answers.Fleet{}
		for range rapid.IntRange(0, 20).Draw(t, "members") {
			m := v1alpha1.MemberCluster{}
			if rapid.Bool().Draw(t, "reported") {
				m.Status.Images = &v1alpha1.MemberImages{Failed: int32(rapid.IntRange(0, 1).Draw(t, "failed"))}
			}
			if rapid.Bool().Draw(t, "silent") {
				m.Status.SilentSince = ptr.To(metav1.NewTime(now))
			}
			if rapid.Bool().Draw(t, "ready") {
				m.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue)}
			}
			f.Members = append(f.Members, m)
		}
		s := answers.Summarize(&f).Members
		sum := 0
		for _, state := range readapi.AllMemberStates() {
			sum += *s.CountOf(state)
		}
		assert.Equal(t, s.Total, sum)
		assert.Len(t, s.Named, min(s.Total-s.Ready, readapi.MaxSummaryMembers))
	})
}

// A status about the spec before says nothing of the version that is wanted now.
func TestUnobservedRolloutIsUnknown(t *testing.T) {
	st := v1alpha1.FleetDiskImageStatus{ObservedGeneration: 1, Phase: v1alpha1.RolloutSucceeded, Reason: v1alpha1.ReasonAwaitingApproval, Clusters: v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}}
	s := answers.Summarize(&answers.Fleet{Images: []v1alpha1.FleetDiskImage{
		*apitest.FleetDiskImage("new").WithVersion("2.1.0").WithGeneration(2).WithStatus(st).Obj(),
		*apitest.FleetDiskImage("done").WithGeneration(1).WithStatus(st).Obj(),
	}})
	assert.Equal(t, readapi.RolloutSummary{
		Total: 2, Unobserved: 1, Phases: map[v1alpha1.RolloutPhase]int{v1alpha1.RolloutSucceeded: 1}, Named: []readapi.NamedRollout{{Name: "new", Version: "2.1.0"}},
	}, s.Rollouts)
	assert.Len(t, s.Attention.Items, 1)
	assert.Equal(t, "done", s.Attention.Items[0].Name)
}

// A cache lists objects in any order: which of them a summary names does not change with it.
func TestSummaryHasNoOrderOfItsOwn(t *testing.T) {
	stalled := []metav1.Condition{condition(v1alpha1.ConditionStalled, metav1.ConditionTrue), condition(v1alpha1.ConditionReady, metav1.ConditionFalse)}
	completed := metav1.NewTime(now)
	var f answers.Fleet
	for i := range 4 {
		name := fmt.Sprintf("object-%d", i)
		m := v1alpha1.MemberCluster{}
		m.Name, m.Status.Conditions = name, stalled
		f.Members = append(f.Members, m)
		f.Images = append(f.Images, *apitest.FleetDiskImage(name).WithGeneration(1).WithStatus(v1alpha1.FleetDiskImageStatus{ObservedGeneration: 1, Reason: v1alpha1.ReasonAwaitingApproval}).Obj())
		r := v1alpha1.PruneReport{}
		r.Name, r.Status.Phase, r.Status.CompletedAt, r.Status.Conditions = name, v1alpha1.PruneReportComplete, &completed, stalled
		f.Reports = append(f.Reports, r)
		p := v1alpha1.ImagePrune{}
		p.Name, p.Status.Conditions = name, stalled
		f.Prunes = append(f.Prunes, p)
	}
	want := answers.Summarize(&f)
	var named []string
	for _, item := range want.Attention.Items {
		named = append(named, item.Kind+" "+item.Name)
	}
	assert.Equal(t, []string{
		"FleetDiskImage object-0", "FleetDiskImage object-1", "FleetDiskImage object-2", "FleetDiskImage object-3",
		"MemberCluster object-0", "MemberCluster object-1", "MemberCluster object-2", "MemberCluster object-3",
		"PruneReport object-0", "PruneReport object-1",
	}, named)
	slices.Reverse(f.Members)
	slices.Reverse(f.Images)
	slices.Reverse(f.Reports)
	slices.Reverse(f.Prunes)
	assert.Equal(t, want, answers.Summarize(&f))
}

// The report that was completed last says what can go.
func TestNewestReportIsShown(t *testing.T) {
	report := func(name string, completed *time.Duration, phase v1alpha1.PruneReportPhase) v1alpha1.PruneReport {
		r := v1alpha1.PruneReport{}
		r.Name, r.Status.Phase = name, phase
		if completed != nil {
			r.Status.CompletedAt = ptr.To(metav1.NewTime(now.Add(*completed)))
		}
		return r
	}
	hour, day := -time.Hour, -24*time.Hour
	s := answers.Summarize(&answers.Fleet{Reports: []v1alpha1.PruneReport{
		report("old", &day, v1alpha1.PruneReportComplete), report("new", &hour, v1alpha1.PruneReportComplete), report("running", nil, ""),
	}})
	require.NotNil(t, s.CanGo)
	assert.Equal(t, "new", s.CanGo.Report)

	pruned := v1alpha1.ImagePrune{Spec: v1alpha1.ImagePruneSpec{ReportRef: v1alpha1.PruneReportRef{Name: "new", Digest: "5d1f"}}}
	pruned.Status = v1alpha1.ImagePruneStatus{Targets: v1alpha1.TargetCounts{Pruned: 2}, PrunedBytes: 10}
	reviewed := report("new", &hour, v1alpha1.PruneReportComplete)
	reviewed.Status.Digest, reviewed.Status.Candidates = "5d1f", v1alpha1.PruneTotal{Count: 3, Bytes: 30}
	s = answers.Summarize(&answers.Fleet{Reports: []v1alpha1.PruneReport{reviewed}, Prunes: []v1alpha1.ImagePrune{pruned}})
	assert.Equal(t, v1alpha1.PruneTotal{Count: 1, Bytes: 20}, s.CanGo.Candidates)
	assert.Nil(t, answers.Summarize(&answers.Fleet{}).CanGo)
}

func TestVersionsAreMarked(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").WithVersion("2.0.0").Obj()
	img.Spec.Placement = v1alpha1.Placement{ClusterNames: []string{"a", "b", "c"}}
	old := v1alpha1.VersionStatus{Version: "1.0.0", Namespace: "images", Image: "ubuntu-1.0.0"}
	img.Status.Versions = []v1alpha1.VersionStatus{{Version: "2.0.0", Namespace: "images", Image: img.ImageNameForVersion("2.0.0")}, old}
	images := []v1alpha1.FleetDiskImage{*img}
	rows := answers.VersionRows(images, nil)
	require.Len(t, rows, 2)
	assert.True(t, rows[0].Current)
	assert.Equal(t, "ubuntu-1.0.0", rows[1].Name)
	assert.Empty(t, answers.VersionRows(images, []string{"debian"}))

	var columns []*v1alpha1.MemberCluster
	for _, name := range []string{"a", "b", "c", "elsewhere"} {
		m := &v1alpha1.MemberCluster{}
		m.Name = name
		columns = append(columns, m)
	}
	ready, absent, unknown := byte(readapi.CellReady), byte(readapi.CellAbsent), byte(readapi.CellUnknown)
	cells := []byte{
		ready, absent, unknown, absent,
		ready, ready, ready, ready,
	}
	answers.MarkVersions(rows, cells, images, columns)
	assert.Equal(t, []byte{
		ready, byte(readapi.CellPlanned), unknown, absent,
		ready, ready | byte(readapi.CellBehind), ready, ready,
	}, cells, "one that is not placed is not behind, and of an unknown one it is unknown")
}
