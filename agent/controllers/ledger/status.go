package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policycontroller "github.com/pelotech/ot-fleet/agent/controllers/policy"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// errLimitsChanged: before the write the grant that a decision rests on expired, or a window
// closed or opened.
var errLimitsChanged = errors.New("the limits changed before the write")

// writeLedger stores a decision, against the resourceVersion that it rests on.
func (r *Reconciler) writeLedger(ctx context.Context, syncLedger *v1alpha1.SyncLedger, policyState policycontroller.State, limits stepLimits, decision ledger.Decision, leftovers, held []string) error {
	next := v1alpha1.SyncLedgerStatus{}
	if syncLedger.Status != nil {
		syncLedger.Status.DeepCopyInto(&next)
	}
	next.Budget, next.Slots = decision.Budget, decision.Slots
	next.Grant = grant.NewLedgerGrant(limits.terms, r.Grants.BootID(), limits.share)
	policyState.SetStatus(&next, syncLedger.Generation)
	r.setConditions(&next, syncLedger.Generation, limits, leftovers, held)
	if syncLedger.Status != nil && !decision.Changed && equality.Semantic.DeepEqual(*syncLedger.Status, next) {
		r.lastLedger.Store(syncLedger.DeepCopy())
		return nil
	}
	if !r.limitsStillHold(policyState, limits) {
		return errLimitsChanged
	}
	syncLedger.Status = &next
	if err := r.Status().Update(ctx, syncLedger); err != nil {
		return fmt.Errorf("storing %d slots under a budget of %d in SyncLedger %s/%s: %w", len(decision.Slots), decision.Budget, r.Namespace, v1alpha1.LedgerName, err)
	}
	r.lastLedger.Store(syncLedger.DeepCopy())
	return nil
}

// maxConditionBytes bounds the message of a condition, which may quote an API server.
const maxConditionBytes = 2048

// setConditions sets all conditions but those of the policy.
func (r *Reconciler) setConditions(status *v1alpha1.SyncLedgerStatus, generation int64, limits stepLimits, leftovers, held []string) {
	conditions := []metav1.Condition{
		r.grantedCondition(limits, status.Slots), withinBudgetCondition(limits, len(status.Slots)), reclaimedCondition(leftovers, held),
		r.rightsCondition(), r.AccountGuardCondition(), r.ImportGuardCondition(), r.OneDownloadCondition(),
	}
	if c := r.HubCondition(); c != nil {
		conditions = append(conditions, *c)
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionHubConnected)
	}
	for _, c := range conditions {
		c.ObservedGeneration, c.Message = generation, v1alpha1.SanitizeText(c.Message, maxConditionBytes)
		meta.SetStatusCondition(&status.Conditions, c)
	}
}

func newCondition(conditionType string, isTrue bool, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: kstatus.StatusOf(isTrue), Reason: reason, Message: message}
}

func (r *Reconciler) grantedCondition(limits stepLimits, slots []v1alpha1.Slot) metav1.Condition {
	_, demand := r.queueFront(limits, slots)
	granted, reason, message := grant.GrantedCondition(limits.terms, limits.share, demand.Wanted)
	return newCondition(v1alpha1.ConditionGranted, granted, reason, message)
}

func withinBudgetCondition(limits stepLimits, slots int) metav1.Condition {
	budget := limits.limits.Budget
	if slots <= int(budget) {
		return newCondition(v1alpha1.ConditionWithinBudget, true, v1alpha1.ReasonWithinBudget, "no more imports run than the policy allows")
	}
	limit := "the policy allows"
	if budget < limits.terms.Concurrency {
		limit = "the fleet-wide budget allows"
	}
	return newCondition(v1alpha1.ConditionWithinBudget, false, v1alpha1.ReasonOverBudget,
		fmt.Sprintf("%d imports run and %s %d: the running ones finish, and none starts until there are fewer", slots, limit, budget))
}

// maxNamedLeftovers bounds how many leftovers a condition names.
const maxNamedLeftovers = 5

func reclaimedCondition(leftovers, held []string) metav1.Condition {
	if len(leftovers)+len(held) == 0 {
		return newCondition(v1alpha1.ConditionSlotsReclaimed, true, v1alpha1.ReasonSlotsReclaimed, "every slot is of an image that exists")
	}
	var sentences []string
	if len(leftovers) > 0 {
		sentences = append(sentences, fmt.Sprintf("%d imports belong to no VMDiskImage, or to one that is being deleted without the agent's finalizer, and no image gets a slot for each until DataVolume, claim and Pods of that name are gone: %s. The agent deletes them: see their finalizers and events for what keeps them", len(leftovers), joinLeftovers(leftovers)))
	}
	if len(held) > 0 {
		sentences = append(sentences, fmt.Sprintf("%d imports have ended, and no other image gets their slots until their objects are gone: %s. The message of each image names what is still there", len(held), joinLeftovers(held)))
	}
	return newCondition(v1alpha1.ConditionSlotsReclaimed, false, v1alpha1.ReasonLeftoversHoldSlots, strings.Join(sentences, ". "))
}

func joinLeftovers(keys []string) string {
	return v1alpha1.JoinFirst(keys, maxNamedLeftovers, len(keys))
}

func (r *Reconciler) rightsCondition() metav1.Condition {
	if missing := r.MissingRights(); missing != "" {
		return newCondition(v1alpha1.ConditionRightsComplete, false, v1alpha1.ReasonRightsMissing, missing)
	}
	return newCondition(v1alpha1.ConditionRightsComplete, true, v1alpha1.ReasonRightsComplete, "the agent has all the rights it needs")
}

// publishDecision passes a stored decision on: to metrics, queue, report, and the images
// that it concerns.
func (r *Reconciler) publishDecision(ctx context.Context, policyState policycontroller.State, limits stepLimits, decision ledger.Decision) {
	r.Metrics.SetSlots(len(decision.Slots), decision.Budget)
	r.Metrics.SetPolicy(policyState.Accepted, policyState.InvalidKeys())
	r.Metrics.SetPlanAccepted(policyState.PlanAccepted())
	r.Metrics.SetConditions(r.lastLedger.Load().Status.Conditions)
	for _, slot := range decision.Freed {
		delete(r.createdAt, ledger.DataVolumeKey(slot))
		delete(r.unlistedSince, ledger.DataVolumeKey(slot))
		delete(r.claimsSince, ledger.DataVolumeKey(slot))
		r.forgetCreationProblem(ledger.DataVolumeKey(slot))
	}
	for _, slot := range decision.Admitted {
		if item, queued := r.Queue.Get(slot.Image.UID); queued && slot.Attempt == 1 {
			r.Metrics.ObserveQueueDuration(slot.StartedAt.Sub(item.Key.Time.Time))
		}
	}
	startedAt := make(map[string]time.Time, len(decision.Slots))
	for _, slot := range decision.Slots {
		startedAt[ledger.DataVolumeKey(slot)] = slot.StartedAt.Time
	}
	r.Ages.TrackOnly(startedAt)
	r.Queue.SetMaxPriority(policyState.MaxPriority())
	r.publishDemand(limits, policyState.Window, decision.Slots)
	r.Queue.SetClosed(!policyState.Window.NextEdge.IsZero(), limits.terms.Concurrency == 0 && policyState.Window.Opening != nil, r.Now())
	r.Metrics.SetWindowOpens(policyState.Window.Opening)
	change := r.PolicyInForce.Replace(policyState.Policy, policyState.Window.Opening)
	if change.AllowedNamespaces {
		r.EnqueuePlan()
	}
	if change.WaitingImages {
		withSlots := make([]v1alpha1.ImageKey, len(decision.Slots))
		for i, slot := range decision.Slots {
			withSlots[i] = slot.Image
		}
		r.EnqueueUnready(ctx, withSlots...)
	}
}
