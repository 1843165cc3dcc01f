package image

import (
	"context"
	"fmt"
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

// checkServerClock returns an error while an image may not be deleted yet by the API server's clock.
// What follows a deletion cannot be undone, and the clock of the node that the agent runs on may be
// ahead. The clock is that of the creation time of an Event that is not stored.
func (r *Reconciler) checkServerClock(ctx context.Context, img *v1alpha1.VMDiskImage, notBefore time.Time) error {
	probe := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: img.Namespace, GenerateName: "ot-clock-"},
		EventTime:  metav1.NowMicro(), ReportingController: "ot-agent", ReportingInstance: "ot-agent",
		Action: "Delete", Reason: "Clock", Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{Kind: "VMDiskImage", Namespace: img.Namespace, Name: img.Name, UID: img.UID},
	}
	err := r.Create(ctx, probe, client.DryRunAll)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		ctrl.LoggerFrom(ctx).Info("The API server does not say its time; deleting the image by the agent's clock", "image", image.KeyOf(img), "error", v1alpha1.SanitizeText(err.Error(), 512))
		return nil
	case err != nil:
		return fmt.Errorf("asking for the API server's clock to delete %s: %w", describeImage(img), err)
	}
	if now := probe.CreationTimestamp.Time; !now.IsZero() && now.Add(maxClockSkew).Before(notBefore) {
		err := fmt.Errorf("%s may be deleted from %s on, and it is %s by the API server's clock: the agent's clock is ahead of it; correct the clocks of their nodes",
			describeImage(img), notBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
		r.Events.Eventf(img, nil, corev1.EventTypeWarning, "ClockAhead", "Delete", "%s", err)
		return err
	}
	return nil
}
