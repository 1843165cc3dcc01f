package answers

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// MemberQuery selects and sorts members. Empty fields do not limit them.
type MemberQuery struct {
	// Search is a part of a name, or of a label's value.
	Search string
	// State is a MemberState or readapi.StateUnknown.
	State    string
	Selector labels.Selector
	// Sort is one of readapi.MemberOrders.
	Sort       string
	Descending bool
	// After is the name of the last member of the page before, for a list by name; Offset is
	// how many are left out, for others.
	After         string
	Offset, Limit int
}

// ListMembers returns the members that match, from what the index knows of each and its
// MemberCluster.
func ListMembers(summaries []readapi.MemberSummary, stored []v1alpha1.MemberCluster, q MemberQuery) readapi.MemberList {
	byName := make(map[string]*v1alpha1.MemberCluster, len(stored))
	for i := range stored {
		byName[stored[i].Name] = &stored[i]
	}
	list := readapi.MemberList{Members: []readapi.Member{}}
	var matching []readapi.Member
	for _, summary := range summaries {
		m := summarizeMember(summary, byName[summary.Member])
		if !q.matches(&m) {
			continue
		}
		list.States.Total++
		*list.States.CountOf(m.State)++
		if m.Unknown != "" {
			list.States.Unknown++
		}
		if q.State == "" || q.State == string(m.State) || q.State == readapi.StateUnknown && m.Unknown != "" {
			matching = append(matching, m)
		}
	}
	list.Total = len(matching)
	slices.SortFunc(matching, q.compare)
	from := min(q.Offset, len(matching))
	if q.After != "" {
		from, _ = slices.BinarySearchFunc(matching, q.After+"\x00", func(m readapi.Member, name string) int { return strings.Compare(m.Member, name) })
	}
	list.Members = append(list.Members, firstOf(matching[from:], q.Limit)...)
	if to := from + len(list.Members); to < len(matching) && len(list.Members) > 0 && q.isPagedByName() {
		list.Next = matching[to-1].Member
	}
	return list
}

// isPagedByName: a page ends with a name that the next one begins after.
func (q *MemberQuery) isPagedByName() bool {
	return (q.Sort == "" || q.Sort == readapi.MembersByName) && !q.Descending && q.Offset == 0
}

func (q *MemberQuery) matches(m *readapi.Member) bool {
	if q.Selector != nil && !q.Selector.Matches(labels.Set(m.Labels)) {
		return false
	}
	search := strings.ToLower(q.Search)
	found := strings.Contains(strings.ToLower(m.Member), search)
	for _, value := range m.Labels {
		found = found || strings.Contains(strings.ToLower(value), search)
	}
	return found
}

// compare sorts members. What is unknown is last in both orders, and the name decides last.
func (q *MemberQuery) compare(a, b readapi.Member) int {
	x, y := memberKey(q.Sort, &a), memberKey(q.Sort, &b)
	if x.known != y.known {
		return rankOfKnown(x.known) - rankOfKnown(y.known)
	}
	byName := strings.Compare(a.Member, b.Member)
	order := cmp.Or(cmp.Compare(x.number, y.number), strings.Compare(x.text, y.text), byName)
	if q.Descending {
		return -order
	}
	return order
}

// sortKey is what a member is sorted by.
type sortKey struct {
	number int64
	text   string
	known  bool
}

func rankOfKnown(known bool) int {
	if known {
		return 0
	}
	return 1
}

func memberKey(sort string, m *readapi.Member) sortKey {
	mostFirst := func(n *int32) sortKey {
		if n == nil {
			return sortKey{}
		}
		return sortKey{number: -int64(*n), known: true}
	}
	switch sort {
	case readapi.MembersByState:
		return sortKey{number: rankOfState(m.State), known: true}
	case readapi.MembersByQueued:
		return mostFirst(m.Queued)
	case readapi.MembersBySlots:
		return mostFirst(m.SlotsUsed)
	case readapi.MembersByFailing:
		return mostFirst(m.FailingTotal)
	case readapi.MembersByImages:
		return sortKey{number: -int64(m.Images), known: m.State != readapi.MemberNeverReported}
	case readapi.MembersByBytes:
		return sortKey{number: -m.Bytes, known: m.State != readapi.MemberNeverReported}
	case readapi.MembersByVersion:
		return sortKey{text: m.AgentVersion, known: m.AgentVersion != ""}
	case readapi.MembersByLastReport:
		if m.LastReport == nil {
			return sortKey{}
		}
		return sortKey{number: m.LastReport.Unix(), known: true}
	default:
		return sortKey{known: true}
	}
}

// rankOfState has what needs somebody first, and Ready last.
func rankOfState(state readapi.MemberState) int64 {
	if at := slices.Index(stateOrder, state); at >= 0 {
		return int64(at)
	}
	return int64(len(stateOrder))
}

func summarizeMember(summary readapi.MemberSummary, stored *v1alpha1.MemberCluster) readapi.Member {
	m := readapi.Member{MemberSummary: summary}
	if stored == nil {
		stored = &v1alpha1.MemberCluster{}
	}
	conditionStatus := func(t string) metav1.ConditionStatus {
		if c := meta.FindStatusCondition(stored.Status.Conditions, t); c != nil {
			return c.Status
		}
		return metav1.ConditionUnknown
	}
	st := &stored.Status
	m.Labels = stored.Labels
	m.State, m.Reason, m.Since, _ = explainState(stored)
	m.Ready, m.Reachable = conditionStatus(v1alpha1.ConditionReady), conditionStatus(v1alpha1.ConditionReachable)
	m.AgentHealthy, m.PolicyAcknowledged = conditionStatus(v1alpha1.ConditionAgentHealthy), conditionStatus(v1alpha1.ConditionPolicyAcknowledged)
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); c != nil {
		m.Message = c.Message
	}
	if q := stored.Spec.Quarantine; q != nil {
		m.Quarantine = q.Reason
	}
	m.Transfers = st.Transfers
	m.ClusterUID, m.AgentVersion, m.Policy = string(st.ClusterUID), st.AgentVersion, st.Policy
	m.Budget, m.SlotsUsed, m.LastReport, m.Failing = st.Budget, st.SlotsUsed, st.LastReport, st.Failing
	m.OwnConcurrency = st.OwnConcurrency
	if st.Images != nil {
		m.Queued, m.Syncing, m.FailingTotal = &st.Images.Queued, &st.Images.Syncing, &st.Images.Failed
	}
	return m
}
