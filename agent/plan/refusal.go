package plan

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Refusal is what the refusal of a request for a planned image means.
type Refusal struct {
	Report v1alpha1.PlanItemReport
	// NamespaceUnavailable: no image can be created in the namespace.
	NamespaceUnavailable bool
	// Transient: the same request may succeed later; the image itself was not refused.
	Transient bool
}

// ClassifyRefusal classifies the error of a request to create or change an image.
func ClassifyRefusal(want *v1alpha1.PlannedImage, err error) Refusal {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return Refusal{Report: blockedReport(v1alpha1.ReasonNamespaceTerminating, "namespace %s is being deleted", want.Namespace), NamespaceUnavailable: true}
	case isNamespaceMissing(err):
		return Refusal{Report: blockedReport(v1alpha1.ReasonNamespaceMissing, "namespace %s does not exist: create it", want.Namespace), NamespaceUnavailable: true}
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: "):
		return Refusal{Report: blockedReport(v1alpha1.ReasonQuotaExceeded, "%s", err.Error())}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
		return Refusal{Report: itemReport(v1alpha1.PlanItemRejected, err.Error())}
	default:
		return Refusal{Report: waitingReport("%s", err.Error()), Transient: true}
	}
}

// PostponedReport is about an image that is not tried yet, since requests for others failed.
func PostponedReport() v1alpha1.PlanItemReport {
	return waitingReport("the agent tries this image after a pause: requests for images of the plan fail or take long, as by a webhook of their namespace")
}

func isNamespaceMissing(err error) bool {
	if !apierrors.IsNotFound(err) {
		return false
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}
