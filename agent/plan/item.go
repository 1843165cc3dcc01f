package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Action is what to do about a planned image.
type Action string

// Actions.
const (
	// Leave the image as it is, or as it is not.
	Leave Action = "Leave"
	// Create it.
	Create Action = "Create"
	// Change it to what the plan says.
	Change Action = "Change"
)

// AppliedState is what was last applied to an image: further fields that others have
// set make it differ from the plan for good.
type AppliedState struct {
	UID types.UID
	// SpecFingerprint is the fingerprint of the planned spec.
	SpecFingerprint string
	// Generation that the image had then.
	Generation int64
}

// NextAction tells what to do about a planned image. there is the image of that name,
// nil for none; applied is nil for an image that nothing was applied to yet.
func NextAction(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage, applied *AppliedState) (Action, v1alpha1.PlanItemReport) {
	switch {
	case there == nil:
		return Create, waitingReport("not made yet")
	case !image.IsPlanned(there):
		return Leave, v1alpha1.PlanItemReport{
			State:   v1alpha1.PlanItemNotOurs,
			Message: fmt.Sprintf("a VMDiskImage of that name was made by somebody else and is left alone; label it %s=%s to hand it over to the plan", v1alpha1.LabelPlanned, image.PlannedLabelValue),
		}
	case there.DeletionTimestamp != nil:
		return Leave, waitingReport("it is being deleted, and is made again when it is gone")
	case equality.Semantic.DeepEqual(there.Spec, want.Spec),
		applied != nil && applied.UID == there.UID && applied.SpecFingerprint == FingerprintSpec(want) && there.Generation <= applied.Generation:
		return Leave, AppliedReport()
	default:
		return Change, waitingReport("not changed yet")
	}
}

// AppliedReport is the report of an image that is as the plan says.
func AppliedReport() v1alpha1.PlanItemReport {
	return v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied}
}

func waitingReport(format string, args ...any) v1alpha1.PlanItemReport {
	return itemReport(v1alpha1.PlanItemWaiting, fmt.Sprintf(format, args...))
}

const maxMessageBytes = 1024

func itemReport(state v1alpha1.PlanItemState, message string) v1alpha1.PlanItemReport {
	if len(message) > maxMessageBytes {
		message = strings.ToValidUTF8(message[:maxMessageBytes], "")
	}
	return v1alpha1.PlanItemReport{State: state, Message: message}
}

// FingerprintSpec tells planned specs apart.
func FingerprintSpec(want *v1alpha1.PlannedImage) string {
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(want.Spec)
	return strconv.FormatUint(h.Sum64(), 36)
}

// NewImage is the VMDiskImage that a plan asks for.
func NewImage(want *v1alpha1.PlannedImage) *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: want.Namespace, Name: want.Name, Labels: map[string]string{v1alpha1.LabelPlanned: image.PlannedLabelValue}},
		Spec:       *want.Spec.DeepCopy(),
	}
}

// NewApplyConfiguration is what is applied to change an image. It names the UID and the
// resourceVersion of what was looked at: by the time it arrives, that name may
// be somebody else's image.
func NewApplyConfiguration(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(want.Spec)
	if err != nil {
		return nil, fmt.Errorf("encoding the planned spec of VMDiskImage %s/%s: %w", want.Namespace, want.Name, err)
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("encoding the planned spec of VMDiskImage %s/%s: %w", want.Namespace, want.Name, err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("VMDiskImage"))
	u.SetNamespace(want.Namespace)
	u.SetName(want.Name)
	u.SetUID(there.UID)
	u.SetResourceVersion(there.ResourceVersion)
	u.SetLabels(map[string]string{v1alpha1.LabelPlanned: image.PlannedLabelValue})
	return u, nil
}

// Refusal is what the API server's refusal of a planned image means.
type Refusal struct {
	Report v1alpha1.PlanItemReport
	// Namespace: it is the namespace that is not there, so that no other image can
	// be made in it either.
	NamespaceUnavailable bool
	// Transient: the API server has not judged the image. The same request may
	// succeed the next time.
	Transient bool
}

// ClassifyRefusal reads the error of a request that was to create or change an image.
func ClassifyRefusal(want *v1alpha1.PlannedImage, err error) Refusal {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return Refusal{Report: waitingReport("namespace %s is being deleted", want.Namespace), NamespaceUnavailable: true}
	case isNamespaceMissing(err):
		return Refusal{Report: waitingReport("namespace %s does not exist: create it", want.Namespace), NamespaceUnavailable: true}
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: "):
		return Refusal{Report: waitingReport("%s", err.Error())}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
		return Refusal{Report: itemReport(v1alpha1.PlanItemRejected, err.Error())}
	default:
		return Refusal{Report: waitingReport("%s", err.Error()), Transient: true}
	}
}

func isNamespaceMissing(err error) bool {
	if !apierrors.IsNotFound(err) {
		return false
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}
