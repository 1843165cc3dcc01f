package prune

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"

	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/prune"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=imageprunes,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=imageprunes/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereports,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereportpages,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// PruneReconciler carries out ImagePrunes, one at a time: none begins in the second in which
// another does. It runs in the elected replica; what it tells of targets, every
// replica tells.
type PruneReconciler struct {
	// Client reads from the cache, which has no pages of PruneReports: they are large.
	client.Client
	Live    client.Reader
	Events  events.EventRecorder
	Tracker *Tracker
	Roots   *report.Store
	Guard   *admissionpolicy.ApprovalCheck

	requeue        trigger.Source[ctrl.Request]
	statusPaces    trigger.StatusPacer
	throttle       throttle
	mu             sync.Mutex
	targetsByPrune map[string]*loadedTargets // of those that run, by name
	lastRead       *loadedTargets            // that somebody asked for last
}

// Reconcile looks at one ImagePrune.
func (r *PruneReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return r.throttle.runThrottled(ctx, request.Name, r.reconcilePrune)
}

// reconcilePrune reads an ImagePrune as it is stored now: by an older state, one that runs
// could be taken for one that does not.
func (r *PruneReconciler) reconcilePrune(ctx context.Context, name string) (after time.Duration, err error) {
	awaits := r.Tracker.Initialized()
	stored := &v1alpha1.ImagePrune{}
	err = r.Live.Get(ctx, client.ObjectKey{Name: name}, stored)
	switch {
	case apierrors.IsNotFound(err):
		r.throttle.forget(name)
		r.stopPrune(name, awaits)
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading ImagePrune %s: %w", name, err)
	case !stored.DeletionTimestamp.IsZero() || stored.Status.Phase.IsFinal():
		r.stopPrune(name, awaits)
		return 0, nil
	}
	return r.reconcileActive(ctx, stored, awaits)
}

// stopPrune has nothing asked any more for an ImagePrune.
func (r *PruneReconciler) stopPrune(name string, awaits bool) {
	r.Tracker.RemovePrune(name)
	if awaits {
		r.Tracker.MarkSeen(Object{KindPrune, name})
	}
	r.statusPaces.Forget(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.targetsByPrune, name)
}

// reconcileActive begins an ImagePrune, and goes on with it until it has ended.
func (r *PruneReconciler) reconcileActive(ctx context.Context, stored *v1alpha1.ImagePrune, awaits bool) (after time.Duration, err error) {
	if !r.Roots.HasSynced() {
		return startupRetryDelay, nil // what is not known yet would look as if nobody had told
	}
	v, d, err := r.gatherAndDecide(ctx, stored)
	if err != nil {
		return 0, err
	}
	ran := isRunning(stored)
	switch {
	case !ran:
		r.markSeen(stored, awaits)
	case d.Status.Phase.IsFinal():
		// It is not planned afresh, and not known to be gone before that is stored.
	default:
		if r.requestTargets(stored, v) {
			d = prune.Decide(v) // what is in the plans is known only now
		}
		r.markSeen(stored, awaits)
	}
	if wait := r.startDelay(stored, d.Status.Phase, v.Now); wait > 0 {
		return wait, nil
	}
	wait, err := r.updateStatus(ctx, stored, &d.Status)
	if err != nil {
		return 0, err
	}
	switch {
	case stored.Status.Phase.IsFinal():
		r.stopPrune(stored.Name, awaits)
		return 0, nil
	case !ran && isRunning(stored):
		r.requestTargets(stored, v)
	}
	return shorterDelay(d.RequeueAfter, wait), nil
}

func (r *PruneReconciler) markSeen(stored *v1alpha1.ImagePrune, awaits bool) {
	if awaits {
		r.Tracker.MarkSeen(Object{KindPrune, stored.Name})
	}
}

func isRunning(stored *v1alpha1.ImagePrune) bool {
	return stored.Status.Phase == v1alpha1.ImagePruneRunning && stored.Status.StartedAt != nil
}

// startDelay tells how long one that does not run yet is to wait before it does. now is
// when it would have begun, as it would be stored.
func (r *PruneReconciler) startDelay(stored *v1alpha1.ImagePrune, next v1alpha1.ImagePrunePhase, now time.Time) time.Duration {
	switch {
	case isRunning(stored) || next != v1alpha1.ImagePruneRunning:
		return 0
	case !r.Tracker.Ready():
		return startupRetryDelay // those that run already are older
	default:
		return r.Tracker.StartDelay(now)
	}
}

// requestTargets has members asked for the targets of one that is stored to run, and no
// sooner: by when it began, a hub that is restarted knows when it is to end. anew
// tells that something else is asked than when it was looked at last: what was
// decided before rests on plans as they were.
func (r *PruneReconciler) requestTargets(stored *v1alpha1.ImagePrune, v prune.PruneView) (anew bool) {
	clusters, same := targetClusters(v)
	if r.Tracker.ConfirmUnchanged(stored, same) {
		return false
	}
	planned := prune.PlannedPrunes(v.Prune, v.Targets)
	maps.DeleteFunc(planned, func(name string, _ []v1alpha1.PlannedPrune) bool {
		_, is := slices.BinarySearch(same, name)
		return !is
	})
	r.Tracker.SetPrune(stored, clusters, planned)
	return true
}

// targetClusters are those that it has targets in, and of them those that are still the
// clusters of the report, by name.
func targetClusters(v prune.PruneView) (clusters, same []string) {
	last := ""
	for i := range v.Targets {
		t := &v.Targets[i]
		if t.Cluster == last {
			continue
		}
		last = t.Cluster
		clusters = append(clusters, t.Cluster)
		if m, is := v.Members[t.Cluster]; is && t.ClusterUID != "" && m.ClusterUID == t.ClusterUID {
			same = append(same, t.Cluster)
		}
	}
	return clusters, same
}

// gatherAndDecide says how far an ImagePrune is, by the pages of its report where they are
// needed.
func (r *PruneReconciler) gatherAndDecide(ctx context.Context, stored *v1alpha1.ImagePrune) (v prune.PruneView, d prune.PruneDecision, err error) {
	if v, err = r.gatherView(ctx, stored); err != nil {
		return v, d, err
	}
	if stored.Status.Phase == "" {
		// Live: the policy may have gone just before this was created.
		if v.ApprovalGuarded, err = r.Guard.CheckPolicy(ctx, admissionpolicy.PrunesPolicy); err != nil {
			return v, d, err
		}
	}
	if t := r.cachedTargets(stored); t != nil {
		v.Targets, v.AbsentClusters, v.TargetsLoaded, v.ChangedReason = t.list, t.absentClusters, true, t.changedReason
	}
	d = prune.Decide(v)
	if !d.LoadPages || v.TargetsLoaded {
		return v, d, nil
	}
	t, err := r.loadTargets(ctx, stored, v.Report)
	if err != nil {
		return v, d, err
	}
	r.cacheTargets(stored.Name, t)
	v.Targets, v.AbsentClusters, v.TargetsLoaded, v.ChangedReason = t.list, t.absentClusters, true, t.changedReason
	return v, prune.Decide(v), nil
}

// gatherView is what is known of an ImagePrune, without its targets.
func (r *PruneReconciler) gatherView(ctx context.Context, stored *v1alpha1.ImagePrune) (v prune.PruneView, err error) {
	v = prune.PruneView{Now: time.Now(), Prune: stored, Members: map[string]prune.Member{}}
	if v.Report, err = getLiveReport(ctx, r.Live, stored.Spec.ReportRef.Name); err != nil {
		return v, err
	}
	members, err := listMembers(ctx, r.Client)
	if err != nil {
		return v, err
	}
	reporting := make(map[string]types.UID, len(members))
	for _, m := range members {
		offline, _ := rollout.Availability(m)
		reporting[m.Name] = r.Roots.Root(m.Name).ClusterUID
		v.Members[m.Name] = prune.Member{ClusterUID: memberstatus.ResolveClusterUID(m, reporting[m.Name]), Offline: offline != ""}
	}
	v.Reported = func(t prune.Target) (v1alpha1.PruneStatus, bool) {
		if reporting[t.Cluster] != t.ClusterUID {
			return v1alpha1.PruneStatus{}, false // it is another cluster that reports
		}
		return r.Tracker.Reported(t.Cluster, stored.UID, imageKey{Namespace: t.Namespace, Name: t.Name}, t.UID)
	}
	v.HeldReason = func(t prune.Target) string {
		return r.Tracker.HeldReason(stored.UID, t.Cluster, imageKey{Namespace: t.Namespace, Name: t.Name}, t.UID)
	}
	return v, nil
}

// updateStatus writes the status. wait is when to come back for what must not be written
// yet; a change of the phase does not wait.
func (r *PruneReconciler) updateStatus(ctx context.Context, stored *v1alpha1.ImagePrune, status *v1alpha1.ImagePruneStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&stored.Status, status) {
		return 0, nil
	}
	before := stored.Status
	if before.Phase == status.Phase {
		if wait := r.statusPaces.ReserveWrite(stored.Name, trigger.ConditionsChanged(before.Conditions, status.Conditions), time.Now()); wait > 0 {
			return wait, nil
		}
	}
	stored.Status = *status
	if err := r.Status().Update(ctx, stored); err != nil {
		return 0, fmt.Errorf("storing status of ImagePrune %s: %w", stored.Name, err)
	}
	if before.Phase != status.Phase {
		kind := corev1.EventTypeNormal
		if status.Phase == v1alpha1.ImagePruneFailed || status.Reason == v1alpha1.ReasonPartlyPruned {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(stored, nil, kind, status.Reason, "Prune", "it is %s: %s", status.Phase, status.Message)
	}
	return 0, nil
}
