package answers

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/remedy"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// unwanted are the conditions that a healthy member does not have.
var unwanted = []string{v1alpha1.ConditionStalled, v1alpha1.ConditionReconciling, v1alpha1.ConditionQuarantined}

// runbooks say what to do about a condition.
var runbooks = map[string]string{
	v1alpha1.ConditionReachable:          "OTHubMemberUnreachable",
	v1alpha1.ConditionAgentHealthy:       "OTHubMemberSilent",
	v1alpha1.ConditionPolicyAcknowledged: "OTHubPlanNotAcknowledged",
	v1alpha1.ConditionJoined:             "OTHubJoinWaits",
	v1alpha1.ConditionCredentialRotated:  "OTHubTokenNotRotated",
	v1alpha1.ConditionAgentInstalled:     "OTHubAgentNotInstalled",
	v1alpha1.ConditionTransfersAccounted: "OTHubMemberExceedsGrants",
	v1alpha1.ConditionVersionSupported:   "OTHubMemberVersionUnsupported",
	v1alpha1.ConditionReportComplete:     "OTHubUnlistedReports",
	v1alpha1.ConditionMailboxSynced:      "OTHubRelayErrors",
}

// DescribeMember returns one member; m.Image is nil.
func DescribeMember(m *MemberImage, summary readapi.MemberSummary) readapi.MemberDetail {
	member := m.Member
	st := &member.Status
	d := readapi.MemberDetail{
		Member: summarizeMember(summary, member), Mode: readapi.ModePush, AgentNamespace: member.Spec.AgentNamespace, Shard: st.Shard,
		CreatedAt: member.CreationTimestamp, SilentSince: st.SilentSince, Plan: st.Plan, AcknowledgedPlan: st.AcknowledgedPlan,
		Conditions: describeConditions(st.Conditions), BudgetChain: m.explainBudget(), ActivityUnknown: m.Activity.Unknown, ImageCounts: st.Images,
	}
	if member.Spec.Connection.Pull != nil {
		d.Mode = readapi.ModePull
	}
	if m.ReceivedAt != nil {
		at := storedtime.Truncate(*m.ReceivedAt)
		d.ReportedAt = &at
	}
	if m.Activity.Reported != nil {
		d.Activity = explainActivity(m.Activity, NewClock(m.Root, m.ReceivedAt, m.Now).snapshot(m.Activity.Reported, m.Grant, m.Policy))
	}
	return d
}

// describeConditions returns conditions, those that are not as wanted first, and Ready before
// all others.
func describeConditions(conditions []metav1.Condition) []readapi.MemberCondition {
	all := make([]readapi.MemberCondition, 0, len(conditions))
	for i := range conditions {
		c := &conditions[i]
		d := readapi.MemberCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime, Wanted: metav1.ConditionTrue}
		if slices.Contains(unwanted, c.Type) {
			d.Wanted = metav1.ConditionFalse
		}
		if d.Status != d.Wanted {
			d.Runbook, d.WhatToDo = runbooks[c.Type], remedy.ForMember(c.Type, c.Reason)
		}
		all = append(all, d)
	}
	rank := func(c *readapi.MemberCondition) int {
		switch {
		case c.Type == v1alpha1.ConditionReady:
			return 0
		case c.Status != c.Wanted:
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(all, func(a, b readapi.MemberCondition) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Type, b.Type))
	})
	return all
}
