// Package imageprune carries out ImagePrunes: it requests the targets of reviewed
// reports from the members, by package hub/prune, until each has an outcome.
package imageprune

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
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=imageprunes,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=imageprunes/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereports,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereportpages,verbs=get
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// startupRetryDelay is the requeue delay while the hub still reads what it decides on.
const startupRetryDelay = 200 * time.Millisecond

// Roots holds the roots of the members' reports; report.Store implements it.
type Roots interface {
	// HasSynced reports whether all stored reports were read.
	HasSynced() bool
	Root(member string) report.Root
	// OnSynced registers a non-blocking callback for when HasSynced becomes true.
	OnSynced(do func())
}

// Reconciler carries out ImagePrunes. It runs in the elected replica, one ImagePrune at
// a time: see prunetracker.Tracker.StartDelay. Only TargetStates works in every replica.
type Reconciler struct {
	// Client reads from the cache, which has no PruneReportPages: they are large.
	client.Client
	Live      client.Reader
	Events    events.EventRecorder
	Tracker   *prunetracker.Tracker
	Roots     Roots
	Approvals *admissionpolicy.ApprovalCheck

	requeue        trigger.Source[ctrl.Request]
	statusPacer    trigger.StatusPacer
	throttle       trigger.Throttle
	mu             sync.Mutex
	targetsByPrune map[string]*loadedTargets // of running ImagePrunes
	lastQueried    *loadedTargets            // see targetsForQuery
}

// Reconcile starts or continues one ImagePrune.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return r.throttle.Reconcile(ctx, request.Name, r.reconcile)
}

// reconcile reads the ImagePrune live: a stale one could look as if it did not run.
func (r *Reconciler) reconcile(ctx context.Context, name string) (after time.Duration, err error) {
	countsAsSeen := r.Tracker.Initialized()
	stored := &v1alpha1.ImagePrune{}
	err = r.Live.Get(ctx, client.ObjectKey{Name: name}, stored)
	switch {
	case apierrors.IsNotFound(err):
		r.throttle.Forget(name)
		r.withdrawRequests(name, countsAsSeen)
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading ImagePrune %s: %w", name, err)
	case !stored.DeletionTimestamp.IsZero():
		r.withdrawRequests(name, countsAsSeen)
		return 0, nil
	case stored.Status.Phase.IsFinal():
		r.withdrawRequests(name, countsAsSeen)
		return r.observeLateUndo(ctx, stored)
	}
	return r.reconcileActive(ctx, stored, countsAsSeen)
}

// observeLateUndo stores the generation of an ImagePrune that was changed after its end, or
// tools would wait for that without end. Such a change can only be an undo.
func (r *Reconciler) observeLateUndo(ctx context.Context, stored *v1alpha1.ImagePrune) (after time.Duration, err error) {
	observed := stored.Status.ObservedGeneration
	d := prune.Decide(prune.PruneView{Now: time.Now(), Prune: stored})
	if wait, err := r.updateStatus(ctx, stored, &d.Status); wait > 0 || err != nil {
		return wait, err
	}
	if stored.Spec.Undo && stored.Status.Phase != v1alpha1.ImagePruneUndone && stored.Status.ObservedGeneration != observed {
		r.Events.Eventf(stored, nil, corev1.EventTypeWarning, "UndoTooLate", "Prune",
			"spec.undo was set after the ImagePrune was %s, and undoes nothing: what was deleted is deleted", stored.Status.Phase)
	}
	return 0, nil
}

func (r *Reconciler) withdrawRequests(name string, countsAsSeen bool) {
	r.Tracker.RemovePrune(name)
	r.markSeen(name, countsAsSeen)
	r.statusPacer.Forget(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.targetsByPrune, name)
}

func (r *Reconciler) markSeen(name string, countsAsSeen bool) {
	if countsAsSeen {
		r.Tracker.MarkSeen(prunetracker.Object{Kind: prunetracker.KindPrune, Name: name})
	}
}

// reconcileActive starts an ImagePrune, or continues it until it has ended: gather,
// decide, request, write the status.
func (r *Reconciler) reconcileActive(ctx context.Context, stored *v1alpha1.ImagePrune, countsAsSeen bool) (after time.Duration, err error) {
	wasRunning := isRunning(stored)
	if !wasRunning {
		// Requests under its name are those of one that was deleted, and made again since.
		r.Tracker.RemovePrune(stored.Name)
		// Invariant: it requests nothing until Running is stored, so it counts as seen whatever
		// fails below. Otherwise one ImagePrune that keeps failing holds back all requests.
		r.markSeen(stored.Name, countsAsSeen)
	}
	if !r.Roots.HasSynced() {
		return startupRetryDelay, nil // a report that is not read yet would look like no answer
	}
	v, d, err := r.gatherAndDecide(ctx, stored)
	if err != nil {
		return 0, err
	}
	switch {
	case !wasRunning: // it is seen already
	case d.Status.Phase.IsFinal():
		// It requests nothing new, and counts as seen only once its end is stored.
	default:
		if r.requestTargets(stored, v) {
			d = prune.Decide(v) // the decision depends on which requests the plans hold
		}
		r.markSeen(stored.Name, countsAsSeen)
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
		r.withdrawRequests(stored.Name, countsAsSeen)
		return 0, nil
	case !wasRunning && isRunning(stored):
		r.requestTargets(stored, v)
	}
	return trigger.Earliest(d.RequeueAfter, wait), nil
}

func isRunning(stored *v1alpha1.ImagePrune) bool {
	return stored.Status.Phase == v1alpha1.ImagePruneRunning && stored.Status.StartedAt != nil
}

// startDelay returns how long an ImagePrune that is to start now waits. ImagePrunes that
// already run are older, so all of them must be known.
func (r *Reconciler) startDelay(stored *v1alpha1.ImagePrune, next v1alpha1.ImagePrunePhase, now time.Time) time.Duration {
	switch {
	case isRunning(stored) || next != v1alpha1.ImagePruneRunning:
		return 0
	case !r.Tracker.Ready():
		return startupRetryDelay
	default:
		return r.Tracker.StartDelay(now)
	}
}

// requestTargets requests the targets of an ImagePrune that is stored as Running, and no
// sooner: a restarted hub takes the deadline from startedAt. changed is false where the
// Tracker already had these requests.
func (r *Reconciler) requestTargets(stored *v1alpha1.ImagePrune, v prune.PruneView) (changed bool) {
	clusters, unreplaced := targetClusters(v)
	if r.Tracker.ConfirmUnchanged(stored, unreplaced) {
		return false
	}
	planned := prune.PlannedPrunes(v.Prune, v.Targets)
	maps.DeleteFunc(planned, func(name string, _ []v1alpha1.PlannedPrune) bool {
		_, found := slices.BinarySearch(unreplaced, name)
		return !found
	})
	r.Tracker.SetPrune(stored, clusters, planned)
	return true
}

// targetClusters returns all clusters with targets, and those of them that are still the
// clusters of the report, by name.
func targetClusters(v prune.PruneView) (clusters, unreplaced []string) {
	last := ""
	for i := range v.Targets {
		t := &v.Targets[i]
		if t.Cluster == last {
			continue
		}
		last = t.Cluster
		clusters = append(clusters, t.Cluster)
		if m, ok := v.Members[t.Cluster]; ok && t.ClusterUID != "" && m.ClusterUID == t.ClusterUID {
			unreplaced = append(unreplaced, t.Cluster)
		}
	}
	return clusters, unreplaced
}

// updateStatus writes a status that changes. A change within a phase is paced: wait is
// the time until it may be written.
func (r *Reconciler) updateStatus(ctx context.Context, stored *v1alpha1.ImagePrune, status *v1alpha1.ImagePruneStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&stored.Status, status) {
		return 0, nil
	}
	before := stored.Status
	if before.Phase == status.Phase {
		if wait := r.statusPacer.ReserveWrite(stored.Name, trigger.ConditionsChanged(before.Conditions, status.Conditions), time.Now()); wait > 0 {
			return wait, nil
		}
	}
	stored.Status = *status
	if err := r.Status().Update(ctx, stored); err != nil {
		return 0, fmt.Errorf("updating the status of ImagePrune %s: %w", stored.Name, err)
	}
	if before.Phase != status.Phase {
		eventType := corev1.EventTypeNormal
		if status.Phase == v1alpha1.ImagePruneFailed || status.Reason == v1alpha1.ReasonPartlyPruned {
			eventType = corev1.EventTypeWarning
		}
		r.Events.Eventf(stored, nil, eventType, status.Reason, "Prune", "ImagePrune is %s: %s", status.Phase, status.Message)
	}
	return 0, nil
}
