package answers_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

// listedMembers are one that is well, one that fails, one that is silent, and one that never
// reported.
func listedMembers() ([]readapi.MemberSummary, []v1alpha1.MemberCluster) {
	ready := []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue)}
	stored := []v1alpha1.MemberCluster{
		{Status: v1alpha1.MemberClusterStatus{Images: &v1alpha1.MemberImages{Queued: 5}, SlotsUsed: ptr.To[int32](1), Conditions: ready, AgentVersion: "0.2", LastReport: ptr.To(metav1.NewTime(now))}},
		{Status: v1alpha1.MemberClusterStatus{Images: &v1alpha1.MemberImages{Failed: 2, Queued: 9}, SlotsUsed: ptr.To[int32](3), Conditions: ready, AgentVersion: "0.1", LastReport: ptr.To(metav1.NewTime(now.Add(-time.Hour)))}},
		{Status: v1alpha1.MemberClusterStatus{Images: &v1alpha1.MemberImages{}, SlotsUsed: ptr.To[int32](0), Conditions: ready, SilentSince: ptr.To(metav1.NewTime(now)), AgentVersion: "0.3"}},
		{},
	}
	summaries := []readapi.MemberSummary{{Counts: readapi.Counts{Images: 1, Bytes: 30}}, {Counts: readapi.Counts{Images: 3, Bytes: 10}}, {Unknown: v1alpha1.ReasonSilent, Counts: readapi.Counts{Images: 2, Bytes: 20}}, {Unknown: v1alpha1.ReasonNeverReported}}
	for i, name := range []string{"bergen", "fails", "quiet", "void"} {
		stored[i].Name, summaries[i].Member = name, name
		stored[i].Labels = map[string]string{"region": map[bool]string{true: "Nordics", false: "edge"}[i == 0]}
	}
	return summaries, stored
}

func memberNames(list readapi.MemberList) []string {
	names := []string{}
	for i := range list.Members {
		names = append(names, list.Members[i].Member)
	}
	return names
}

func TestMembersAreSortedAndFiltered(t *testing.T) {
	edge, err := labels.Parse("region=edge")
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		query     answers.MemberQuery
		want      []string
		wantTotal int
		wantNext  string
	}{
		"all":                       {answers.MemberQuery{}, []string{"bergen", "fails", "quiet", "void"}, 4, ""},
		"a page":                    {answers.MemberQuery{Limit: 2}, []string{"bergen", "fails"}, 4, "fails"},
		"the page after it":         {answers.MemberQuery{Limit: 2, After: "fails"}, []string{"quiet", "void"}, 4, ""},
		"after one that is gone":    {answers.MemberQuery{Limit: 1, After: "gone"}, []string{"quiet"}, 4, "quiet"},
		"by an offset":              {answers.MemberQuery{Limit: 1, Offset: 1}, []string{"fails"}, 4, ""},
		"beyond the end":            {answers.MemberQuery{Offset: 9}, []string{}, 4, ""},
		"the other way":             {answers.MemberQuery{Limit: 1, Descending: true}, []string{"void"}, 4, ""},
		"what needs somebody first": {answers.MemberQuery{Sort: readapi.MembersByState}, []string{"quiet", "fails", "void", "bergen"}, 4, ""},
		"longest queue":             {answers.MemberQuery{Sort: readapi.MembersByQueued}, []string{"fails", "bergen", "quiet", "void"}, 4, ""},
		"shortest, unknown last":    {answers.MemberQuery{Sort: readapi.MembersByQueued, Descending: true}, []string{"quiet", "bergen", "fails", "void"}, 4, ""},
		"slots":                     {answers.MemberQuery{Sort: readapi.MembersBySlots}, []string{"fails", "bergen", "quiet", "void"}, 4, ""},
		"failing":                   {answers.MemberQuery{Sort: readapi.MembersByFailing}, []string{"fails", "bergen", "quiet", "void"}, 4, ""},
		"images":                    {answers.MemberQuery{Sort: readapi.MembersByImages}, []string{"fails", "quiet", "bergen", "void"}, 4, ""},
		"bytes":                     {answers.MemberQuery{Sort: readapi.MembersByBytes}, []string{"bergen", "quiet", "fails", "void"}, 4, ""},
		"oldest agent":              {answers.MemberQuery{Sort: readapi.MembersByVersion}, []string{"fails", "bergen", "quiet", "void"}, 4, ""},
		"newest agent":              {answers.MemberQuery{Sort: readapi.MembersByVersion, Descending: true}, []string{"quiet", "bergen", "fails", "void"}, 4, ""},
		"not heard of for longest":  {answers.MemberQuery{Sort: readapi.MembersByLastReport}, []string{"fails", "bergen", "quiet", "void"}, 4, ""},
		"by state":                  {answers.MemberQuery{State: string(readapi.MemberSilent)}, []string{"quiet"}, 1, ""},
		"unknown":                   {answers.MemberQuery{State: readapi.StateUnknown}, []string{"quiet", "void"}, 2, ""},
		"by label":                  {answers.MemberQuery{Selector: edge}, []string{"fails", "quiet", "void"}, 3, ""},
		"a part of a name":          {answers.MemberQuery{Search: "ERG"}, []string{"bergen"}, 1, ""},
		"a part of a label":         {answers.MemberQuery{Search: "nordic"}, []string{"bergen"}, 1, ""},
		"nothing":                   {answers.MemberQuery{Search: "nowhere"}, []string{}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.query.Limit == 0 {
				tt.query.Limit = 100
			}
			summaries, stored := listedMembers()
			got := answers.ListMembers(summaries, stored, tt.query)
			assert.Equal(t, tt.want, memberNames(got))
			assert.Equal(t, tt.wantTotal, got.Total)
			assert.Equal(t, tt.wantNext, got.Next)
		})
	}
	summaries, stored := listedMembers()
	got := answers.ListMembers(summaries, stored, answers.MemberQuery{State: string(readapi.MemberReady), Limit: 1})
	assert.Equal(t, readapi.MemberStates{Total: 4, Ready: 1, Failing: 1, Silent: 1, NeverReported: 1, Unknown: 2}, got.States, "whatever the state that is shown")
}

// Every member is on one page of each order, however it is paged.
func TestEachMemberIsOnOnePage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		summaries, stored := listedMembers()
		q := answers.MemberQuery{
			Sort: rapid.SampledFrom(readapi.MemberOrders()).Draw(t, "sort"), Descending: rapid.Bool().Draw(t, "descending"), Limit: rapid.IntRange(1, 5).Draw(t, "limit"),
		}
		seen := map[string]int{}
		for {
			got := answers.ListMembers(summaries, stored, q)
			for _, name := range memberNames(got) {
				seen[name]++
			}
			if len(got.Members) < q.Limit {
				break
			}
			q.Offset += q.Limit
		}
		require.Equal(t, map[string]int{"bergen": 1, "fails": 1, "quiet": 1, "void": 1}, seen)
	})
}

func TestMemberIsDescribed(t *testing.T) {
	moving := movingFleet()
	m := &answers.MemberImage{Member: &moving.Members[0], Activity: moving.Activities["a"], Now: now, ReceivedAt: &now, Root: &v1alpha1.ReportRoot{ObservedAt: metav1.NewTime(now.Add(-time.Hour))}}
	m.Member.Spec.Connection.Pull = &v1alpha1.MemberPull{}
	m.Member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "broken"}
	m.Member.Status.Conditions = []metav1.Condition{
		condition(v1alpha1.ConditionAgentHealthy, metav1.ConditionTrue), condition(v1alpha1.ConditionQuarantined, metav1.ConditionTrue),
		condition(v1alpha1.ConditionStalled, metav1.ConditionFalse), condition(v1alpha1.ConditionReachable, metav1.ConditionFalse), condition(v1alpha1.ConditionReady, metav1.ConditionFalse),
	}
	m.Member.Status.Conditions[3].Reason = v1alpha1.ReasonUnreachable
	d := answers.DescribeMember(m, readapi.MemberSummary{Member: "a"})
	assert.Equal(t, readapi.ModePull, d.Mode)
	assert.Equal(t, now, d.ReportedAt.Time)
	assert.Equal(t, readapi.MemberQuarantined, d.State)
	var order []string
	for _, c := range d.Conditions {
		order = append(order, c.Type)
	}
	assert.Equal(t, []string{v1alpha1.ConditionReady, v1alpha1.ConditionQuarantined, v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy, v1alpha1.ConditionStalled}, order)
	assert.Equal(t, "OTHubMemberUnreachable", d.Conditions[2].Runbook)
	assert.Equal(t, "Check the address, the network and the CA in the kubeconfig.", d.Conditions[2].WhatToDo)
	assert.Empty(t, d.Conditions[3].Runbook, "nothing is to be done")
	assert.Empty(t, d.Conditions[3].WhatToDo)
	require.Len(t, d.Activity.Active, 2)
	assert.NotNil(t, d.Activity.Active[0].Expected.At)

	d = answers.DescribeMember(&answers.MemberImage{Member: &v1alpha1.MemberCluster{}, Activity: inventory.Activity{Unknown: v1alpha1.ReasonNeverReported}, Now: now}, readapi.MemberSummary{})
	assert.Equal(t, readapi.ModePush, d.Mode)
	assert.Nil(t, d.Activity)
	assert.Equal(t, v1alpha1.ReasonNeverReported, d.ActivityUnknown)
	assert.Nil(t, d.Queued, "unknown is not zero")
	assert.NotNil(t, d.Conditions)
}

// Each runbook that an answer names exists.
func TestRunbooksExist(t *testing.T) {
	var conditions []metav1.Condition
	for _, c := range []string{
		v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy, v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ConditionJoined, v1alpha1.ConditionCredentialRotated,
		v1alpha1.ConditionAgentInstalled, v1alpha1.ConditionTransfersAccounted, v1alpha1.ConditionVersionSupported, v1alpha1.ConditionServerVerified, v1alpha1.ConditionReportComplete, v1alpha1.ConditionMailboxSynced,
	} {
		conditions = append(conditions, condition(c, metav1.ConditionFalse))
	}
	named := 0
	d := answers.DescribeMember(&answers.MemberImage{Member: &v1alpha1.MemberCluster{Status: v1alpha1.MemberClusterStatus{Conditions: conditions}}}, readapi.MemberSummary{})
	for _, c := range d.Conditions {
		if c.Runbook != "" {
			named++
			assert.FileExists(t, filepath.Join("..", "..", "charts", "ot-hub", "runbooks", c.Runbook+".md"))
		}
	}
	assert.GreaterOrEqual(t, named, 10)
	values, err := os.ReadFile(filepath.Join("..", "..", "charts", "ot-hub", "values.yaml"))
	require.NoError(t, err)
	assert.Contains(t, string(values), "runbookURL: "+strings.TrimSuffix(readapi.RunbooksURL, "/"))
}

// The conditions of a member say nothing of its images: they do not explain why it is failing.
func TestFailingMemberIsExplainedByItsImages(t *testing.T) {
	m := v1alpha1.MemberCluster{}
	m.Name = "lab"
	m.Status.Images = &v1alpha1.MemberImages{Failed: 2}
	m.Status.Failing = []v1alpha1.ImageSummary{{Namespace: "farm", Name: "centos", Reason: v1alpha1.ReasonNotFound, Message: "404"}, {Namespace: "farm", Name: "debian"}}
	m.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue)}
	got := answers.ListMembers([]readapi.MemberSummary{{Member: "lab"}}, []v1alpha1.MemberCluster{m}, answers.MemberQuery{Limit: 1}).Members[0]
	assert.Equal(t, readapi.MemberFailing, got.State)
	assert.Equal(t, "NotFound", got.Reason)
	assert.Nil(t, got.Since, "since when is not known")
	named := answers.Summarize(&answers.Fleet{Members: []v1alpha1.MemberCluster{m}}).Members.Named[0]
	assert.Equal(t, "farm/centos: 404", named.Message)

	m.Status.Failing = m.Status.Failing[1:]
	named = answers.Summarize(&answers.Fleet{Members: []v1alpha1.MemberCluster{m}}).Members.Named[0]
	assert.Equal(t, "farm/debian", named.Message)
}
