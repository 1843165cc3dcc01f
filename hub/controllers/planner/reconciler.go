// Package planner plans for every member and tells what the hub knows of it. It
// runs in the elected replica; all that it writes is guarded by the state that
// was decided upon, so that two at once do no harm.
package planner

import (
	"context"
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
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterplans;transfergrants,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberlinks,verbs=get;list;watch;update
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// conflictRetryDelay is when to go on that somebody else was faster than.
const conflictRetryDelay = 50 * time.Millisecond

// budgetRetryDelay is when to go on where the fleet-wide budget does not let a plan be written,
// or removed, as it is.
const budgetRetryDelay = 200 * time.Millisecond

// The wait before a request that failed is tried again doubles between these.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// Reconciler plans for one member at a request.
type Reconciler struct {
	client.Client
	Live    client.Reader
	Events  events.EventRecorder
	Metrics *metrics.Metrics
	// Version of the hub, which the agents' is judged by.
	Version string
	Reports *report.Store
	// Links tell how members are carried for; Replica is this one, to which a report
	// has to be confirmed.
	Links   *shard.Links
	Replica *shard.Replica
	Faults  *connection.CredentialProblems
	// Watchdog finds members whose reports nobody carries.
	Watchdog *shard.Watchdog
	Joins    *registration.Conditions
	// Installs tell of the agents that the hub installs.
	Installs *install.Conditions
	Policy   *policy.ActivePolicy
	Index    *inventory.Index
	Images   DesiredImages
	Requests PruneRequests
	Shares   *grant.Shares

	requests         trigger.Source[ctrl.Request]
	pacer            trigger.StatusPacer
	mu               sync.Mutex
	cleanUpDeadlines map[string]cleanUpDeadline
}

// DesiredImages tells what the FleetDiskImages ask of the members.
type DesiredImages interface {
	// ForMember a member, no image twice; known is false where that was not decided yet.
	ForMember(member string) (wants rollout.DesiredImages, known bool)
	// OnDesiredChange has something done, without blocking, when that may have changed.
	OnDesiredChange(do func(member string))
}

// PruneRequests tells what PruneReports and ImagePrunes ask of the members.
type PruneRequests interface {
	// ForMember a member, no image twice; known is false where not all of it was read yet.
	ForMember(member string) (inquiries []types.UID, prunes []v1alpha1.PlannedPrune, known bool)
	// OnRequestsChange has something done, without blocking, when that may have changed.
	OnRequestsChange(do func(member string))
}

// Reconcile looks at one member: it gathers what is known, decides, and does
// what was decided.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	member := &v1alpha1.MemberCluster{}
	if err := r.Get(ctx, request.NamespacedName, member); err != nil {
		if apierrors.IsNotFound(err) {
			r.pacer.Forget(request.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !member.DeletionTimestamp.IsZero() {
		return r.reconcileDelete(ctx, member)
	}
	if err := r.ensureFinalizer(ctx, member); err != nil {
		return result(ctx, err)
	}
	seen, err := r.gather(ctx, member)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(seen)
	if d.plan != nil && !r.Shares.AdmitPlan(d.plan, seen.plan) || d.withdrawMailbox && !r.Shares.MayRemove(member) {
		return ctrl.Result{RequeueAfter: budgetRetryDelay}, nil
	}
	wait, err := r.apply(ctx, member, d)
	if err != nil {
		return result(ctx, err)
	}
	if d.recheckAfter == 0 || wait > 0 && wait < d.recheckAfter {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	return ctrl.Result{RequeueAfter: d.recheckAfter}, nil
}

// result tells that somebody else was faster from what went wrong.
func result(ctx context.Context, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		log.FromContext(ctx).V(1).Info("Somebody else wrote at the same time, or the cache is behind", "error", err.Error())
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	}
	return ctrl.Result{}, err
}

func (r *Reconciler) ensureFinalizer(ctx context.Context, member *v1alpha1.MemberCluster) error {
	base := member.DeepCopy()
	if !controllerutil.AddFinalizer(member, v1alpha1.FinalizerMember) {
		return nil
	}
	if err := r.Patch(ctx, member, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("adding the finalizer of MemberCluster %s: %w", member.Name, err)
	}
	return nil
}

func (r *Reconciler) gather(ctx context.Context, member *v1alpha1.MemberCluster) (snapshot, error) {
	read := r.Reports.HasSynced() // before the root is: one that comes between is not missed
	s := snapshot{
		now: time.Now(), hubVersion: r.Version, member: member, reportsSynced: read, watchedSince: r.Reports.StartedAt(),
		root: r.Reports.Root(member.Name), policy: r.Policy.Current(),
	}
	s.images, s.imagesKnown = r.Images.ForMember(member.Name)
	s.inquiries, s.prunes, s.requestsKnown = r.Requests.ForMember(member.Name)
	s.transfers = r.Shares.ForMember(member.Name)
	s.safe, s.safeKnown = r.Shares.SafeShare(member.Name)
	s.mayPlan = s.policy.Known && read
	var err error
	if s.holder, err = claim.FindHolder(ctx, r.Client, member, memberstatus.ResolveClusterUID(member, s.root.ClusterUID)); err != nil {
		return s, err
	}
	link, err := r.Links.Get(ctx, member.Name)
	if err != nil {
		return s, err
	}
	if link != nil {
		s.shard, s.syncResult = shardName(link), mailbox.FindingsFromStatus(&link.Status, r.Replica.Challenge())
	}
	s.connection, s.joined, s.installed = r.connectionState(member, link), r.Joins.ForMember(member), r.Installs.ForMember(member)
	if totals, known := r.Index.Totals(member.Name); known {
		s.totals = &totals
	}
	if s.namespace, err = r.getNamespace(ctx, member.Name); err != nil {
		return s, err
	}
	s.plan, s.grant, err = r.getMailbox(ctx, member.Name)
	return s, err
}

// shardName is who carries for a member, for people.
func shardName(link *v1alpha1.MemberLink) string {
	if link.Spec.Mode == v1alpha1.LinkPull {
		return shard.AgentReplica
	}
	return link.Spec.Replica
}

// connectionState to a member, as whoever carries for it says, unless there is no
// credential to reach it with.
func (r *Reconciler) connectionState(member *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) memberstatus.Connection {
	c := memberstatus.Connection{PullMode: member.Spec.Connection.Pull != nil}
	if link != nil && (link.Spec.Mode == v1alpha1.LinkPull) == c.PullMode {
		c.Known, c.Reachable, c.Reason, c.Message = link.Status.Known, link.Status.Reachable, link.Status.Reason, link.Status.Message
	}
	if fault, is := r.Faults.ForMember(member.Name); is && !c.Reachable {
		c.Known, c.Reason, c.Message = true, fault.Reason, fault.Message
	}
	return c
}

// getNamespace of a member, or whatever has its name; nil for none. The cache has
// only those that are members' by their label.
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

// getMailbox returns plan and grant of a member on the hub, nil for none.
func (r *Reconciler) getMailbox(ctx context.Context, member string) (*v1alpha1.ClusterPlan, *v1alpha1.TransferGrant, error) {
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}
	plan, given := &v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}
	if err := r.Get(ctx, key, plan); apierrors.IsNotFound(err) {
		plan = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading ClusterPlan %s: %w", key, err)
	}
	if err := r.Get(ctx, key, given); apierrors.IsNotFound(err) {
		given = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading TransferGrant %s: %w", key, err)
	}
	return plan, given, nil
}

// apply does what was decided. wait is when to come back for what must not be
// written yet.
func (r *Reconciler) apply(ctx context.Context, member *v1alpha1.MemberCluster, d decision) (wait time.Duration, err error) {
	if d.createNamespace {
		if err := r.createNamespace(ctx, member); err != nil {
			return 0, err
		}
	}
	if d.withdrawMailbox {
		if err := deleteMailbox(ctx, r.Client, v1alpha1.MemberNamespacePrefix+member.Name); err != nil {
			return 0, fmt.Errorf("withdrawing what was planned for MemberCluster %s, whose cluster is another's: %w", member.Name, err)
		}
	}
	if d.plan != nil {
		if err := r.createOrUpdate(ctx, d.plan); err != nil {
			return 0, fmt.Errorf("writing the ClusterPlan of MemberCluster %s: %w", member.Name, err)
		}
		r.Metrics.CountPlanWrite()
		log.FromContext(ctx).Info("Planned", "epoch", d.plan.Spec.Epoch, "sequence", d.plan.Spec.Sequence, "policy", d.plan.Spec.PolicySource)
	}
	if equality.Semantic.DeepEqual(member.Status, d.status) {
		return 0, nil
	}
	if wait := r.pacer.ReserveWrite(member.Name, trigger.ConditionsChanged(member.Status.Conditions, d.status.Conditions), time.Now()); wait > 0 {
		return wait, nil
	}
	before := member.Status.DeepCopy()
	member.Status = d.status
	if err := r.Status().Update(ctx, member); err != nil {
		return 0, fmt.Errorf("storing status of MemberCluster %s: %w", member.Name, err)
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
func (r *Reconciler) createOrUpdate(ctx context.Context, o client.Object) error {
	if o.GetResourceVersion() == "" {
		return r.Create(ctx, o)
	}
	return r.Update(ctx, o)
}

// recordEvents reports what a stored status says for the first time.
func (r *Reconciler) recordEvents(member *v1alpha1.MemberCluster, before *v1alpha1.MemberClusterStatus) {
	for _, t := range []string{v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy, v1alpha1.ConditionIdentityConfirmed} {
		now, was := meta.FindStatusCondition(member.Status.Conditions, t), meta.FindStatusCondition(before.Conditions, t)
		if now == nil || was == nil && now.Status == metav1.ConditionUnknown || was != nil && was.Status == now.Status && was.Reason == now.Reason {
			continue
		}
		kind := corev1.EventTypeNormal
		if now.Status == metav1.ConditionFalse {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(member, nil, kind, now.Reason, "Watch", "%s is %s: %s", t, now.Status, now.Message)
	}
}
