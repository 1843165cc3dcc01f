package admissionpolicy

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingadmissionpolicies;mutatingadmissionpolicybindings,resourceNames=ot-agent-importers,verbs=get

const oneDownloadInterval = 10 * time.Second

// ReadOneDownloadState reads what a cluster has of the policy; pods may be cached.
func ReadOneDownloadState(ctx context.Context, live, pods client.Reader) (OneDownloadState, error) {
	return oneDownloadReader{live: live, cached: pods}.readState(ctx)
}

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
			Type: v1alpha1.ConditionOneDownload, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotLooked,
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
			log.FromContext(ctx).Error(err, "Failed to check single-download policies; retrying", "retryAfter", oneDownloadInterval)
		},
	}
}

// policyVersions of MutatingAdmissionPolicy, in the order in which the chart prefers them.
var policyVersions = []string{"v1", "v1beta1", "v1alpha1"}

// readState reads policy and binding in the version that the chart installs.
func (r oneDownloadReader) readState(ctx context.Context) (OneDownloadState, error) {
	for _, version := range policyVersions {
		state, err := r.readPolicy(ctx, version)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return state, err
		}
		return state, r.findRestartableImporter(ctx, &state)
	}
	return OneDownloadState{}, nil
}

func (r oneDownloadReader) readPolicy(ctx context.Context, version string) (OneDownloadState, error) {
	state := OneDownloadState{PoliciesServed: true}
	for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
		object := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/" + version, Kind: kind}}
		err := r.live.Get(ctx, client.ObjectKey{Name: OneDownloadPolicy}, object)
		switch {
		case apierrors.IsNotFound(err):
			state.MissingObjects = append(state.MissingObjects, kind+" "+OneDownloadPolicy)
		case err != nil:
			return state, fmt.Errorf("reading %s %s: %w", kind, OneDownloadPolicy, err)
		case object.Annotations[annCDIAccount] != "":
			state.CDIAccount = object.Annotations[annCDIAccount]
		}
	}
	return state, nil
}

// findRestartableImporter finds an importer Pod that the policy has not changed, and should have:
// where the kubelet pulls the disk, the importer may restart.
func (r oneDownloadReader) findRestartableImporter(ctx context.Context, state *OneDownloadState) error {
	var pods corev1.PodList
	if err := r.cached.List(ctx, &pods, client.MatchingLabels{"cdi.kubevirt.io": "importer"}, client.HasLabels{v1alpha1.LabelImageUID}); err != nil {
		return fmt.Errorf("listing importer Pods: %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && pod.Spec.RestartPolicy != corev1.RestartPolicyNever && !importcause.PullsOnNode(pod) {
			state.RestartableImporter = pod.Namespace + "/" + pod.Name
			return nil
		}
	}
	return nil
}
