package report

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// RootInput is what a root is made of.
type RootInput struct {
	Now          time.Time
	Heartbeat    time.Duration
	BootID       string
	AgentVersion string
	// Ledger of the member; nil where there is none yet.
	Ledger *v1alpha1.SyncLedger
	Totals Totals
	// Answered is the plan that all pages answer.
	Answered *v1alpha1.PlanVersion
	Orphans  Orphans
	// Transfers is what is asked of the fleet-wide budget.
	Transfers *v1alpha1.ReportedTransfers
	// Pages that are stored.
	Pages []v1alpha1.PageRef
}

// maxConditions of a root.
const maxConditions = 16

// BuildRoot sums a member up.
func BuildRoot(v RootInput) v1alpha1.ReportRoot {
	root := v1alpha1.ReportRoot{
		ObservedAt:        metav1.NewTime(v.Now.Truncate(time.Second)),
		HeartbeatSeconds:  max(1, int32((v.Heartbeat+time.Second-1)/time.Second)),
		BootID:            v.BootID,
		AgentVersion:      v.AgentVersion,
		NoLedger:          true,
		Phases:            v.Totals.Phases,
		Images:            v.Totals.Images,
		OmittedImages:     v.Totals.Omitted,
		References:        v.Totals.References,
		OldestQueuedSince: v.Totals.OldestQueued,
		AnsweredPlan:      v.Answered,
		Orphans:           v.Orphans.First,
		OrphanCount:       v.Orphans.Count,
		OrphanBytes:       v.Orphans.Bytes,
		Transfers:         v.Transfers,
		Pages:             v.Pages,
	}
	if v.Ledger != nil && v.Ledger.Status != nil {
		st := v.Ledger.Status.DeepCopy()
		root.NoLedger = false
		root.Plan, root.PlanPolicy, root.PlanPolicySource = st.Plan, st.PlanPolicy, st.PlanPolicySource
		root.Policy = st.Policy
		root.Budget, root.Slots = st.Budget, int32(len(st.Slots))
		root.Conditions = st.Conditions
	}
	root.Conditions = root.Conditions[:min(len(root.Conditions), maxConditions)]
	return root
}

// EqualRoots tells whether two roots differ in nothing but when they were observed.
func EqualRoots(a, b v1alpha1.ReportRoot) bool {
	a.ObservedAt = b.ObservedAt
	return equality.Semantic.DeepEqual(a, b)
}
