package admissionpolicy

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingadmissionpolicies;mutatingadmissionpolicybindings,resourceNames=ot-agent-importers;ot-agent-failed-imports,verbs=get
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=cdis,verbs=list

const oneDownloadInterval = 10 * time.Second

// oneDownloadReader reads a OneDownloadState.
type oneDownloadReader struct {
	// live reads from the API server, cached from the agent's cache of Pods.
	live, cached client.Reader
}

// NewOneDownloadPoller returns a poller of condition OneDownloadPerAttempt. notify is
// called after each change.
func NewOneDownloadPoller(live, cached client.Reader, notify func()) *trigger.ConditionPoller {
	r := oneDownloadReader{live: live, cached: cached}
	return &trigger.ConditionPoller{
		Initial: metav1.Condition{
			Type: v1alpha1.ConditionOneDownload, Status: metav1.ConditionUnknown, Reason: "NotLooked",
			Message: "the agent has not checked the admission policies yet",
		},
		Evaluate: func(ctx context.Context) (metav1.Condition, error) {
			state, err := r.readState(ctx)
			return OneDownloadCondition(state), err
		},
		Delay: func(metav1.Condition, error) time.Duration { return oneDownloadInterval },
		OnChange: func(ctx context.Context, c metav1.Condition) {
			log.FromContext(ctx).Info("Single-download policies changed", "inForce", c.Status, "reason", c.Reason, "message", c.Message)
			notify()
		},
		OnError: func(ctx context.Context, err error) {
			log.FromContext(ctx).Error(err, "Failed to check single-download policies; retrying", "after", oneDownloadInterval.String())
		},
	}
}

// readState treats a kind that is not served as one without objects.
func (r oneDownloadReader) readState(ctx context.Context) (OneDownloadState, error) {
	state := OneDownloadState{PoliciesServed: true}
	for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
		for _, name := range OneDownloadPolicies {
			object := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: kind}}
			err := r.live.Get(ctx, client.ObjectKey{Name: name}, object)
			switch {
			case meta.IsNoMatchError(err):
				return OneDownloadState{}, nil
			case apierrors.IsNotFound(err):
				state.MissingObjects = append(state.MissingObjects, kind+" "+name)
			case err != nil:
				return state, fmt.Errorf("reading %s %s: %w", kind, name, err)
			case object.Annotations[annCDIVersions] != "":
				state.CDIVersions = strings.Split(object.Annotations[annCDIVersions], ",")
				state.CDIAccount = object.Annotations[annCDIAccount]
			}
		}
	}
	if err := r.readCDIVersions(ctx, &state); err != nil {
		return state, err
	}
	return state, r.findRestartableImporter(ctx, &state)
}

// readCDIVersions takes the first object of kind CDI that reports a version: CDI's
// operator supports one, and the policies match any.
func (r oneDownloadReader) readCDIVersions(ctx context.Context, state *OneDownloadState) error {
	var list cdiv1.CDIList
	if err := r.live.List(ctx, &list); meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("listing CDI installations: %w", err)
	}
	for i := range list.Items {
		st := &list.Items[i].Status
		if !state.CDIInstalled || state.ObservedVersion == "" {
			state.CDIInstalled, state.ObservedVersion, state.TargetVersion = true, st.ObservedVersion, st.TargetVersion
		}
	}
	return nil
}

// findRestartableImporter finds an importer Pod that the policies have not changed.
func (r oneDownloadReader) findRestartableImporter(ctx context.Context, state *OneDownloadState) error {
	var pods corev1.PodList
	if err := r.cached.List(ctx, &pods, client.MatchingLabels{"cdi.kubevirt.io": "importer"}, client.HasLabels{v1alpha1.LabelImageUID}); err != nil {
		return fmt.Errorf("listing importer Pods: %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
			state.RestartableImporter = pod.Namespace + "/" + pod.Name
			return nil
		}
	}
	return nil
}
