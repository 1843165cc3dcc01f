package report

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// refusedActivityDelay is the wait before an activity is written again that the API server
// refused. Its definition of ClusterReports is older than this agent until somebody upgrades it.
const refusedActivityDelay = 10 * time.Minute

// errActivityDropped: the API server has stored an activity without its content.
var errActivityDropped = errors.New("the definition of ClusterReports has no field activity")

// activityState is what the Reconciler knows of the activity that it writes.
type activityState struct {
	// written is what this process wrote last, as it was stored; nil for nothing.
	written *v1alpha1.ReportedActivity
	// rates are those that it had, with what an older definition of ClusterReports drops.
	rates []v1alpha1.SourceRate
	// nextAt is when the next one may be written.
	nextAt time.Time
}

// writeActivity writes what is imported and what waits: at most once per heartbeat, while
// something is or does. It returns when to do so again; 0 for not before something changes.
func (r *Reconciler) writeActivity(ctx context.Context) (after time.Duration, err error) {
	now := time.Now()
	if wait := r.activity.nextAt.Sub(now); wait > 0 {
		return wait, nil
	}
	next, err := r.buildActivity(ctx, now)
	if err != nil {
		return 0, err
	}
	if !r.needsActivity(&next) {
		return 0, nil
	}
	err = r.writeObject(ctx, v1alpha1.ActivityName, func(obj *v1alpha1.ClusterReport) { obj.Activity = &next })
	stored := r.objectFor(v1alpha1.ActivityName).activity // without the fields that the API server drops
	if err == nil && stored == nil {
		err = errActivityDropped
	}
	switch {
	case err == nil:
	case mailbox.IsRefused(err), errors.Is(err, errActivityDropped):
		r.activity.nextAt = now.Add(refusedActivityDelay)
		ctrl.LoggerFrom(ctx).Info("The API server refuses the activity; going on without it. Check that the CRDs are of the agent's version", "error", err, "retryAfter", refusedActivityDelay)
		return refusedActivityDelay, nil
	case errors.Is(err, errReportChanged):
		return r.Interval, nil // it is read again before the next report
	default:
		return 0, err
	}
	r.Metrics.CountWrite(metrics.ReportActivity)
	r.activity = activityState{written: stored, rates: next.Rates, nextAt: now.Add(r.Heartbeat)}
	return r.Heartbeat, nil
}

// needsActivity reports whether an activity is written: each while something is imported or
// waits, one after that, and one where what is stored is not what this process wrote last.
// The ledger may show that nothing is imported before the image shows that it is done: rates that
// come after the last activity are written too.
func (r *Reconciler) needsActivity(next *v1alpha1.ReportedActivity) bool {
	stored := r.stored[v1alpha1.ActivityName]
	return report.IsBusy(next) || r.activity.written == nil || report.IsBusy(r.activity.written) ||
		!equality.Semantic.DeepEqual(next.Rates, r.activity.rates) ||
		stored == nil || !stored.exists() || stored.mustRewrite || !equality.Semantic.DeepEqual(stored.activity, r.activity.written)
}

// buildActivity reads from caches only.
func (r *Reconciler) buildActivity(ctx context.Context, now time.Time) (v1alpha1.ReportedActivity, error) {
	cached, err := r.readLedger(ctx)
	if err != nil {
		return v1alpha1.ReportedActivity{}, err
	}
	in := report.ActivityInput{Now: now, BootID: r.Grants.BootID(), Policy: r.policyInForce(), Rates: r.rates}
	var slots []v1alpha1.Slot
	if cached != nil && cached.Status != nil {
		in.Ledger, slots = cached.Status, cached.Status.Slots
	}
	in.Waiting, in.Queued = r.Queue.ListWaiting(v1alpha1.MaxQueuedImports, ledger.NewNamespaceShare(in.Policy.NamespaceShare, slots, nil))
	images := map[types.UID]*v1alpha1.VMDiskImage{}
	for _, key := range in.Images() {
		img := &v1alpha1.VMDiskImage{}
		err := r.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, img)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return v1alpha1.ReportedActivity{}, fmt.Errorf("reading VMDiskImage %s/%s: %w", key.Namespace, key.Name, err)
		case img.UID == key.UID:
			images[key.UID] = img
		}
	}
	in.FindImage = func(key v1alpha1.ImageKey) *v1alpha1.VMDiskImage { return images[key.UID] }
	return report.BuildActivity(in), nil
}

// observeRates has the rates take in the status of an image.
func (r *Reconciler) observeRates(img *v1alpha1.VMDiskImage) {
	r.rates.ObserveImage(img, r.policyInForce().Sources.GroupOrOther(img.Spec.SourceHost()))
}

// policyInForce is the default before there is one.
func (r *Reconciler) policyInForce() policy.Policy {
	if p := r.Policy(); p != nil {
		return *p
	}
	return policy.Default()
}
