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

// Applied is what was last applied to an image: further fields that others have
// set make it differ from the plan for good.
type Applied struct {
	UID types.UID
	// Spec is the fingerprint of the planned spec.
	Spec string
	// Generation that the image had then.
	Generation int64
}

// Next tells what to do about a planned image. there is the image of that name,
// nil for none; applied is nil for an image that nothing was applied to yet.
func Next(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage, applied *Applied) (Action, v1alpha1.PlanItemReport) {
	switch {
	case there == nil:
		return Create, waiting("not made yet")
	case !image.OfPlan(there):
		return Leave, v1alpha1.PlanItemReport{
			State:   v1alpha1.PlanItemNotOurs,
			Message: fmt.Sprintf("a VMDiskImage of that name was made by somebody else and is left alone; label it %s=%s to hand it over to the plan", v1alpha1.LabelPlanned, image.Planned),
		}
	case there.DeletionTimestamp != nil:
		return Leave, waiting("it is being deleted, and is made again when it is gone")
	case equality.Semantic.DeepEqual(there.Spec, want.Spec),
		applied != nil && applied.UID == there.UID && applied.Spec == Fingerprint(want) && there.Generation <= applied.Generation:
		return Leave, Done()
	default:
		return Change, waiting("not changed yet")
	}
}

// Done is the report of an image that is as the plan says.
func Done() v1alpha1.PlanItemReport {
	return v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied}
}

func waiting(format string, args ...any) v1alpha1.PlanItemReport {
	return item(v1alpha1.PlanItemWaiting, fmt.Sprintf(format, args...))
}

const mostMessage = 1024

func item(state v1alpha1.PlanItemState, message string) v1alpha1.PlanItemReport {
	if len(message) > mostMessage {
		message = strings.ToValidUTF8(message[:mostMessage], "")
	}
	return v1alpha1.PlanItemReport{State: state, Message: message}
}

// Fingerprint tells planned specs apart.
func Fingerprint(want *v1alpha1.PlannedImage) string {
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(want.Spec)
	return strconv.FormatUint(h.Sum64(), 36)
}

// New is the VMDiskImage that a plan asks for.
func New(want *v1alpha1.PlannedImage) *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: want.Namespace, Name: want.Name, Labels: map[string]string{v1alpha1.LabelPlanned: image.Planned}},
		Spec:       *want.Spec.DeepCopy(),
	}
}

// Configuration is what is applied to change an image. It names the UID and the
// resourceVersion of what was looked at: by the time it arrives, that name may
// be somebody else's image.
func Configuration(want *v1alpha1.PlannedImage, there *v1alpha1.VMDiskImage) (*unstructured.Unstructured, error) {
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
	u.SetLabels(map[string]string{v1alpha1.LabelPlanned: image.Planned})
	return u, nil
}

// Answer is what the API server's refusal of a planned image means.
type Answer struct {
	Report v1alpha1.PlanItemReport
	// Namespace: it is the namespace that is not there, so that no other image can
	// be made in it either.
	Namespace bool
	// Transient: the API server has not judged the image. The same request may
	// succeed the next time.
	Transient bool
}

// Refused reads the error of a request that was to create or change an image.
func Refused(want *v1alpha1.PlannedImage, err error) Answer {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return Answer{Report: waiting("namespace %s is being deleted", want.Namespace), Namespace: true}
	case namespaceMissing(err):
		return Answer{Report: waiting("namespace %s does not exist: create it", want.Namespace), Namespace: true}
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: "):
		return Answer{Report: waiting("%s", err.Error())}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
		return Answer{Report: item(v1alpha1.PlanItemRejected, err.Error())}
	default:
		return Answer{Report: waiting("%s", err.Error()), Transient: true}
	}
}

func namespaceMissing(err error) bool {
	if !apierrors.IsNotFound(err) {
		return false
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}
