package answers

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// MemberImage is what a Why is made of.
type MemberImage struct {
	Namespace, Name string
	// Member is its MemberCluster.
	Member *v1alpha1.MemberCluster
	// Unknown is why its report may be out of date; empty if it is not.
	Unknown string
	// Root of the report, nil for none, and when the hub received it, nil if unknown.
	Root       *v1alpha1.ReportRoot
	ReceivedAt *time.Time
	// Image as it is reported; nil for none.
	Image    *v1alpha1.ReportedImage
	Activity inventory.Activity
	// Grant of the member; nil for none.
	Grant  *v1alpha1.TransferGrant
	Policy PolicyInForce
	Now    time.Time
}

// ExplainImage returns what is known of an image of a member, and says why it is where it is.
func ExplainImage(m *MemberImage) readapi.Why {
	w := m.describe()
	formatTime := func(at time.Time) string { return at.UTC().Format(time.RFC3339) }
	if w.Activity != nil {
		for i := range w.Activity.Head {
			q := &w.Activity.Head[i]
			entry := explain.Import{Place: i + 1, Attempt: q.Attempts, Reason: q.Reason, NotBefore: q.NotBefore}
			q.Note = entry.PassedOver(m.Now, formatTime)
		}
	}
	snapshot := explain.FromReadAPI(m.Now, &w)
	of := explain.NewImage(snapshot)
	text := of.Waiting()
	if text == "" {
		text = of.ShownMessage()
	}
	w.Explanation = &readapi.WhyExplanation{Verdict: of.Verdict, State: of.State(), QueuedAt: of.QueuedAt, Text: text, Budget: of.BudgetChain(), Sooner: of.Sooner}
	return w
}

func (m *MemberImage) describe() readapi.Why {
	w := readapi.Why{
		Cluster: m.Member.Name, Namespace: m.Namespace, Name: m.Name, Unknown: m.Unknown,
		Image: m.Image, Planned: m.Image != nil && m.Image.Plan != nil, Budget: m.explainBudget(),
	}
	if m.ReceivedAt != nil {
		at := storedtime.Truncate(*m.ReceivedAt)
		w.ReportedAt = &at
	}
	reported := m.Activity.Reported
	if reported == nil {
		if m.isWaiting() {
			w.Expected = readapi.NewEstimate(eta.Estimate{Why: eta.UnknownNotReported})
		}
		return w
	}
	s := NewClock(m.Root, m.ReceivedAt, m.Now).snapshot(reported, m.Grant, m.Policy)
	w.Activity = explainActivity(m.Activity, s)
	for i := range reported.Head {
		if q := &reported.Head[i]; q.Namespace == m.Namespace && q.Name == m.Name {
			w.Position = &i
		}
	}
	if estimate, listed := s.ForImage(m.Namespace, m.Name); listed || m.isWaiting() {
		w.Expected = readapi.NewEstimate(believed(m.Activity, estimate))
		w.BehindHead = !listed && m.Activity.Unknown == "" && int(reported.Queued) > len(reported.Head)
	}
	return w
}

// explainActivity returns what a member imports and what waits, with estimates.
func explainActivity(a inventory.Activity, s eta.Snapshot) *readapi.WhyActivity {
	reported := a.Reported
	w := &readapi.WhyActivity{
		ObservedAt: reported.ObservedAt, Queued: reported.Queued, Rates: reported.Rates,
		Active: make([]readapi.ActiveEntry, len(reported.Active)), Head: make([]readapi.QueuedEntry, len(reported.Head)),
	}
	for i := range reported.Active {
		w.Active[i] = readapi.ActiveEntry{ActiveImport: readapi.ActiveImport(reported.Active[i]), Expected: readapi.NewEstimate(believed(a, s.Active(i)))}
	}
	for i := range reported.Head {
		w.Head[i] = readapi.QueuedEntry{QueuedImport: readapi.QueuedImport(reported.Head[i]), Expected: readapi.NewEstimate(believed(a, s.Queued(i)))}
	}
	return w
}

// isWaiting reports whether the image is still to be imported.
func (m *MemberImage) isWaiting() bool {
	return m.Image != nil && explain.AwaitsImport(m.Image.Phase)
}

// believed drops the times of an estimate where the activity may not be what the member does
// now.
func believed(a inventory.Activity, e eta.Estimate) eta.Estimate {
	if a.Unknown != "" {
		return eta.Estimate{Position: e.Position, Why: eta.UnknownNotReported}
	}
	return e
}

// explainBudget returns the chain from the fleet's policy to the number of imports.
func (m *MemberImage) explainBudget() readapi.WhyBudget {
	st := &m.Member.Status
	b := readapi.WhyBudget{
		OwnConcurrency: st.OwnConcurrency, Budget: st.Budget, Slots: st.SlotsUsed, Transfers: st.Transfers,
		Acknowledged: meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionPolicyAcknowledged),
	}
	if p := m.Policy.Policy; p != nil {
		if data, source, errs := p.ForMember(m.Member.Name, m.Member.Labels); len(errs) == 0 {
			concurrency := int32(policy.ConcurrencyAt(data, m.Now))
			b.PolicyConcurrency, b.PolicySource = &concurrency, source
		}
	}
	if fleet := m.Policy.budget(); fleet != nil {
		total := int64(fleet.Concurrency)
		b.FleetConcurrency = &total
		if limit, limited := sourceLimits(m.Policy)[m.sourceGroup()]; limited {
			b.SourceConcurrency = &limit
		}
	}
	return b
}

// sourceGroup returns the group of the image's source; empty if its activity does not tell.
func (m *MemberImage) sourceGroup() string {
	if m.Activity.Reported == nil {
		return ""
	}
	for i := range m.Activity.Reported.Active {
		if a := &m.Activity.Reported.Active[i]; a.Namespace == m.Namespace && a.Name == m.Name {
			return a.Source
		}
	}
	for i := range m.Activity.Reported.Head {
		if q := &m.Activity.Reported.Head[i]; q.Namespace == m.Namespace && q.Name == m.Name {
			return q.Source
		}
	}
	return ""
}
