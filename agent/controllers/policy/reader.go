// Package policy determines the policy in force in a member: it reads the policy ConfigMap
// and the ClusterPlan, and combines them. The ledger's controller reconciles it, since a
// policy is in force once the SyncLedger is written under it.
package policy

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/api/kstatus"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups="",namespace=policy-namespace,resources=configmaps,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterplans,verbs=get;list;watch

// maxMessageBytes bounds the message of a condition, which may list keys of a ConfigMap. The
// API server would refuse a SyncLedger with a longer one.
const maxMessageBytes = 8192

// maxEventBytes bounds what an event quotes: the API server refuses longer notes.
const maxEventBytes = 900

// Reader reads the policy ConfigMap and the ClusterPlan. Read is called by one goroutine
// at a time.
type Reader struct {
	// Cached reads the ConfigMap, Mailbox the ClusterPlan; both may lag behind. Live always
	// reads from the API server.
	Cached  client.Reader
	Mailbox client.Reader
	Live    client.Reader
	Events  events.EventRecorder
	// Cluster is the one that a plan must be made for.
	Cluster *apidiscovery.ClusterIdentity
	// InForce gets the first policy that is read.
	InForce *InForce
	// Namespace of the agent and of its ClusterPlan.
	Namespace string
	// ConfigMapKey names the policy ConfigMap.
	ConfigMapKey types.NamespacedName

	// Now is the time by which windows are open.
	Now func() time.Time

	planServed atomic.Bool
	// lastOwn is the last valid ConfigMap, confirmedRefusal the last plan that a live read
	// has confirmed to be refused.
	lastOwn          ownLimits
	confirmedRefusal confirmedRefusal
}

// SetPlanServed is called once ClusterPlans are served and watched. Before that there is
// no plan.
func (r *Reader) SetPlanServed() { r.planServed.Store(true) }

// State is the policy that the next write of the SyncLedger puts in force, and why.
type State struct {
	// Policy has the numbers of the time of InForceAt. It is nil where there never was a valid
	// one.
	Policy *policy.Policy
	// Window is what windows say at that time.
	Window Window
	// own and planned are what ConfigMap and plan say of all times; nil for nothing.
	own, planned *policy.Policy
	// Accepted: Policy is what the ConfigMap says, or there is no ConfigMap and the hub's
	// policy alone applies.
	Accepted bool
	// store: Policy is stored in the ledger, as the last valid one.
	store            bool
	reason           string
	message          string
	keyErrors        []policy.KeyError
	configMapVersion string
	configMapUID     types.UID
	configMap        *corev1.ConfigMap // of v1alpha1.ReasonInvalid
	invalidMessage   string            // what is wrong with the ConfigMap
	ignoredKeys      string            // suffix of message that lists them
	// ownConcurrency is what the ConfigMap sets; nil for no limit.
	ownConcurrency *int32
	ownWindows     policy.Windows

	plan planState
}

// PlanAccepted is true where a ClusterPlan applies.
func (s State) PlanAccepted() bool { return s.plan.accepted != nil }

// MaxPriority of images; 0 without a policy.
func (s State) MaxPriority() int32 {
	if s.Policy == nil {
		return 0
	}
	return s.Policy.MaxPriority
}

// InvalidKeys are the keys of the ConfigMap that cannot be parsed.
func (s State) InvalidKeys() []string {
	keys := make([]string, len(s.keyErrors))
	for i, e := range s.keyErrors {
		keys[i] = e.Key
	}
	return keys
}

// Read reads plan and ConfigMap and combines them. ledger is the SyncLedger that is to be
// written next.
func (r *Reader) Read(ctx context.Context, ledger *v1alpha1.SyncLedger) (State, error) {
	var status v1alpha1.SyncLedgerStatus
	if ledger.Status != nil {
		status = *ledger.Status
	}
	plan, err := r.readPlan(ctx, status)
	if err != nil {
		return State{}, err
	}
	own, err := r.readConfigMap(ctx, status, plan.policy != nil)
	if err != nil {
		return State{}, err
	}
	s := r.combineWithPlan(own, plan, status).InForceAt(r.Now())
	s.message = v1alpha1.SanitizeText(s.message, maxMessageBytes)
	r.recordInvalidPolicy(ctx, s, status)
	r.InForce.SetInitial(s.Policy, s.Window.Opening)
	return s, nil
}

// combineWithPlan combines the member's own policy with the plan's: concurrency is the
// smaller of the two, allowedNamespaces the member's own, and for all other keys the plan's
// value applies.
func (r *Reader) combineWithPlan(s State, plan planState, status v1alpha1.SyncLedgerStatus) State {
	if s.Accepted {
		r.lastOwn = newOwnLimits(*s.own, s.configMapVersion)
	}
	s.plan, s.planned = plan, plan.policy
	if plan.policy == nil {
		// Without a ConfigMap that can be read, the last policy may be that of a former plan.
		if last, known := r.readLastOwn(status); known && s.reason != v1alpha1.ReasonAccepted && s.own != nil && len(last.Windows) > 0 {
			s.own, s.planned = &last, s.own
		}
		return s
	}
	message := "the hub's policy is in force"
	if plan.policySource != "" {
		message += " (" + plan.policySource + ")"
	}
	switch s.reason {
	case v1alpha1.ReasonAccepted:
		if own := s.ownConcurrency; own != nil && *own < plan.policy.Concurrency {
			message += fmt.Sprintf(", with the smaller concurrency of ConfigMap %s, %d", r.ConfigMapKey, *own)
		}
		s.message = message + s.ignoredKeys
	case v1alpha1.ReasonMissing:
		s.Accepted, s.reason = true, v1alpha1.ReasonAccepted
		s.own, s.message = nil, message
	case v1alpha1.ReasonInvalid:
		s.own = nil
		if last, known := r.readLastOwn(status); known {
			s.own = &last
		}
		inForce, _ := policy.CombineAt(s.own, s.planned, r.Now())
		s.message = fmt.Sprintf("%s %s, concurrency %d", s.invalidMessage, message, inForce.Concurrency)
	}
	s.store = true
	return s
}

// recordInvalidPolicy emits an event and a log line unless the ledger's condition says the same
// already.
func (r *Reader) recordInvalidPolicy(ctx context.Context, s State, status v1alpha1.SyncLedgerStatus) {
	if s.reason != v1alpha1.ReasonInvalid {
		return
	}
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionPolicyAccepted)
	if c == nil || c.Reason != v1alpha1.ReasonInvalid || c.Message != s.message {
		log.FromContext(ctx).Info("Rejected policy ConfigMap; keeping the last valid policy", "error", s.message)
		r.Events.Eventf(s.configMap, nil, corev1.EventTypeWarning, "PolicyInvalid", "ReadPolicy", "%s", v1alpha1.SanitizeText(s.message, maxEventBytes))
	}
}

// SetStatus writes policy, plan and their conditions into the status of the SyncLedger.
func (s State) SetStatus(status *v1alpha1.SyncLedgerStatus, generation int64) {
	if s.store {
		status.Policy = policy.Combine(s.own, s.planned).ToData()
	}
	if s.Accepted {
		status.PolicyVersion, status.PolicyUID = s.configMapVersion, s.configMapUID
		status.OwnConcurrency, status.OwnConcurrencyUnset = s.ownConcurrency, s.ownConcurrency == nil
		status.OwnWindows = s.ownWindows.String()
	}
	s.plan.setStatus(status)
	status.InForce = s.inForceStatus()
	setCondition(status, generation, v1alpha1.ConditionPolicyAccepted, s.Accepted, s.reason, s.message+s.Window.describe(s.Policy))
	setCondition(status, generation, v1alpha1.ConditionPlanAccepted, s.PlanAccepted(), s.plan.reason, s.plan.message)
}

func setCondition(status *v1alpha1.SyncLedgerStatus, generation int64, conditionType string, isTrue bool, reason, message string) {
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: conditionType, Status: kstatus.StatusOf(isTrue), Reason: reason, Message: v1alpha1.SanitizeText(message, maxMessageBytes), ObservedGeneration: generation,
	})
}
