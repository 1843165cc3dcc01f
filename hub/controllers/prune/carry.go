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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/pace"
	"github.com/pelotech/ot-fleet/hub/controllers/poke"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/guard"
	"github.com/pelotech/ot-fleet/hub/prune"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=imageprunes,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=imageprunes/status,verbs=update
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereports,verbs=get;list;watch
// +kubebuilder:rbac:groups=pelotech.ot,resources=prunereportpages,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Prunes carries out ImagePrunes, one at a time: none begins in the second in which
// another does. It runs in the elected replica; what it tells of targets, every
// replica tells.
type Prunes struct {
	// Client reads from the cache, which has no pages of PruneReports: they are large.
	client.Client
	Live     client.Reader
	Events   events.EventRecorder
	Register *Register
	Roots    *report.Store
	Guard    *guard.Guard

	again  poke.Source[ctrl.Request]
	paces  pace.Paces
	looks  looks
	mu     sync.Mutex
	loaded map[string]*targets // of those that run, by name
	asked  *targets            // that somebody asked for last
}

// Reconcile looks at one ImagePrune.
func (r *Prunes) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return r.looks.take(ctx, request.Name, r.look)
}

// look reads an ImagePrune as it is stored now: by an older state, one that runs
// could be taken for one that does not.
func (r *Prunes) look(ctx context.Context, name string) (after time.Duration, err error) {
	awaits := r.Register.awaits()
	stored := &v1alpha1.ImagePrune{}
	err = r.Live.Get(ctx, client.ObjectKey{Name: name}, stored)
	switch {
	case apierrors.IsNotFound(err):
		r.looks.forget(name)
		r.leave(name, awaits)
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading ImagePrune %s: %w", name, err)
	case !stored.DeletionTimestamp.IsZero() || stored.Status.Phase.Ended():
		r.leave(name, awaits)
		return 0, nil
	}
	return r.carry(ctx, stored, awaits)
}

// leave has nothing asked any more for an ImagePrune.
func (r *Prunes) leave(name string, awaits bool) {
	r.Register.ended(name)
	if awaits {
		r.Register.seen(object{kindPrune, name})
	}
	r.paces.Forget(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.loaded, name)
}

// carry begins an ImagePrune, and goes on with it until it has ended.
func (r *Prunes) carry(ctx context.Context, stored *v1alpha1.ImagePrune, awaits bool) (after time.Duration, err error) {
	if !r.Roots.Filled() {
		return starting, nil // what is not known yet would look as if nobody had told
	}
	v, d, err := r.decide(ctx, stored)
	if err != nil {
		return 0, err
	}
	ran := running(stored)
	switch {
	case !ran:
		r.seen(stored, awaits)
	case d.Status.Phase.Ended():
		// It is not planned afresh, and not known to be gone before that is stored.
	default:
		if r.enter(stored, v) {
			d = prune.Decide(v) // what is in the plans is known only now
		}
		r.seen(stored, awaits)
	}
	if wait := r.begin(stored, d.Status.Phase, v.Now); wait > 0 {
		return wait, nil
	}
	wait, err := r.tell(ctx, stored, &d.Status)
	if err != nil {
		return 0, err
	}
	switch {
	case stored.Status.Phase.Ended():
		r.leave(stored.Name, awaits)
		return 0, nil
	case !ran && running(stored):
		r.enter(stored, v)
	}
	return sooner(d.After, wait), nil
}

func (r *Prunes) seen(stored *v1alpha1.ImagePrune, awaits bool) {
	if awaits {
		r.Register.seen(object{kindPrune, stored.Name})
	}
}

func running(stored *v1alpha1.ImagePrune) bool {
	return stored.Status.Phase == v1alpha1.ImagePruneRunning && stored.Status.StartedAt != nil
}

// begin tells how long one that does not run yet is to wait before it does. now is
// when it would have begun, as it would be stored.
func (r *Prunes) begin(stored *v1alpha1.ImagePrune, next v1alpha1.ImagePrunePhase, now time.Time) time.Duration {
	switch {
	case running(stored) || next != v1alpha1.ImagePruneRunning:
		return 0
	case !r.Register.Known():
		return starting // those that run already are older
	default:
		return r.Register.turn(now)
	}
}

// enter has members asked for the targets of one that is stored to run, and no
// sooner: by when it began, a hub that is restarted knows when it is to end. anew
// tells that something else is asked than when it was looked at last: what was
// decided before rests on plans as they were.
func (r *Prunes) enter(stored *v1alpha1.ImagePrune, v prune.PruneView) (anew bool) {
	clusters, same := clustersOf(v)
	if r.Register.again(stored, same) {
		return false
	}
	planned := prune.Planned(v.Prune, v.Targets)
	maps.DeleteFunc(planned, func(name string, _ []v1alpha1.PlannedPrune) bool {
		_, is := slices.BinarySearch(same, name)
		return !is
	})
	r.Register.start(stored, clusters, planned)
	return true
}

// clustersOf are those that it has targets in, and of them those that are still the
// clusters of the report, by name.
func clustersOf(v prune.PruneView) (clusters, same []string) {
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

// decide says how far an ImagePrune is, by the pages of its report where they are
// needed.
func (r *Prunes) decide(ctx context.Context, stored *v1alpha1.ImagePrune) (v prune.PruneView, d prune.PruneDecision, err error) {
	if v, err = r.view(ctx, stored); err != nil {
		return v, d, err
	}
	if stored.Status.Phase == "" {
		// Live: the policy may have gone just before this was created.
		if v.Guarded, err = r.Guard.Look(ctx, guard.Prunes); err != nil {
			return v, d, err
		}
	}
	if t := r.targets(stored); t != nil {
		v.Targets, v.Absent, v.Loaded, v.Changed = t.list, t.absent, true, t.changed
	}
	d = prune.Decide(v)
	if !d.Load || v.Loaded {
		return v, d, nil
	}
	t, err := r.load(ctx, stored, v.Report)
	if err != nil {
		return v, d, err
	}
	r.keep(stored.Name, t)
	v.Targets, v.Absent, v.Loaded, v.Changed = t.list, t.absent, true, t.changed
	return v, prune.Decide(v), nil
}

// view is what is known of an ImagePrune, without its targets.
func (r *Prunes) view(ctx context.Context, stored *v1alpha1.ImagePrune) (v prune.PruneView, err error) {
	v = prune.PruneView{Now: time.Now(), Prune: stored, Members: map[string]prune.Member{}}
	if v.Report, err = liveReport(ctx, r.Live, stored.Spec.ReportRef.Name); err != nil {
		return v, err
	}
	members, err := membersOf(ctx, r.Client)
	if err != nil {
		return v, err
	}
	reporting := make(map[string]types.UID, len(members))
	for _, m := range members {
		offline, _ := rollout.Online(m)
		reporting[m.Name] = r.Roots.Root(m.Name).ClusterUID
		v.Members[m.Name] = prune.Member{ClusterUID: fleet.ClusterUID(m, reporting[m.Name]), Offline: offline != ""}
	}
	v.Reported = func(t prune.Target) (v1alpha1.PruneStatus, bool) {
		if reporting[t.Cluster] != t.ClusterUID {
			return v1alpha1.PruneStatus{}, false // it is another cluster that reports
		}
		return r.Register.Reported(t.Cluster, stored.UID, key{Namespace: t.Namespace, Name: t.Name}, t.UID)
	}
	v.Held = func(t prune.Target) string {
		return r.Register.held(stored.UID, t.Cluster, key{Namespace: t.Namespace, Name: t.Name}, t.UID)
	}
	return v, nil
}

// tell writes the status. wait is when to come back for what must not be written
// yet; a change of the phase does not wait.
func (r *Prunes) tell(ctx context.Context, stored *v1alpha1.ImagePrune, status *v1alpha1.ImagePruneStatus) (wait time.Duration, err error) {
	if equality.Semantic.DeepEqual(&stored.Status, status) {
		return 0, nil
	}
	before := stored.Status
	if before.Phase == status.Phase {
		if wait := r.paces.Wait(stored.Name, pace.Urgent(before.Conditions, status.Conditions), time.Now()); wait > 0 {
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
