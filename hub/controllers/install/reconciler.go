// Package install installs the agent in members that opt in: it observes them,
// hub/install decides, and hub/helm acts. It runs in the elected replica, and acts in a
// member only under a Lease there: two hubs that are elected at the same time do not work
// on one member at once.
package install

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"

	"github.com/pelotech/ot-fleet/hub/helm"
	"github.com/pelotech/ot-fleet/hub/install"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=configmaps,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// nextStepsDelay is the requeue delay of a member that needs more than maxSteps.
	nextStepsDelay = 200 * time.Millisecond
	// attemptTimeout bounds one reconcile, with everything that it reads.
	attemptTimeout = 5 * time.Minute
	// maxSteps: observe and take the Lease, observe and install, observe the result.
	maxSteps = 3
	// maxErrorLength of a stored error.
	maxErrorLength = 600
)

// Reconciler installs the agent of one member per request.
type Reconciler struct {
	client.Client
	Live       client.Reader
	Events     events.EventRecorder
	Metrics    *metrics.Installs
	Conditions *Conditions
	Admins     *connection.AdminKubeconfigs
	Chart      *helm.Chart
	// Namespace of the hub.
	Namespace string
	// Process identifies this process in Leases.
	Process   string
	UserAgent string
	// RequestTimeout of a request to a member.
	RequestTimeout time.Duration
	// LeaseDuration of the Lease in a member.
	LeaseDuration time.Duration
	// Backoff after the first attempt; it doubles with each.
	Backoff time.Duration

	conflicts     trigger.ConflictTracker
	foreignLeases leaseObserver
	installSlots  chan struct{}

	mu     sync.Mutex
	hubUID string
	// failedProbes counts failures to read a member in a row, by member.
	failedProbes map[string]int
	// leaseConflicts counts conflicts over the Lease since it was last taken or an attempt was counted, by
	// member.
	leaseConflicts map[string]int
	// waitingForSlot has the members that wait for an install slot.
	waitingForSlot map[string]bool
}

// requestTimeout bounds a request so that it ends before the Lease does; see lease.
func (r *Reconciler) requestTimeout() time.Duration { return min(r.RequestTimeout, r.LeaseDuration/3) }

// Reconcile observes one member, decides and acts until there is nothing to do.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	return r.conflicts.Result(ctx, request, result, err)
}

func (r *Reconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	member := &v1alpha1.MemberCluster{}
	if err := r.Get(ctx, request.NamespacedName, member); err != nil {
		if apierrors.IsNotFound(err) {
			r.Conditions.Forget(request.Name)
			r.forgetMember(request.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if member.Spec.Quarantine != nil {
		return ctrl.Result{}, nil // lifting it is a change of the MemberCluster
	}
	if !isOptedIn(member) {
		r.forgetMember(request.Name)
		if r.Conditions.Publish(member, nil) != nil && member.DeletionTimestamp.IsZero() {
			r.Events.Eventf(member, nil, corev1.EventTypeNormal, "InstallsStopped", "Install",
				"Label %s was removed: the agent stays as it is and is no longer upgraded", v1alpha1.LabelInstallAgent)
		}
		return ctrl.Result{}, nil
	}
	// A member that waits for a slot is not observed again each time.
	if r.isWaitingForSlot(request.Name) {
		return ctrl.Result{RequeueAfter: slotRetryDelay()}, nil
	}
	// The live object decides: its annotations are permissions.
	if err := r.Live.Get(ctx, request.NamespacedName, member); err != nil || !mayInstall(member) {
		return ctrl.Result{}, client.IgnoreNotFound(err) // the cache shows it soon
	}
	ctx, cancel := context.WithTimeoutCause(ctx, attemptTimeout, errAttemptTimeout)
	defer cancel()
	snapshot, values, err := r.gatherInputs(ctx, member)
	if err != nil {
		return ctrl.Result{}, err
	}
	var session *memberSession
	if !snapshot.PullMode && snapshot.ValuesProblem == nil {
		if session, snapshot.ProbeProblem, err = r.connect(ctx, member); err != nil {
			return ctrl.Result{}, err
		}
	}
	if session == nil {
		snapshot.FailedProbes = r.countFailedProbe(member.Name, snapshot.ProbeProblem != nil)
		return r.publishDecision(member, install.Decide(snapshot)), nil
	}
	defer session.close()
	return r.installAgent(ctx, member, session, snapshot, values)
}

// gatherInputs gathers what is known without a request to the member.
func (r *Reconciler) gatherInputs(ctx context.Context, member *v1alpha1.MemberCluster) (install.Snapshot, *helm.Values, error) {
	s := install.Snapshot{
		Now: time.Now(), OptedIn: true, PullMode: member.Spec.Connection.Pull != nil, Backoff: r.Backoff,
		Adopt:     member.Annotations[v1alpha1.AnnotationAdoptAgent] == "true",
		Downgrade: member.Annotations[v1alpha1.AnnotationDowngradeAgent],
		Attempts:  install.ParseAttempts(member.Annotations[v1alpha1.AnnotationInstallAttempts]),
	}
	hub, err := r.getHubUID(ctx)
	if err != nil {
		return s, nil, err
	}
	s.Self = install.Installer{Hub: hub, Member: member.Name}
	values, invalid, err := r.loadValues(ctx, member.Name)
	switch {
	case err != nil:
		return s, nil, err
	case invalid != nil:
		s.ValuesProblem = &install.Problem{Reason: v1alpha1.ReasonValuesInvalid, Message: v1alpha1.SanitizeText(invalid.Error(), maxErrorLength)}
		return s, nil, nil
	}
	s.Desired = install.Desired{Version: values.Version, Chart: r.Chart.Version(), Revision: values.Revision}
	return s, values, nil
}

// getHubUID returns the UID of the hub's cluster.
func (r *Reconciler) getHubUID(ctx context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hubUID == "" {
		ns := &corev1.Namespace{}
		if err := r.Live.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
			return "", fmt.Errorf("reading namespace %s, whose UID identifies the hub's cluster: %w", metav1.NamespaceSystem, err)
		}
		r.hubUID = string(ns.UID)
	}
	return r.hubUID, nil
}

// connect opens a session, or returns the problem that prevents it. It sends nothing.
func (r *Reconciler) connect(ctx context.Context, member *v1alpha1.MemberCluster) (*memberSession, *install.Problem, error) {
	kubeconfig, err := r.Admins.ForMember(ctx, member)
	if missing, ok := connection.MissingPrerequisite(err); ok {
		return nil, &install.Problem{Reason: v1alpha1.ReasonCredentialsMissing, Message: missing}, nil
	} else if err != nil {
		return nil, nil, err
	}
	cfg, _, err := hubclient.ParseMemberKubeconfig(member, kubeconfig)
	if err == nil {
		var session *memberSession
		if session, err = r.openSession(ctx, cfg, member); err == nil {
			return session, nil, nil
		}
	}
	return nil, &install.Problem{Reason: v1alpha1.ReasonCredentialsMissing, Message: err.Error()}, nil
}

// installAgent observes, decides and acts until there is nothing to do. It acts only under
// the Lease, which it takes after a decision to act; then it observes and decides again.
func (r *Reconciler) installAgent(ctx context.Context, member *v1alpha1.MemberCluster, session *memberSession, snapshot install.Snapshot, values *helm.Values) (ctrl.Result, error) {
	defer func() {
		// ctx may have ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.requestTimeout())
		defer cancel()
		session.lease.releaseLease(ctx)
	}()
	held := false
	for range maxSteps {
		if err := r.observeMember(ctx, session, member, &snapshot); err != nil {
			if ctx.Err() != nil {
				return ctrl.Result{}, context.Cause(ctx)
			}
			snapshot.ProbeProblem = problemOf(err)
		}
		snapshot.FailedProbes = r.countFailedProbe(member.Name, snapshot.ProbeProblem != nil)
		d := install.Decide(snapshot)
		switch {
		case d.Action == install.ActionNone:
			return r.finish(ctx, member, &snapshot, d)
		case held:
			// A process that has lost the Lease starts over like any other.
			if err := session.lease.Err(); err != nil {
				return ctrl.Result{}, fmt.Errorf("installing the agent of MemberCluster %s: %w", member.Name, err)
			}
			r.publishDecision(member, d)
			if err := r.runAttempt(ctx, member, &snapshot, func() error { return r.applyDecision(session, snapshot, d, values) }); err != nil {
				return ctrl.Result{}, client.IgnoreNotFound(err)
			}
		case !r.reserveSlot(session):
			r.setWaitingForSlot(member.Name)
			d.Condition.Message = fmt.Sprintf("agent %s is waiting to be installed: the hub installs in %d members at a time", snapshot.Desired.Version, cap(r.installSlots))
			r.publishDecision(member, d)
			return ctrl.Result{RequeueAfter: slotRetryDelay()}, nil
		default:
			r.publishDecision(member, d)
			err := session.takeLease(ctx)
			if held = err == nil; held {
				r.resetLeaseConflicts(member.Name)
				continue // the member may have changed before the Lease was taken
			}
			if trigger.IsConflict(err) && r.countLeaseConflict(member.Name) <= maxLeaseConflicts {
				return ctrl.Result{}, err // another process was faster
			}
			// Failing to take the Lease counts as an attempt: those are bounded. So do conflicts, whatever the
			// member answers in between.
			if err := r.runAttempt(ctx, member, &snapshot, func() error { return err }); err != nil {
				return ctrl.Result{}, client.IgnoreNotFound(err)
			}
		}
	}
	return ctrl.Result{RequeueAfter: nextStepsDelay}, nil
}

// finish publishes a decision to do nothing. Once the agent is installed, the count of
// attempts is reset.
func (r *Reconciler) finish(ctx context.Context, member *v1alpha1.MemberCluster, snapshot *install.Snapshot, d install.Decision) (ctrl.Result, error) {
	if snapshot.Attempts.Target != "" && d.Condition.Status == metav1.ConditionTrue {
		if err := r.storeAttempts(ctx, member, &snapshot.Attempts, install.Attempts{}); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	return r.publishDecision(member, d), nil
}

// applyDecision acts in the member.
func (r *Reconciler) applyDecision(session *memberSession, snapshot install.Snapshot, d install.Decision, values *helm.Values) error {
	spec := helm.ReleaseSpec{Name: session.release, Installer: snapshot.Self, Chart: r.Chart, Values: values, TakeOwnership: d.TakeOwnership}
	switch d.Action {
	case install.ActionInstall:
		return session.helm.Install(spec)
	case install.ActionRecover:
		if err := session.helm.Recover(session.release, snapshot.Self); err != nil {
			return err
		}
	}
	return session.helm.Upgrade(spec)
}

// publishDecision publishes the condition, and returns when to decide again.
func (r *Reconciler) publishDecision(member *v1alpha1.MemberCluster, d install.Decision) ctrl.Result {
	c := d.Condition.DeepCopy()
	c.Message = v1alpha1.SanitizeText(c.Message, 1024)
	c.ObservedGeneration = member.Generation
	r.Conditions.Publish(member, c)
	return ctrl.Result{RequeueAfter: d.RecheckAfter}
}
