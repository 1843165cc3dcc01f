// Package planner writes the ClusterPlan of every member and the status of every
// MemberCluster. It runs in the elected replica. Invariant: every write is guarded by the
// state that it was decided on, so that two planners at once do no harm.
package planner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/controllers/grant"
	"github.com/pelotech/ot-fleet/hub/controllers/install"
	"github.com/pelotech/ot-fleet/hub/controllers/registration"

	"github.com/pelotech/ot-fleet/hub/controllers/policy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/controllers/shard"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;transfergrants,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberlinks,verbs=get;list;watch;update
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// budgetRetryDelay is the requeue delay while the fleet-wide budget does not admit a plan
// or its removal.
const budgetRetryDelay = 200 * time.Millisecond

// Reconciler plans for one member per request.
type Reconciler struct {
	client.Client
	Live    client.Reader
	Events  events.EventRecorder
	Metrics *metrics.Metrics
	// Namespace of the hub.
	Namespace string
	// Version of the hub; agents have to be compatible with it.
	Version string
	Reports *report.Store
	// Links say which replica syncs each member. Replica is this one, to which reports
	// have to be confirmed.
	Links              *shard.Links
	Replica            *shard.Replica
	CredentialProblems *connection.CredentialProblems
	// Rotations has condition CredentialRotated of each member.
	Rotations *connection.Rotations
	// Watchdog finds members whose reports no replica syncs.
	Watchdog      *shard.Watchdog
	Registrations *registration.Conditions
	// Installs has condition AgentInstalled of each member.
	Installs *install.Conditions
	Policy   *policy.InForce
	Index    *inventory.Index
	Images   DesiredImages
	Requests PruneRequests
	Shares   *grant.Shares
	// Raises counts plans above versions that this hub never wrote.
	Raises *plan.Raises

	requests         trigger.Source[ctrl.Request]
	conflicts        trigger.ConflictTracker
	pacer            trigger.StatusPacer
	mu               sync.Mutex
	cleanUpDeadlines map[string]cleanUpDeadline
}

// DesiredImages knows which images FleetDiskImages place in each member.
type DesiredImages interface {
	// ForMember returns the images of a member, each once; known is false before they are
	// decided.
	ForMember(member string) (wants rollout.DesiredImages, known bool)
	// OnDesiredChange registers a function that is called when they may have changed. It
	// must not block.
	OnDesiredChange(do func(member string))
	// SetPlanRefused records whether the API server refuses the next plan of a member.
	SetPlanRefused(member string, refused bool)
}

// PruneRequests knows what PruneReports and ImagePrunes ask of each member.
type PruneRequests interface {
	// ForMember returns the requests to a member, each image once; known is false before
	// all of them are read.
	ForMember(member string) (inquiries []types.UID, prunes []v1alpha1.PlannedPrune, known bool)
	// OnRequestsChange registers a function that is called when they may have changed. It
	// must not block.
	OnRequestsChange(do func(member string))
}

// Reconcile gathers what is known of one member, decides, writes, and updates the status.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	return r.conflicts.Result(ctx, request, result, err)
}

func (r *Reconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	member := &v1alpha1.MemberCluster{}
	if err := r.Get(ctx, request.NamespacedName, member); err != nil {
		if apierrors.IsNotFound(err) {
			r.forgetMember(request.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !member.DeletionTimestamp.IsZero() {
		return r.reconcileDelete(ctx, member)
	}
	if err := r.ensureFinalizer(ctx, member); err != nil {
		return ctrl.Result{}, err
	}
	known, err := r.gather(ctx, member)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(known)
	admitted, busy := true, false
	if d.plan != nil {
		admitted, busy = r.Shares.AdmitPlan(d.plan, known.plan)
	}
	switch {
	case busy:
		return ctrl.Result{RequeueAfter: budgetRetryDelay}, nil
	case !admitted:
		// Meanwhile the status says what is in force: the plan may wait for a person.
		known.mayPlan, known.PlanRefused = false, true
		d = decide(known)
		d.recheckAfter = trigger.Earliest(d.recheckAfter, budgetRetryDelay)
	}
	return r.write(ctx, member, known, d)
}

// write carries out a decision. What the API server does not take is tried again, and freezes nothing of
// the status, which says so.
func (r *Reconciler) write(ctx context.Context, member *v1alpha1.MemberCluster, known snapshot, d decision) (ctrl.Result, error) {
	refusal := r.writeMailbox(ctx, member, &known, d)
	switch {
	case r.isPreempted(ctx, member, d, refusal):
		return ctrl.Result{}, refusal
	case refusal != nil:
		r.Images.SetPlanRefused(member.Name, true)
		known.mayPlan = false
		d = decide(known)
	case known.mayPlan:
		r.Images.SetPlanRefused(member.Name, false)
	}
	wait, err := r.updateStatus(ctx, member, d.status)
	if err := errors.Join(refusal, err); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: trigger.Earliest(wait, d.recheckAfter)}, nil
}

// writeMailbox creates the member's namespace, and writes its plan or withdraws it. known gets what is refused.
func (r *Reconciler) writeMailbox(ctx context.Context, member *v1alpha1.MemberCluster, known *snapshot, d decision) (err error) {
	if d.createNamespace {
		if err := r.createNamespace(ctx, member); err != nil {
			known.missingNamespace = err.Error()
			return err
		}
	}
	if d.withdrawMailbox {
		if err = deleteMailbox(ctx, r.Client, v1alpha1.MemberNamespacePrefix+member.Name); err != nil {
			err = fmt.Errorf("withdrawing the plan of MemberCluster %s, whose cluster belongs to another member: %w", member.Name, err)
		}
	} else {
		err = r.writePlan(ctx, member, known.plan, d)
	}
	if err != nil {
		known.InvalidPlan = err.Error()
	}
	return err
}

// isPreempted reports whether another read may solve the refusal of a write.
func (r *Reconciler) isPreempted(ctx context.Context, member *v1alpha1.MemberCluster, d decision, refusal error) bool {
	return r.conflicts.IsPreempted(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(member)}, refusal) ||
		(trigger.IsConflict(refusal) || apierrors.IsNotFound(refusal)) && d.plan != nil && !r.isStoredPlan(ctx, d.plan)
}

// ensureFinalizer marks a new member, and gives it the labels that it had when it left. Both
// are one write, so no plan is made without these labels.
func (r *Reconciler) ensureFinalizer(ctx context.Context, member *v1alpha1.MemberCluster) error {
	base := member.DeepCopy()
	if !controllerutil.AddFinalizer(member, v1alpha1.FinalizerMember) {
		return nil
	}
	restored, err := r.restoreLabels(ctx, member)
	if err != nil {
		return err
	}
	if err := r.Patch(ctx, member, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("adding the finalizer of MemberCluster %s: %w", member.Name, err)
	}
	r.confirmRestored(ctx, member, restored)
	return nil
}

func (r *Reconciler) gather(ctx context.Context, member *v1alpha1.MemberCluster) (snapshot, error) {
	synced := r.Reports.HasSynced() // before Root is read, so that a report which arrives in between is not missed
	s := snapshot{
		Input:         memberstatus.Input{Now: time.Now(), HubVersion: r.Version, Member: member, WatchedSince: r.Reports.StartedAt()},
		reportsSynced: synced, root: r.Reports.Root(member.Name), policy: r.Policy.Current(),
	}
	s.images, s.imagesKnown = r.Images.ForMember(member.Name)
	s.inquiries, s.prunes, s.requestsKnown = r.Requests.ForMember(member.Name)
	s.Transfers = r.Shares.ForMember(member.Name)
	s.safe, s.safeKnown = r.Shares.SafeShare(member.Name)
	s.mayRemove = r.Shares.MayRemove(member)
	s.mayPlan, s.contestedFor = s.policy.Known && synced, r.Raises.Contested(member.Name, s.Now)
	var err error
	if s.Holder, err = claim.FindHolder(ctx, r.Client, member, memberstatus.ResolveClusterUID(member, s.root.ClusterUID)); err != nil {
		return s, err
	}
	link, err := r.Links.Get(ctx, member.Name)
	if err != nil {
		return s, err
	}
	if link != nil {
		s.Shard, s.syncResult = shardName(link), mailbox.FindingsFromStatus(&link.Status, r.Replica.Challenge())
	}
	s.Connection, s.Joined, s.Installed = r.connectionState(member, link), r.Registrations.ForMember(member), r.Installs.ForMember(member)
	s.Rotated, s.SyncStalled = r.Rotations.ForMember(member), r.Watchdog.ForMember(member.Name)
	if totals, known := r.Index.Totals(member.Name); known {
		s.Totals = &totals
	}
	if s.namespace, err = r.getNamespace(ctx, member.Name); err != nil {
		return s, err
	}
	s.plan, s.grant, err = r.getMailbox(ctx, member.Name)
	return s, err
}

// shardName names in the status who syncs a member.
func shardName(link *v1alpha1.MemberLink) string {
	if link.Spec.Mode == v1alpha1.LinkPull {
		return shard.AgentReplica
	}
	return link.Spec.Replica
}

// connectionState returns what the syncing replica or agent says of the connection, or
// the problem of the credential.
func (r *Reconciler) connectionState(member *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) memberstatus.Connection {
	c := memberstatus.NewConnection(member, link)
	if problem, ok := r.CredentialProblems.ForMember(member.Name); ok && !c.PullMode && !c.Reachable {
		c.SpecChanged, c.Known, c.Reason, c.Message = false, true, problem.Reason, problem.Message
	}
	return c
}

// getNamespace returns the namespace with the name of the member's; nil for none. The
// cache only has namespaces with the label of members, so others are read live.
func (r *Reconciler) getNamespace(ctx context.Context, member string) (*corev1.Namespace, error) {
	key := client.ObjectKey{Name: v1alpha1.MemberNamespacePrefix + member}
	ns := &corev1.Namespace{}
	err := r.Get(ctx, key, ns)
	if apierrors.IsNotFound(err) {
		err = r.Live.Get(ctx, key, ns)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading namespace %s of MemberCluster %s: %w", key.Name, member, err)
	}
	return ns, nil
}

// getMailbox returns plan and grant of a member on the hub; nil for none.
func (r *Reconciler) getMailbox(ctx context.Context, member string) (*v1alpha1.ClusterPlan, *v1alpha1.TransferGrant, error) {
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}
	plan, grant := &v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}
	if err := r.Get(ctx, key, plan); apierrors.IsNotFound(err) {
		plan = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading ClusterPlan %s: %w", key, err)
	}
	if err := r.Get(ctx, key, grant); apierrors.IsNotFound(err) {
		grant = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading TransferGrant %s: %w", key, err)
	}
	return plan, grant, nil
}

// isStoredPlan reports whether a plan was decided on what is stored: a lagging cache does not explain a
// conflict over it.
func (r *Reconciler) isStoredPlan(ctx context.Context, decided *v1alpha1.ClusterPlan) bool {
	stored := &v1alpha1.ClusterPlan{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(decided), stored)
	return client.IgnoreNotFound(err) == nil && stored.ResourceVersion == decided.ResourceVersion
}

func (r *Reconciler) writePlan(ctx context.Context, member *v1alpha1.MemberCluster, current *v1alpha1.ClusterPlan, d decision) error {
	if d.plan == nil {
		return nil
	}
	if err := r.createOrUpdate(ctx, d.plan); err != nil {
		return fmt.Errorf("writing the ClusterPlan of MemberCluster %s: %w", member.Name, err)
	}
	var before *v1alpha1.ClusterPlanSpec
	if current != nil {
		before = &current.Spec
	}
	if plan.IsRaise(&d.plan.Spec, before) {
		r.Raises.Record(member.Name, time.Now())
	}
	r.Metrics.CountPlanWrite()
	log.FromContext(ctx).Info("Wrote ClusterPlan", "epoch", d.plan.Spec.Epoch, "sequence", d.plan.Spec.Sequence, "policy", d.plan.Spec.PolicySource)
	return nil
}

// updateStatus writes the status if it differs. It returns when to write a status that
// must not be written yet.
func (r *Reconciler) updateStatus(ctx context.Context, member *v1alpha1.MemberCluster, status v1alpha1.MemberClusterStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(member.Status, status) {
		return 0, nil
	}
	if wait := r.pacer.ReserveWrite(member.Name, trigger.ConditionsChanged(member.Status.Conditions, status.Conditions), time.Now()); wait > 0 {
		return wait, nil
	}
	before := member.Status.DeepCopy()
	member.Status = status
	if err := r.Status().Update(ctx, member); err != nil {
		return 0, fmt.Errorf("updating the status of MemberCluster %s: %w", member.Name, err)
	}
	r.Metrics.CountStatusWrite()
	r.recordEvents(member, before)
	return 0, nil
}

func (r *Reconciler) createNamespace(ctx context.Context, member *v1alpha1.MemberCluster) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   v1alpha1.MemberNamespacePrefix + member.Name,
		Labels: map[string]string{v1alpha1.LabelMember: member.Name},
	}}
	if err := r.Create(ctx, ns); err != nil {
		return fmt.Errorf("creating namespace %s of MemberCluster %s: %w", ns.Name, member.Name, err)
	}
	return nil
}

// createOrUpdate creates an object, or updates it against the resourceVersion that it bears.
// Only the hub writes it.
func (r *Reconciler) createOrUpdate(ctx context.Context, o client.Object) error {
	if o.GetResourceVersion() == "" {
		return r.Create(ctx, o)
	}
	ownership.Untrack(o)
	return r.Update(ctx, o)
}

// recordEvents reports what a stored status says for the first time.
func (r *Reconciler) recordEvents(member *v1alpha1.MemberCluster, before *v1alpha1.MemberClusterStatus) {
	for _, t := range []string{v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy, v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionTransfersAccounted, v1alpha1.ConditionQuarantined} {
		now, previous := meta.FindStatusCondition(member.Status.Conditions, t), meta.FindStatusCondition(before.Conditions, t)
		if now == nil || previous == nil && now.Status == metav1.ConditionUnknown || previous != nil && previous.Status == now.Status && previous.Reason == now.Reason {
			continue
		}
		eventType := corev1.EventTypeNormal
		if now.Status == metav1.ConditionFalse {
			eventType = corev1.EventTypeWarning
		}
		r.Events.Eventf(member, nil, eventType, now.Reason, "Watch", "%s is %s: %s", t, now.Status, now.Message)
	}
}
