package admissionpolicy

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingadmissionpolicies;mutatingadmissionpolicybindings,resourceNames=ot-agent-importers;ot-agent-failed-imports,verbs=get
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=cdis,verbs=list

// oneDownloadInterval between two looks.
const oneDownloadInterval = 10 * time.Second

// OneDownloadCheck looks, where the agent leads. It is a Runnable of a manager.
type OneDownloadCheck struct {
	// Live reads from the API server, Cached what the agent follows anyway.
	Live, Cached client.Reader
	// Changed is called when something else is told.
	Changed func()

	condition atomic.Pointer[metav1.Condition]
}

// NeedLeaderElection is true: the ledger, which tells of it, is the leader's.
func (w *OneDownloadCheck) NeedLeaderElection() bool { return true }

// Start looks until ctx ends.
func (w *OneDownloadCheck) Start(ctx context.Context) error {
	for {
		if seen, err := w.readState(ctx); err == nil {
			w.publishCondition(ctx, OneDownloadCondition(seen))
		} else if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Not knowing whether an attempt costs one download")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(oneDownloadInterval):
		}
	}
}

// Condition is what is known.
func (w *OneDownloadCheck) Condition() metav1.Condition {
	if c := w.condition.Load(); c != nil {
		return *c
	}
	return metav1.Condition{Type: v1alpha1.ConditionOneDownload, Status: metav1.ConditionUnknown, Reason: "NotLooked", Message: "the agent has not looked yet"}
}

func (w *OneDownloadCheck) publishCondition(ctx context.Context, c metav1.Condition) {
	before := w.condition.Swap(&c)
	if before != nil && before.Message == c.Message {
		return
	}
	log.FromContext(ctx).Info("Whether an attempt costs one download", "told", c.Status, "reason", c.Reason, "message", c.Message)
	w.Changed()
}

// readState reads what decides it. Kinds that are not served have no objects.
func (w *OneDownloadCheck) readState(ctx context.Context) (OneDownloadState, error) {
	seen := OneDownloadState{PoliciesServed: true}
	for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
		for _, name := range OneDownloadPolicies {
			object := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: kind}}
			err := w.Live.Get(ctx, client.ObjectKey{Name: name}, object)
			switch {
			case meta.IsNoMatchError(err):
				return OneDownloadState{}, nil
			case apierrors.IsNotFound(err):
				seen.MissingObjects = append(seen.MissingObjects, kind+" "+name)
			case err != nil:
				return seen, fmt.Errorf("reading %s %s: %w", kind, name, err)
			case object.Annotations[annCDIVersions] != "":
				seen.CDIVersions = strings.Split(object.Annotations[annCDIVersions], ",")
				seen.CDIAccount = object.Annotations[annCDIAccount]
			}
		}
	}
	if err := w.readCDIVersions(ctx, &seen); err != nil {
		return seen, err
	}
	return seen, w.findRestartableImporter(ctx, &seen)
}

// readCDIVersions reads the versions of CDIInstalled. Its operator takes one object for an
// installation; of others the API server's policies take any.
func (w *OneDownloadCheck) readCDIVersions(ctx context.Context, seen *OneDownloadState) error {
	var list cdiv1.CDIList
	if err := w.Live.List(ctx, &list); meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("listing CDI installations: %w", err)
	}
	for i := range list.Items {
		st := &list.Items[i].Status
		if !seen.CDIInstalled || seen.ObservedVersion == "" {
			seen.CDIInstalled, seen.ObservedVersion, seen.TargetVersion = true, st.ObservedVersion, st.TargetVersion
		}
	}
	return nil
}

// findRestartableImporter holds the policies against what they have made of Pods.
func (w *OneDownloadCheck) findRestartableImporter(ctx context.Context, seen *OneDownloadState) error {
	var pods corev1.PodList
	if err := w.Cached.List(ctx, &pods, client.MatchingLabels{"cdi.kubevirt.io": "importer"}, client.HasLabels{v1alpha1.LabelImageUID}); err != nil {
		return fmt.Errorf("listing importers: %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
			seen.RestartableImporter = pod.Namespace + "/" + pod.Name
			return nil
		}
	}
	return nil
}
