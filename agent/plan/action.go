package plan

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Action is what to do about a planned image.
type Action string

// Actions.
const (
	// Leave the image as it is, or missing.
	Leave Action = "Leave"
	// Create the image.
	Create Action = "Create"
	// Change the image to what the plan says.
	Change Action = "Change"
)

// AppliedState is what the agent last applied to an image. An image that other field owners
// have extended since differs from the plan for good, and still counts as applied.
type AppliedState struct {
	UID types.UID
	// SpecFingerprint of the planned spec.
	SpecFingerprint string
	// Generation of the image after it.
	Generation int64
}

// NextAction decides what to do about a planned image. existing is the image of that name,
// nil for none; applied is nil where nothing was applied to it; allowed are the namespaces
// in which the cluster lets a plan create and change images. An image that exists stays
// when its namespace is no longer allowed.
func NextAction(want *v1alpha1.PlannedImage, existing *v1alpha1.VMDiskImage, applied *AppliedState, allowed policy.Namespaces) (Action, v1alpha1.PlanItemReport) {
	isAllowed := allowed.Allow(want.Namespace)
	switch {
	case existing == nil && !isAllowed:
		return Leave, itemReport(v1alpha1.PlanItemRejected, fmt.Sprintf("namespace %s is not allowed: %s of the cluster's own policy ConfigMap does not name it", want.Namespace, policy.KeyAllowedNamespaces))
	case existing == nil:
		return Create, waitingReport("not created yet")
	case !isAllowed && image.IsPlanned(existing):
		return Leave, itemReport(v1alpha1.PlanItemRejected, fmt.Sprintf("namespace %s is no longer allowed: %s of the cluster's own policy ConfigMap does not name it; the image stays as it is", want.Namespace, policy.KeyAllowedNamespaces))
	case !image.IsPlanned(existing):
		return Leave, v1alpha1.PlanItemReport{
			State:   v1alpha1.PlanItemNotOurs,
			Message: fmt.Sprintf("a VMDiskImage of that name was made by somebody else and is not changed; label it %s=%s to hand it over to the plan", v1alpha1.LabelPlanned, image.PlannedLabelValue),
		}
	case existing.DeletionTimestamp != nil:
		return Leave, waitingReport("it is being deleted, and will be created again")
	case equality.Semantic.DeepEqual(existing.Spec, want.Spec),
		applied != nil && applied.UID == existing.UID && applied.SpecFingerprint == FingerprintSpec(want) && existing.Generation <= applied.Generation:
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

// blockedReport is about an image that waits until a person acts.
func blockedReport(reason v1alpha1.Reason, format string, args ...any) v1alpha1.PlanItemReport {
	r := waitingReport(format, args...)
	r.Reason = reason
	return r
}

// maxMessageBytes bounds the message of an item.
const maxMessageBytes = 1024

func itemReport(state v1alpha1.PlanItemState, message string) v1alpha1.PlanItemReport {
	if len(message) > maxMessageBytes {
		message = strings.ToValidUTF8(message[:maxMessageBytes], "")
	}
	return v1alpha1.PlanItemReport{State: state, Message: message}
}

// FingerprintSpec is equal for equal planned specs.
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

// NewApplyConfiguration returns what to apply to an existing image. It names the UID and
// resourceVersion of that image: meanwhile the name may belong to another one.
func NewApplyConfiguration(want *v1alpha1.PlannedImage, existing *v1alpha1.VMDiskImage) (*unstructured.Unstructured, error) {
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
	u.SetUID(existing.UID)
	u.SetResourceVersion(existing.ResourceVersion)
	u.SetLabels(map[string]string{v1alpha1.LabelPlanned: image.PlannedLabelValue})
	return u, nil
}
