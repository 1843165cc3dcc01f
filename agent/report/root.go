package report

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// RootInput is the input of BuildRoot.
type RootInput struct {
	Now          time.Time
	Heartbeat    time.Duration
	BootID       string
	AgentVersion string
	// ImageFields that agent and cluster know; nil where they are unknown.
	ImageFields []string
	// PlanFields that the agent follows.
	PlanFields []string
	// PolicyKeys that the agent knows in a plan.
	PolicyKeys []string
	// Ledger of the member; nil where there is none yet.
	Ledger *v1alpha1.SyncLedger
	Totals Totals
	// Answered is the plan that all pages answer.
	Answered *v1alpha1.PlanVersion
	// PruneNonce is the nonce by which the agent asks for its prunes.
	PruneNonce string
	Orphans    Orphans
	// Transfers is the demand of the fleet-wide budget.
	Transfers *v1alpha1.ReportedTransfers
	// Pages as they are stored.
	Pages []v1alpha1.PageRef
}

// Bounds of the conditions of a root, as in the schema.
const (
	maxConditions            = 16
	maxConditionMessageBytes = 8192
)

// BuildRoot returns the root of a report.
func BuildRoot(in RootInput) v1alpha1.ReportRoot {
	root := v1alpha1.ReportRoot{
		ObservedAt:        storedtime.Truncate(in.Now),
		HeartbeatSeconds:  max(1, int32((in.Heartbeat+time.Second-1)/time.Second)),
		BootID:            in.BootID,
		AgentVersion:      in.AgentVersion,
		ImageFields:       in.ImageFields,
		PlanFields:        in.PlanFields,
		PolicyKeys:        in.PolicyKeys,
		NoLedger:          true,
		Phases:            in.Totals.Phases,
		Images:            in.Totals.Images,
		OmittedImages:     in.Totals.Omitted,
		References:        in.Totals.References,
		OldestQueuedSince: in.Totals.OldestQueued,
		AnsweredPlan:      in.Answered,
		PruneNonce:        in.PruneNonce,
		Orphans:           in.Orphans.First,
		OrphanCount:       in.Orphans.Count,
		OrphanBytes:       in.Orphans.Bytes,
		Transfers:         in.Transfers,
		Pages:             in.Pages,
	}
	if in.Ledger != nil && in.Ledger.Status != nil {
		status := in.Ledger.Status.DeepCopy()
		root.NoLedger = false
		root.Plan, root.PlanPolicy, root.PlanPolicySource = status.Plan, status.PlanPolicy, status.PlanPolicySource
		root.Policy, root.OwnWindows, root.InForce = status.Policy, status.OwnWindows, status.InForce
		root.OwnConcurrency, root.OwnConcurrencyUnset = status.OwnConcurrency, status.OwnConcurrencyUnset
		root.Budget, root.Slots = status.Budget, int32(len(status.Slots))
		root.Conditions = status.Conditions
	}
	root.Conditions = root.Conditions[:min(len(root.Conditions), maxConditions)]
	for i := range root.Conditions {
		root.Conditions[i].Message = v1alpha1.SanitizeText(root.Conditions[i].Message, maxConditionMessageBytes)
	}
	return root
}

// EqualRoots compares two roots apart from ObservedAt.
func EqualRoots(a, b v1alpha1.ReportRoot) bool {
	a.ObservedAt = b.ObservedAt
	return equality.Semantic.DeepEqual(a, b)
}
