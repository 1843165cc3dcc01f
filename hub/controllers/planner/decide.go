package planner

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/mailbox"
	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// reasonNamespaceTaken stands in condition Ready of a member that has no
// namespace on the hub.
const reasonNamespaceTaken = "NamespaceTaken"

// snapshot is all that is decided upon for one member.
type snapshot struct {
	now        time.Time
	hubVersion string
	member     *v1alpha1.MemberCluster
	namespace  *corev1.Namespace // nil: not there
	plan       *v1alpha1.ClusterPlan
	grant      *v1alpha1.TransferGrant
	root       report.Root
	totals     *inventory.Totals
	connection memberstatus.Connection
	syncResult mailbox.Findings
	joined     *metav1.Condition
	installed  *metav1.Condition
	// syncStalled is what the watchdog says.
	syncStalled string
	// shard is who carries for it; empty: nobody is assigned.
	shard  string
	policy policy.State
	// transfers is its part in the fleet-wide budget, nil for none. safe is the share
	// without a grant that there is room for; without safeKnown nobody can say.
	transfers *v1alpha1.MemberTransfers
	safe      int32
	safeKnown bool
	// images is what the FleetDiskImages ask of it; without imagesKnown nobody knows.
	images      rollout.DesiredImages
	imagesKnown bool
	// inquiries and prunes are what PruneReports and ImagePrunes ask of it; without
	// requestsKnown nobody knows.
	inquiries     []types.UID
	prunes        []v1alpha1.PlannedPrune
	requestsKnown bool
	// holder is the other member that its cluster belongs to; empty: none.
	holder string
	// read: all stored reports have been. Before, a member that reports looks like
	// one that never has.
	reportsSynced bool
	// watchedSince is since when this process reads reports.
	watchedSince time.Time
	// known: they have been, and the fleet's policy as well. Before, nothing may be
	// planned.
	mayPlan bool
}

// decision is what is to be done for one member.
type decision struct {
	createNamespace bool
	// plan is to be written; nil: it stays.
	plan   *v1alpha1.ClusterPlan
	status v1alpha1.MemberClusterStatus
	// withdraw: plan and grant on the hub are to go.
	withdrawMailbox bool
	// recheckAfter which to look again; 0 for never.
	recheckAfter time.Duration
}

// namespaceRetryDelay is how often it is looked whether somebody else's namespace has
// made room.
const namespaceRetryDelay = 30 * time.Second

// isMemberNamespace tells whether a namespace is that of a member: it was made for it.
func isMemberNamespace(ns *corev1.Namespace, member string) bool {
	return ns.Labels[v1alpha1.LabelMember] == member
}

func decide(s snapshot) decision {
	var d decision
	name := v1alpha1.MemberNamespacePrefix + s.member.Name
	obstacle := ""
	switch {
	case s.namespace == nil:
		d.createNamespace = true
	case !isMemberNamespace(s.namespace, s.member.Name):
		obstacle = fmt.Sprintf("namespace %s exists on the hub and is not of this member: delete it, or, if it is to be its, label it: kubectl label namespace %s %s=%s",
			name, name, v1alpha1.LabelMember, s.member.Name)
	case !s.namespace.DeletionTimestamp.IsZero():
		obstacle = fmt.Sprintf("namespace %s is being deleted on the hub: it is made anew when it is gone", name)
	}

	var desired map[string]string
	view := memberstatus.Input{
		Now: s.now, HubVersion: s.hubVersion, Member: s.member, Connection: s.connection, Shard: s.shard, Transfers: s.transfers, SyncStalled: s.syncStalled, Joined: s.joined, Installed: s.installed,
		Report: s.root.Report, ReportClusterUID: s.root.ClusterUID, ReceivedAt: s.root.ReceivedAt, WatchedSince: s.watchedSince, IncompleteSince: s.root.IncompleteSince,
		OtherClusterUID: s.syncResult.OtherCluster, Holder: s.holder, ReportOlder: s.syncResult.ReportOlder, UnsupportedFields: s.syncResult.DroppedFields, Totals: s.totals,
	}
	if s.policy.Policy != nil {
		desired, view.PolicySource, view.PolicyErrors = s.policy.Policy.ForMember(s.member.Name, s.member.Labels)
		s.applySafeShare(desired)
		view.DesiredPolicy = desired
	}
	current := s.plan
	switch {
	case obstacle != "":
	case s.holder != "":
		d.withdrawMailbox = s.plan != nil || s.grant != nil
	case s.mayPlan:
		if d.plan = decidePlan(s, name, desired, view.PolicySource); d.plan != nil {
			current = d.plan
		}
	}
	if current != nil {
		view.Plan = &current.Spec
	}
	if !s.reportsSynced {
		// What was stored stays: rollouts would pass a member over that looks offline.
		d.status = s.member.Status
		return d
	}
	d.status, d.recheckAfter = memberstatus.Compute(view)
	if obstacle != "" {
		meta.SetStatusCondition(&d.status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonNamespaceTaken, Message: obstacle,
			ObservedGeneration: s.member.Generation, LastTransitionTime: metav1.NewTime(s.now),
		})
		d.recheckAfter = namespaceRetryDelay
	}
	return d
}

// applySafeShare has a policy give the safe share that there is room for. Such a share is used
// without being asked for.
func (s *snapshot) applySafeShare(desired map[string]string) {
	if _, limited := desired[apipolicy.KeySafeConcurrency]; !limited {
		return
	}
	if s.safeKnown {
		desired[apipolicy.KeySafeConcurrency] = strconv.Itoa(int(s.safe))
	} else if s.plan != nil {
		if last, limited := s.plan.Spec.Policy[apipolicy.KeySafeConcurrency]; limited {
			desired[apipolicy.KeySafeConcurrency] = last
		}
	}
}

// decidePlan returns the plan to write, guarded by the state that it was decided
// upon; nil for none.
func decidePlan(s snapshot, namespace string, desired map[string]string, source string) *v1alpha1.ClusterPlan {
	view := plan.Input{
		ClusterUID: memberstatus.ResolveClusterUID(s.member, s.root.ClusterUID),
		Report:     s.root.Report, ReportClusterUID: s.root.ClusterUID,
		ReportUnconfirmed: s.syncResult.ConfirmedSequence == 0 || s.root.Sequence < s.syncResult.ConfirmedSequence,
		NewerMemberPlan:   s.syncResult.NewerPlan,
		DesiredPolicy:     desired, PolicySource: source,
		Images: s.images.Images, Kept: s.images.Kept, Retired: s.images.Retired,
		Inquiries: s.inquiries, Prunes: s.prunes,
	}
	// What is in the plan and nobody knows of stays: an image that it does not name any
	// more is not protected, and a prune that it does not name any more is undone.
	// Neither waits for the other. Where there is no plan, the member may have one that
	// is newer than this hub, so that it waits.
	if s.plan == nil && (!s.imagesKnown || !s.requestsKnown) {
		return nil
	}
	if _, limited := desired[apipolicy.KeySafeConcurrency]; limited && !s.safeKnown {
		return nil
	}
	if !s.imagesKnown {
		view.Images, view.Kept, view.Retired = s.plan.Spec.Images, s.plan.Spec.Kept, s.plan.Spec.Retired
	}
	if !s.requestsKnown {
		view.Inquiries, view.Prunes = nil, s.plan.Spec.Prunes
		for _, asked := range s.plan.Spec.Inquiries {
			view.Inquiries = append(view.Inquiries, asked.UID)
		}
	}
	next := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName}}
	if s.plan != nil {
		if !s.plan.DeletionTimestamp.IsZero() {
			return nil
		}
		next, view.Current = s.plan.DeepCopy(), &s.plan.Spec
	}
	spec, write, _ := plan.Next(view)
	if !write {
		return nil
	}
	next.Spec = spec
	if s.plan != nil {
		budget.RecordSuperseded(next, s.plan, s.acknowledgedPlan())
	}
	return next
}

// acknowledgedPlan is the plan that the member's report says its ledger was written
// under; nil for none.
func (s *snapshot) acknowledgedPlan() *v1alpha1.PlanVersion {
	if s.root.Report == nil || s.plan == nil || s.root.ClusterUID != s.plan.Spec.ClusterUID {
		return nil
	}
	return s.root.Report.Plan
}
