package image

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// imageRequest is a request for an image itself.
type imageRequest string

const (
	changeFinalizer imageRequest = "change the finalizer of"
	storeStatus     imageRequest = "store the status of"
	deleteImage     imageRequest = "delete"
)

// imageRefusals remembers why the API server refuses requests for images themselves.
type imageRefusals struct{ finalizer, status, deletion refusals }

func (r *imageRefusals) refusalsOf(request imageRequest) *refusals {
	switch request {
	case changeFinalizer:
		return &r.finalizer
	case storeStatus:
		return &r.status
	default:
		return &r.deletion
	}
}

func (r *imageRefusals) forgetImage(img *v1alpha1.VMDiskImage) {
	for _, request := range []imageRequest{changeFinalizer, storeStatus, deleteImage} {
		r.refusalsOf(request).set(img.UID, nil)
	}
}

// writeImage sends a request for the image itself. Every one of them goes through here: one that is
// refused, conflicts for so long that no other read solves it, or fails for refusalHold, is shown as
// one for an object of the image is. A status that is refused cannot say so, and an Event does.
func (r *Reconciler) writeImage(img *v1alpha1.VMDiskImage, request imageRequest, send func() error) error {
	err := send()
	known := r.imageRefusals.refusalsOf(request)
	switch {
	case client.IgnoreNotFound(err) == nil:
		known.set(img.UID, nil)
	case isRefused(err), apierrors.IsConflict(err) && r.conflicts.IsExhausted(requestFor(image.KeyOf(img))), !apierrors.IsConflict(err) && known.lasts(img.UID):
		isNew := known.set(img.UID, fmt.Errorf("the API server refuses to %s VMDiskImage %s: %w", request, img.Name, err))
		if isNew && request == storeStatus {
			r.Events.Eventf(img, nil, corev1.EventTypeWarning, "StatusRefused", "Reconcile", "%s; its status is an earlier one", known.get(img.UID))
		}
	}
	return err
}
