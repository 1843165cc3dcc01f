// Package install has the agent installed in members that opt in: it looks what they
// have, has hub/install decide, and hub/helm do it. It runs in the elected replica, and
// in a member under a Lease there: hubs that are elected in turn, or beside each other
// for a while, do not work on one member at once.
package install

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/hubclient"
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
	// conflictRetryDelay is when to go on that somebody else was faster than.
	conflictRetryDelay = 200 * time.Millisecond
	// attemptTimeout that an attempt takes, looking included.
	attemptTimeout = 5 * time.Minute
	// maxSteps: look and take the Lease, look and install, look at what came of it.
	maxSteps = 3
	// maxErrorLength of an error is kept.
	maxErrorLength = 600
)

// Reconciler looks after one member's agent at a request.
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
	// Process is the identity of this one, for Leases.
	Process   string
	UserAgent string
	// RequestTimeout ends a request to a member.
	RequestTimeout time.Duration
	// LeaseDuration of the Lease in a member.
	LeaseDuration time.Duration
	// Backoff after the first attempt, doubled after each.
	Backoff time.Duration

	foreignLeases leaseObserver
	installSlots  chan struct{}

	mu     sync.Mutex
	hubUID string
	// failedProbes counts looks in a row that found nothing out, by member.
	failedProbes map[string]int
	// waitingForSlot members wait for a turn.
	waitingForSlot map[string]bool
}

// requestTimeout of a request: see lease.
func (r *Reconciler) requestTimeout() time.Duration { return min(r.RequestTimeout, r.LeaseDuration/3) }

// Reconcile looks, decides and does what was decided, until there is nothing to do.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	member := &v1alpha1.MemberCluster{}
	if err := r.Get(ctx, request.NamespacedName, member); err != nil {
		if apierrors.IsNotFound(err) {
			r.Conditions.forget(request.Name)
			r.forgetMember(request.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !isOptedIn(member) {
		r.forgetMember(request.Name)
		if r.Conditions.publish(member, nil) && member.DeletionTimestamp.IsZero() {
			r.Events.Eventf(member, nil, corev1.EventTypeNormal, "InstallsStopped", "Install",
				"Label %s has gone: the agent is left as it is, and not upgraded any more", v1alpha1.LabelInstallAgent)
		}
		return ctrl.Result{}, nil
	}
	// Who waits for a turn is not asked anew each time what it has.
	if r.isWaitingForSlot(request.Name) {
		return ctrl.Result{RequeueAfter: slotRetryDelay()}, nil
	}
	// Live: what people allow decides what is done.
	if err := r.Live.Get(ctx, request.NamespacedName, member); err != nil || !isOptedIn(member) {
		return ctrl.Result{}, client.IgnoreNotFound(err) // the cache is to show that too
	}
	ctx, cancel := context.WithTimeoutCause(ctx, attemptTimeout, errAttemptTimeout)
	defer cancel()
	seen, values, err := r.gatherInputs(ctx, member)
	if err != nil {
		return ctrl.Result{}, err
	}
	var at *memberSession
	if !seen.PullMode && seen.ValuesProblem == nil {
		if at, seen.ProbeProblem, err = r.connect(ctx, member); err != nil {
			return ctrl.Result{}, err
		}
	}
	if at == nil {
		seen.FailedProbes = r.countFailedProbe(member.Name, seen.ProbeProblem != nil)
		return r.publishDecision(member, install.Decide(seen)), nil
	}
	defer at.close()
	return r.installAgent(ctx, member, at, seen, values)
}

// gatherInputs all that is known without asking the member.
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
	values, faulty, err := r.loadValues(ctx, member.Name)
	switch {
	case err != nil:
		return s, nil, err
	case faulty != nil:
		s.ValuesProblem = &install.Problem{Reason: v1alpha1.ReasonValuesInvalid, Message: v1alpha1.Truncate(faulty.Error(), maxErrorLength)}
		return s, nil, nil
	}
	s.Desired = install.Desired{Version: values.Version, Chart: r.Chart.Version(), Revision: values.Revision}
	return s, values, nil
}

// getHubUID of the hub, which lasts as long as its cluster.
func (r *Reconciler) getHubUID(ctx context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hubUID == "" {
		ns := &corev1.Namespace{}
		if err := r.Live.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
			return "", fmt.Errorf("reading namespace %s, by which the hub's cluster is known: %w", metav1.NamespaceSystem, err)
		}
		r.hubUID = string(ns.UID)
	}
	return r.hubUID, nil
}

// connect a member; trouble says why not. Nothing is sent yet.
func (r *Reconciler) connect(ctx context.Context, member *v1alpha1.MemberCluster) (*memberSession, *install.Problem, error) {
	kubeconfig, err := r.Admins.ForMember(ctx, member)
	if missing, is := connection.MissingPrerequisite(err); is {
		return nil, &install.Problem{Reason: v1alpha1.ReasonCredentialsMissing, Message: missing}, nil
	} else if err != nil {
		return nil, nil, err
	}
	cfg, _, err := hubclient.ParseKubeconfig(kubeconfig)
	if err == nil {
		var at *memberSession
		if at, err = r.openSession(ctx, cfg, member); err == nil {
			return at, nil, nil
		}
	}
	return nil, &install.Problem{Reason: v1alpha1.ReasonCredentialsMissing, Message: err.Error()}, nil
}

// installAgent looks and does what was decided, under the Lease.
func (r *Reconciler) installAgent(ctx context.Context, member *v1alpha1.MemberCluster, at *memberSession, seen install.Snapshot, values *helm.Values) (ctrl.Result, error) {
	// What ends with ctx may still let go of the Lease.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.requestTimeout())
		defer cancel()
		at.lease.release(ctx)
	}()
	held := false
	for range maxSteps {
		if err := r.observeMember(ctx, at, member, &seen); err != nil {
			if ctx.Err() != nil {
				return ctrl.Result{}, context.Cause(ctx)
			}
			seen.ProbeProblem = problemOf(err)
		}
		seen.FailedProbes = r.countFailedProbe(member.Name, seen.ProbeProblem != nil)
		d := install.Decide(seen)
		if d.Action == install.ActionNone {
			if seen.Attempts.Target != "" && d.Condition.Status == metav1.ConditionTrue {
				if err := r.storeAttempts(ctx, member, &seen.Attempts, install.Attempts{}); err != nil {
					return result(ctx, err)
				}
			}
			return r.publishDecision(member, d), nil
		}
		if held {
			// Who has lost it looks anew, as everybody else does.
			if err := at.lease.Err(); err != nil {
				return ctrl.Result{}, fmt.Errorf("installing the agent of MemberCluster %s: %w", member.Name, err)
			}
		} else {
			// A few at a time: each one renders the chart, and holds it.
			select {
			case r.installSlots <- struct{}{}:
				defer func() { <-r.installSlots }()
			default:
				r.setWaitingForSlot(member.Name)
				d.Condition.Message = fmt.Sprintf("agent %s is to be installed: %d members at a time are, and it waits for its turn", seen.Desired.Version, cap(r.installSlots))
				r.publishDecision(member, d)
				return ctrl.Result{RequeueAfter: slotRetryDelay()}, nil
			}
			err := at.ensureNamespace(ctx)
			if err == nil {
				err = at.lease.acquire(ctx, at.observedLease)
			}
			switch {
			case err == nil:
				held = true
				continue // what was seen before may have changed
			case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
				return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
			}
			// A member that refuses even this is not tried for ever either.
			if err := r.runAttempt(ctx, member, &seen, func() error { return err }); err != nil {
				return result(ctx, err)
			}
			continue
		}
		r.publishDecision(member, d)
		if err := r.runAttempt(ctx, member, &seen, func() error { return r.applyDecision(at, seen, d, values) }); err != nil {
			return result(ctx, err)
		}
	}
	return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
}

// applyDecision what was decided.
func (r *Reconciler) applyDecision(at *memberSession, seen install.Snapshot, d install.Decision, values *helm.Values) error {
	want := helm.ReleaseSpec{Name: at.release, Installer: seen.Self, Chart: r.Chart, Values: values, TakeOwnership: d.TakeOwnership}
	switch d.Action {
	case install.ActionInstall:
		return at.helm.Install(want)
	case install.ActionRecover:
		if err := at.helm.Recover(at.release, seen.Self); err != nil {
			return err
		}
	}
	return at.helm.Upgrade(want)
}

// result tells that somebody else was faster from what went wrong.
func result(ctx context.Context, err error) (ctrl.Result, error) {
	if errors.Is(err, errAttemptsChanged) || apierrors.IsConflict(err) {
		log.FromContext(ctx).V(1).Info("Somebody else wrote at the same time, or the cache is behind", "error", err.Error())
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// publishDecision what was decided, and when to look again.
func (r *Reconciler) publishDecision(member *v1alpha1.MemberCluster, d install.Decision) ctrl.Result {
	c := d.Condition.DeepCopy()
	c.Message = v1alpha1.Truncate(c.Message, 1024)
	c.ObservedGeneration = member.Generation
	r.Conditions.publish(member, c)
	return ctrl.Result{RequeueAfter: d.RecheckAfter}
}
