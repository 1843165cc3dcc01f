package answers

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// Fleet is what a Summary is made of. The objects belong to a cache and are not changed.
type Fleet struct {
	ElectedAt time.Time
	// RemembersSince is since when Transferred knows anything; nil for ElectedAt.
	RemembersSince *metav1.Time
	Policy         PolicyInForce
	Members        []v1alpha1.MemberCluster
	// Counts of all images, UnknownMembers by name the reason, and Activities by member.
	Counts         readapi.Counts
	UnknownMembers map[string]string
	Activities     map[string]inventory.Activity
	// Clocks of the members, by name.
	Clocks  map[string]Clock
	Images  []v1alpha1.FleetDiskImage
	Reports []v1alpha1.PruneReport
	Prunes  []v1alpha1.ImagePrune
	// HeldBySource are the slots that the fleet-wide budget counts as taken, by group, "" for
	// all; nil without a budget, or while it is unknown.
	HeldBySource map[string]int64
	// Transferred returns what History knows of a group, "" for the fleet.
	Transferred func(source string) (bytes24h *int64, trend readapi.Values)
}

// PolicyInForce is the state of the fleet's policy.
type PolicyInForce struct {
	// Policy is nil if there was never a valid one.
	Policy *policy.Policy
	// Accepted: the current ConfigMap is in force. Refused: it is missing or invalid. Neither
	// while it has not been read. Message explains it.
	Accepted, Refused bool
	// Contradicted: it is in force, and not valid for all members.
	Contradicted bool
	Message      string
	// Now by the hub's clock, which windows go by.
	Now time.Time
}

func (p *PolicyInForce) budget() *policy.Budget {
	if p.Policy == nil {
		return nil
	}
	return p.Policy.Budget(p.Now)
}

// Summarize returns the fleet on one page.
func Summarize(f *Fleet) readapi.Summary {
	s := readapi.Summary{
		ElectedAt: storedtime.Truncate(f.ElectedAt), RemembersSince: f.RemembersSince, Images: f.Counts,
		Policy: readapi.PolicyState{Accepted: f.Policy.Accepted, Message: shorten(f.Policy.Message)},
	}
	if f.Policy.Accepted {
		s.Policy.Message = ""
	}
	s.Members = summarizeMembers(f)
	s.Failing = summarizeFailing(f.Members)
	s.Transfers = summarizeTransfers(f)
	s.Rollouts = summarizeRollouts(f.Images)
	s.CanGo = findNewestReport(f.Reports, f.Prunes)
	s.Attention = findAttention(f)
	return s
}

func shorten(message string) string {
	return v1alpha1.SanitizeText(message, readapi.MaxSummaryMessage)
}

// StateOfMember returns the state of a member, and the condition that explains it.
func StateOfMember(m *v1alpha1.MemberCluster) (readapi.MemberState, *metav1.Condition) {
	st := &m.Status
	ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
	healthy := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionAgentHealthy)
	stalled := meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled)
	switch {
	case m.Spec.Quarantine != nil:
		return readapi.MemberQuarantined, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionQuarantined)
	case st.SilentSince != nil:
		return readapi.MemberSilent, cmp.Or(healthy, ready)
	case st.Images == nil && !stalled:
		return readapi.MemberNeverReported, ready
	case stalled:
		return readapi.MemberStalled, ready
	case st.Images.Failed > 0:
		return readapi.MemberFailing, ready
	case ready == nil || ready.Status != metav1.ConditionTrue:
		return readapi.MemberNotReady, ready
	default:
		return readapi.MemberReady, nil
	}
}

// explainState returns the state of a member, why, and since when; since is nil if unknown.
func explainState(m *v1alpha1.MemberCluster) (state readapi.MemberState, reason string, since *metav1.Time, message string) {
	state, condition := StateOfMember(m)
	since = m.Status.SilentSince
	if state == readapi.MemberReady {
		return state, "", nil, ""
	}
	if state == readapi.MemberFailing && len(m.Status.Failing) > 0 {
		// Its conditions may all be well: they say nothing of its images, nor since when one failed.
		first := &m.Status.Failing[0]
		return state, string(first.Reason), nil, strings.TrimSuffix(first.Namespace+"/"+first.Name+": "+first.Message, ": ")
	}
	if condition != nil {
		reason, message = condition.Reason, condition.Message
		if since == nil {
			since = &condition.LastTransitionTime
		}
	}
	return state, reason, since, message
}

// stateOrder sorts members of which a Summary names the first: those that need somebody.
var stateOrder = []readapi.MemberState{
	readapi.MemberStalled, readapi.MemberSilent, readapi.MemberFailing, readapi.MemberNeverReported, readapi.MemberNotReady, readapi.MemberQuarantined,
}

func summarizeMembers(f *Fleet) readapi.MemberStates {
	states := readapi.MemberStates{Total: len(f.Members), Unknown: len(f.UnknownMembers)}
	var named []readapi.NamedMember
	for i := range f.Members {
		m := &f.Members[i]
		state, reason, since, message := explainState(m)
		*states.CountOf(state)++
		if state != readapi.MemberReady {
			named = append(named, readapi.NamedMember{Member: m.Name, State: state, Since: since, Reason: reason, Message: shorten(message)})
		}
	}
	slices.SortFunc(named, func(a, b readapi.NamedMember) int {
		return cmp.Or(cmp.Compare(slices.Index(stateOrder, a.State), slices.Index(stateOrder, b.State)), strings.Compare(a.Member, b.Member))
	})
	states.Named = firstOf(named, readapi.MaxSummaryMembers)
	return states
}

func firstOf[T any](all []T, most int) []T { return all[:min(len(all), most)] }

func summarizeFailing(members []v1alpha1.MemberCluster) (f readapi.FailingSummary) {
	for i := range members {
		m := &members[i]
		if m.Status.Images == nil || m.Status.Images.Failed == 0 {
			continue
		}
		f.Images += int(m.Status.Images.Failed)
		f.Members++
		for _, img := range m.Status.Failing {
			img.Message = shorten(img.Message)
			f.Named = append(f.Named, readapi.FailingImage{Member: m.Name, ImageSummary: img})
		}
	}
	slices.SortStableFunc(f.Named, func(a, b readapi.FailingImage) int { return strings.Compare(a.Member, b.Member) })
	f.Named = firstOf(f.Named, readapi.MaxSummaryFailing)
	return f
}

// observedStatus returns the status of a rollout; an empty one where it is about the spec
// before.
func observedStatus(img *v1alpha1.FleetDiskImage) *v1alpha1.FleetDiskImageStatus {
	if img.Status.ObservedGeneration != img.Generation {
		return &v1alpha1.FleetDiskImageStatus{}
	}
	return &img.Status
}

// phaseOrder sorts rollouts of which a Summary names the first.
var phaseOrder = []v1alpha1.RolloutPhase{v1alpha1.RolloutFailed, v1alpha1.RolloutWaiting, v1alpha1.RolloutProgressing, ""}

func summarizeRollouts(images []v1alpha1.FleetDiskImage) readapi.RolloutSummary {
	s := readapi.RolloutSummary{Total: len(images)}
	var open []readapi.NamedRollout
	for i := range images {
		img := &images[i]
		st := observedStatus(img)
		if st.Phase == "" {
			s.Unobserved++
		} else {
			if s.Phases == nil {
				s.Phases = map[v1alpha1.RolloutPhase]int{}
			}
			s.Phases[st.Phase]++
		}
		if st.Phase != v1alpha1.RolloutSucceeded {
			open = append(open, readapi.NamedRollout{
				Name: img.Name, Version: img.Spec.Version, Phase: st.Phase, Reason: st.Reason, CurrentWave: st.CurrentWave,
				Clusters: st.Clusters, ExpectedAt: st.ExpectedAt,
			})
		}
	}
	slices.SortFunc(open, func(a, b readapi.NamedRollout) int {
		return cmp.Or(cmp.Compare(slices.Index(phaseOrder, a.Phase), slices.Index(phaseOrder, b.Phase)), strings.Compare(a.Name, b.Name))
	})
	s.Named = firstOf(open, readapi.MaxSummaryRollouts)
	return s
}

// findNewestReport returns the complete report that was completed last, without what was pruned since.
func findNewestReport(reports []v1alpha1.PruneReport, prunes []v1alpha1.ImagePrune) *readapi.PruneSummary {
	var newest *v1alpha1.PruneReport
	for i := range reports {
		r := &reports[i]
		if r.Spec.Schedule != "" || r.Status.Phase != v1alpha1.PruneReportComplete || r.Status.CompletedAt == nil {
			continue
		}
		if newest == nil || compareCompleted(newest, r) < 0 {
			newest = r
		}
	}
	if newest == nil {
		return nil
	}
	st := &newest.Status
	return &readapi.PruneSummary{
		Report: newest.Name, CompletedAt: st.CompletedAt, Digest: st.Digest, Candidates: newest.CandidatesLeft(prunes), Others: st.Others, UnknownClusters: st.Clusters.Unknown,
	}
}

// compareCompleted compares reports by when they were completed, then by name: a cache lists
// them in any order.
func compareCompleted(a, b *v1alpha1.PruneReport) int {
	return cmp.Or(a.Status.CompletedAt.Compare(b.Status.CompletedAt.Time), strings.Compare(a.Name, b.Name))
}

// attentionKinds sorts what needs a person.
var attentionKinds = []string{"ConfigMap", "FleetDiskImage", "MemberCluster", "PruneReport", "ImagePrune"}

// findAttention lists what waits for a person: a refused policy, rollouts that wait for
// approval or are paused, and whatever is Stalled, by kind and name.
func findAttention(f *Fleet) (all readapi.AttentionSummary) {
	var items []readapi.Attention
	if f.Policy.Refused {
		items = append(items, readapi.Attention{Kind: "ConfigMap", Name: "policy", Reason: "Refused", Message: shorten(f.Policy.Message)})
	}
	if f.Policy.Contradicted {
		items = append(items, readapi.Attention{Kind: "ConfigMap", Name: "policy", Reason: "PolicyContradicted", Message: shorten(f.Policy.Message)})
	}
	for i := range f.Images {
		img := &f.Images[i]
		st := observedStatus(img)
		if v1alpha1.IsHeldReason(st.Reason) || isStalled(st.Conditions) {
			items = append(items, readapi.Attention{Kind: "FleetDiskImage", Name: img.Name, Reason: st.Reason, Message: shorten(st.Message)})
		}
	}
	for i := range f.Members {
		if m := &f.Members[i]; isStalled(m.Status.Conditions) && m.Spec.Quarantine == nil {
			ready := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionReady)
			if ready == nil {
				ready = &metav1.Condition{}
			}
			items = append(items, readapi.Attention{Kind: "MemberCluster", Name: m.Name, Reason: ready.Reason, Message: shorten(ready.Message)})
		}
	}
	for i := range f.Reports {
		if r := &f.Reports[i]; isStalled(r.Status.Conditions) {
			items = append(items, readapi.Attention{Kind: "PruneReport", Name: r.Name, Reason: r.Status.Reason, Message: shorten(r.Status.Message)})
		}
	}
	for i := range f.Prunes {
		if p := &f.Prunes[i]; isStalled(p.Status.Conditions) {
			items = append(items, readapi.Attention{Kind: "ImagePrune", Name: p.Name, Reason: p.Status.Reason, Message: shorten(p.Status.Message)})
		}
	}
	slices.SortFunc(items, func(a, b readapi.Attention) int {
		return cmp.Or(cmp.Compare(slices.Index(attentionKinds, a.Kind), slices.Index(attentionKinds, b.Kind)), strings.Compare(a.Name, b.Name))
	})
	all.Total, all.Items = len(items), firstOf(items, readapi.MaxSummaryAttention)
	return all
}

func isStalled(conditions []metav1.Condition) bool {
	return meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionStalled)
}
