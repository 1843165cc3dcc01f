package ledger

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PolicyInForce is the policy in force, for those who only follow it.
type PolicyInForce struct {
	current atomic.Pointer[policy.Policy]
	known   atomic.Bool
}

// Known tells whether the policy has been read. A new leader that judged an
// attempt before would go by the defaults: another backoff and, worse, more
// retries than the policy allows.
func (p *PolicyInForce) Known() bool { return p.known.Load() }

// setInitial takes what is read first into force. What is read later is in force
// only once the ledger is written under it.
func (p *PolicyInForce) setInitial(first *policy.Policy) {
	if !p.known.Load() {
		p.current.Store(first)
		p.known.Store(true)
	}
}

// Current returns the policy in force, nil where there has never been a valid
// one.
func (p *PolicyInForce) Current() *policy.Policy { return p.current.Load() }

// replace tells whether images see another policy now that they may act upon.
func (p *PolicyInForce) replace(next *policy.Policy) bool {
	before := p.current.Swap(next)
	paused := func(p *policy.Policy) bool { return p == nil || p.Concurrency == 0 }
	return paused(before) != paused(next) || (before == nil) != (next == nil) ||
		(before != nil && next != nil && (before.StallTimeout != next.StallTimeout || before.AttemptTimeout != next.AttemptTimeout || before.Preflight != next.Preflight))
}

// Reasons of condition PolicyAccepted.
const (
	reasonAccepted = "Accepted"
	reasonInvalid  = "Invalid"
	reasonMissing  = "Missing"
)

// policyState is what the policy ConfigMap said, and what is in force after it and
// after the plan.
type policyState struct {
	policy           *policy.Policy // nil: none was ever valid
	accepted         bool           // policy is what the ConfigMap says, or would if there were one
	storePolicy      bool           // policy is to be stored, as the last valid one
	reason           string
	message          string
	keyErrors        []policy.KeyError
	configMapVersion string
	configMapUID     types.UID

	fault       string // what is wrong with the ConfigMap
	ignoredKeys string // which of its keys are ignored
	configMap   *corev1.ConfigMap
	plan        planState
	stepLimits
}

// readPolicies reads the plan and the ConfigMap, and works out what holds.
func (r *Reconciler) readPolicies(ctx context.Context, ledger *v1alpha1.SyncLedger) (policyState, error) {
	plan, err := r.readPlan(ctx, ledger)
	if err != nil {
		return policyState{}, err
	}
	own, err := r.readOwnPolicy(ctx, ledger, plan.policy != nil)
	if err != nil {
		return policyState{}, err
	}
	p := r.combineWithPlan(own, plan, ledgerStatus(ledger))
	if p.reason == reasonInvalid && (acceptedReason(ledger) != reasonInvalid || acceptedMessage(ledger) != p.message) {
		r.Events.Eventf(p.configMap, nil, corev1.EventTypeWarning, "PolicyInvalid", "ReadPolicy", "%s", p.message)
	}
	r.Policy.setInitial(p.policy)
	return p, nil
}

// readOwnPolicy reads the ConfigMap. Where it is missing or wrong, the last good
// policy, which is kept in the ledger, stays in force. planned: there is a
// policy of the hub's, which holds alone where there is no ConfigMap.
func (r *Reconciler) readOwnPolicy(ctx context.Context, ledger *v1alpha1.SyncLedger, planned bool) (policyState, error) {
	st := ledgerStatus(ledger)
	var last *policy.Policy
	if len(st.Policy) > 0 {
		if p, _, errs := policy.ParseConfigMap(st.Policy); len(errs) == 0 {
			last = &p
		}
	}
	cm := &corev1.ConfigMap{}
	err := r.Get(ctx, r.PolicyKey, cm)
	missed := planned && apierrors.IsNotFound(err) && st.PolicyVersion != ""
	if missed || (err == nil && isOlderThanLedger(cm, ledger)) {
		err = r.Live.Get(ctx, r.PolicyKey, cm)
	}
	if apierrors.IsNotFound(err) {
		p := policyState{policy: last, reason: reasonMissing, message: fmt.Sprintf("ConfigMap %s does not exist: create it with key concurrency.", r.PolicyKey)}
		p.message += describeInForce(last)
		return p, nil
	}
	if err != nil {
		return policyState{}, fmt.Errorf("reading policy ConfigMap %s: %w", r.PolicyKey, err)
	}
	parsed, unknown, errs := policy.ParseConfigMap(cm.Data)
	if len(errs) > 0 {
		texts := make([]string, len(errs))
		for i, e := range errs {
			texts[i] = e.Error()
		}
		fault := fmt.Sprintf("ConfigMap %s is not used: %s.", r.PolicyKey, strings.Join(texts, "; "))
		return policyState{policy: last, reason: reasonInvalid, message: fault + describeInForce(last), fault: fault, keyErrors: errs, configMap: cm}, nil
	}
	ignored := ""
	if len(unknown) > 0 {
		sort.Strings(unknown)
		ignored = fmt.Sprintf("; keys that are not for a cluster's own policy are ignored: %s (those that are: %s)", strings.Join(unknown, ", "), strings.Join(policy.ConfigMapKeys(), ", "))
	}
	return policyState{
		policy: &parsed, accepted: true, storePolicy: true, reason: reasonAccepted, message: "in force" + ignored, ignoredKeys: ignored,
		configMapVersion: cm.ResourceVersion, configMapUID: cm.UID,
	}, nil
}

// isOlderThanLedger tells that the cache shows a policy from before the one that the ledger
// was written under, by another leader: going by it would raise a budget again
// that was lowered. A live read tells what holds.
func isOlderThanLedger(cm *corev1.ConfigMap, ledger *v1alpha1.SyncLedger) bool {
	if ledger.Status == nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(cm.ResourceVersion, ledger.Status.PolicyVersion)
	return err == nil && order < 0
}

func describeInForce(last *policy.Policy) string {
	if last == nil {
		return " There was never a valid policy, so nothing is downloaded."
	}
	return fmt.Sprintf(" The last valid policy stays in force, concurrency %d.", last.Concurrency)
}

func (p policyState) maxPriority() int32 {
	if p.policy == nil {
		return 0
	}
	return p.policy.MaxPriority
}

func (p policyState) invalidKeys() []string {
	keys := make([]string, len(p.keyErrors))
	for i, e := range p.keyErrors {
		keys[i] = e.Key
	}
	return keys
}

// writeStatus writes the policy in force and the conditions into the ledger.
func (p policyState) writeStatus(st *v1alpha1.SyncLedgerStatus, generation int64) {
	if p.storePolicy {
		st.Policy = p.policy.ToData()
	}
	if p.accepted {
		st.PolicyVersion, st.PolicyUID = p.configMapVersion, p.configMapUID
	}
	p.plan.writeStatus(st)
	set := func(t string, holds bool, reason, message string) {
		status := metav1.ConditionFalse
		if holds {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: t, Status: status, Reason: reason, Message: message, ObservedGeneration: generation})
	}
	set(v1alpha1.ConditionPolicyAccepted, p.accepted, p.reason, p.message)
	set(v1alpha1.ConditionPlanAccepted, p.plan.acceptedPlan != nil, p.plan.reason, p.plan.message)
	granted, why, text := grant.GrantedCondition(p.terms, p.share, p.wanted)
	set(v1alpha1.ConditionGranted, granted, why, text)
	if budget := p.limits.Budget; len(st.Slots) > int(budget) {
		allows := "the policy allows"
		if budget < p.terms.Concurrency {
			allows = "the fleet-wide budget allows"
		}
		set(v1alpha1.ConditionWithinBudget, false, "OverBudget", fmt.Sprintf("%d imports run and %s %d: none is stopped, and none starts until it fits", len(st.Slots), allows, budget))
	} else {
		set(v1alpha1.ConditionWithinBudget, true, "WithinBudget", "no more imports run than the policy allows")
	}
}

// setRightsCondition says what the agent was found not to be allowed.
func (r *Reconciler) setRightsCondition(st *v1alpha1.SyncLedgerStatus, generation int64) {
	c := metav1.Condition{
		Type: v1alpha1.ConditionRightsComplete, Status: metav1.ConditionTrue, Reason: "RightsComplete",
		Message: "nothing is refused to the agent that it has to do", ObservedGeneration: generation,
	}
	if text := r.MissingRights(); text != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "RightsMissing", text
	}
	meta.SetStatusCondition(&st.Conditions, c)
}

// setConditions says what was found of the API server and of CDI.
func setConditions(st *v1alpha1.SyncLedgerStatus, generation int64, looks ...metav1.Condition) {
	for _, c := range looks {
		c.ObservedGeneration = generation
		meta.SetStatusCondition(&st.Conditions, c)
	}
}

func (r *Reconciler) setHubCondition(st *v1alpha1.SyncLedgerStatus, generation int64) {
	if c := r.HubCondition(); c != nil {
		c.ObservedGeneration = generation
		meta.SetStatusCondition(&st.Conditions, *c)
	} else {
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionHubConnected)
	}
}

func acceptedReason(ledger *v1alpha1.SyncLedger) string {
	if c := findPolicyCondition(ledger); c != nil {
		return c.Reason
	}
	return ""
}

func acceptedMessage(ledger *v1alpha1.SyncLedger) string {
	if c := findPolicyCondition(ledger); c != nil {
		return c.Message
	}
	return ""
}

func findPolicyCondition(ledger *v1alpha1.SyncLedger) *metav1.Condition {
	if ledger.Status == nil {
		return nil
	}
	return meta.FindStatusCondition(ledger.Status.Conditions, v1alpha1.ConditionPolicyAccepted)
}
