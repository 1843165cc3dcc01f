package image

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxClockSkew is how far the API server's clock may be behind what a deletion waits for. Its times
// are in whole seconds.
const maxClockSkew = 30 * time.Second

// errServerClockBehind: an image may not be deleted yet by the API server's clock.
var errServerClockBehind = errors.New("the API server's clock is behind the agent's")

// serverClock remembers how far the agent's clock was ahead of the API server's: many images may
// wait for that, and what a deletion rests on is read live.
type serverClock struct {
	mu         sync.Mutex
	ahead      time.Duration
	measuredAt time.Time
}

func (c *serverClock) setAhead(ahead time.Duration, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead, c.measuredAt = ahead, now
}

// aheadBy returns what was measured; 0 where that is too long ago, or nothing was.
func (c *serverClock) aheadBy(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.measuredAt) >= image.ClockRecheckInterval {
		return 0
	}
	return c.ahead
}

// checkServerClock returns errServerClockBehind while an image may not be deleted yet by the API
// server's clock. What follows a deletion cannot be undone, and the clock of the node that the agent
// runs on may be ahead.
func (r *Reconciler) checkServerClock(ctx context.Context, img *v1alpha1.VMDiskImage, notBefore time.Time) error {
	now, err := r.readServerClock(ctx, r.newClockEvent())
	switch {
	case isProbeRefused(err), apierrors.IsNotFound(err):
		ctrl.LoggerFrom(ctx).Info("Failed to read the API server's time; using the agent's clock for the deletion", "image", image.KeyOf(img), "error", err)
		return nil
	case err != nil:
		return fmt.Errorf("asking for the API server's clock to delete %s: %w", describeImage(img), err)
	case !now.IsZero() && now.Add(maxClockSkew).Before(notBefore):
		r.serverClock.setAhead(time.Since(now), time.Now())
		return errServerClockBehind
	}
	return nil
}

// clockProbePrefix begins the names of objects that are not stored.
const clockProbePrefix = "ot-clock-"

// readServerClock asks the API server for the creation time of a probe that is not stored.
func (r *Reconciler) readServerClock(ctx context.Context, probe client.Object) (time.Time, error) {
	err := r.Create(ctx, probe, client.DryRunAll)
	return probe.GetCreationTimestamp().Time, err
}

// isProbeRefused reports whether a quota, a right or a webhook is in the way of a probe. A webhook
// that does not answer dry runs, or not at all, is one of these, too.
func isProbeRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsInternalError(err)
}

// newClockEvent is of the agent's own namespace: quotas and webhooks of others say nothing there.
func (r *Reconciler) newClockEvent() *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, GenerateName: clockProbePrefix},
		EventTime:  metav1.NowMicro(), ReportingController: "ot-agent", ReportingInstance: "ot-agent",
		Action: "Delete", Reason: "Clock", Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{Kind: "SyncLedger", Namespace: r.Namespace, Name: v1alpha1.LedgerName},
	}
}

// recordClockAhead says why an image is not deleted yet.
func (r *Reconciler) recordClockAhead(img *v1alpha1.VMDiskImage, notBefore time.Time) {
	r.Events.Eventf(img, nil, corev1.EventTypeWarning, "ClockAhead", "Delete",
		"may be deleted from %s on, which has come by the agent's clock, and not by the API server's: correct the clocks of their nodes", notBefore.UTC().Format(time.RFC3339))
}
