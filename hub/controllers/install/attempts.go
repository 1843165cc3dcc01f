package install

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"

	"github.com/pelotech/ot-fleet/hub/install"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// runAttempt stores that an attempt is made, and only then makes it. It returns the error
// of storing; that of the attempt is stored with it.
func (r *Reconciler) runAttempt(ctx context.Context, member *v1alpha1.MemberCluster, snapshot *install.Snapshot, attempt func() error) error {
	snapshot.Now = time.Now()
	if err := r.storeAttempts(ctx, member, &snapshot.Attempts, snapshot.NextAttempt()); err != nil {
		return err
	}
	r.resetLeaseConflicts(member.Name)
	log := log.FromContext(ctx).WithValues("version", snapshot.Desired.Version, "revision", snapshot.Desired.Revision, "attempt", snapshot.Attempts.Count)
	err := attempt()
	r.Metrics.CountAttempt(err == nil)
	if err == nil {
		log.Info("Installed agent")
		r.Events.Eventf(member, nil, corev1.EventTypeNormal, "AgentInstalled", "Install", "Agent %s was installed", snapshot.Desired.Version)
		return nil
	}
	log.Error(err, "Failed to install agent; retrying with backoff until the attempts are exhausted")
	if cause := context.Cause(ctx); errors.Is(cause, errAttemptTimeout) {
		err = fmt.Errorf("%w: %w", cause, err)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), r.requestTimeout())
		defer cancel()
	} else if cause != nil {
		return cause // the hub is ending; the next leader finds the attempt counted
	}
	failed := snapshot.Attempts
	failed.Error = v1alpha1.SanitizeText(err.Error(), maxErrorLength)
	r.Events.Eventf(member, nil, corev1.EventTypeWarning, "AgentNotInstalled", "Install", "Attempt %d to install agent %s failed: %s", failed.Count, snapshot.Desired.Version, failed.Error)
	return r.storeAttempts(ctx, member, &snapshot.Attempts, failed)
}

// storeAttempts stores attempts unless somebody has changed them: two hubs do not count
// the same attempt, and a person who removes the annotation resets the count.
func (r *Reconciler) storeAttempts(ctx context.Context, member *v1alpha1.MemberCluster, known *install.Attempts, next install.Attempts) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now := &v1alpha1.MemberCluster{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(member), now); err != nil {
			return err
		}
		if now.UID != member.UID || !mayInstall(now) || install.ParseAttempts(now.Annotations[v1alpha1.AnnotationInstallAttempts]).String() != known.String() {
			return errAttemptsChanged
		}
		base := now.DeepCopy()
		if next == (install.Attempts{}) {
			delete(now.Annotations, v1alpha1.AnnotationInstallAttempts)
		} else {
			metav1.SetMetaDataAnnotation(&now.ObjectMeta, v1alpha1.AnnotationInstallAttempts, next.String())
		}
		return r.Patch(ctx, now, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		return fmt.Errorf("storing the install attempts of MemberCluster %s: %w", member.Name, err)
	}
	*known = next
	return nil
}

var errAttemptTimeout = fmt.Errorf("the agent was not installed within %v", attemptTimeout)

// errAttemptsChanged: the decision rests on outdated attempts.
var errAttemptsChanged = fmt.Errorf("the install attempts: %w", trigger.ErrChanged)

// problemOf explains an error of reading a member.
func problemOf(err error) *install.Problem {
	if fault, why := hubclient.ClassifyError(err); fault == hubclient.ForbiddenFailure {
		return &install.Problem{Reason: v1alpha1.ReasonUnauthorized, Message: why +
			": installing the agent requires an administrator's kubeconfig. Set one, or install the agent yourself and remove label " + v1alpha1.LabelInstallAgent}
	}
	reason, message := memberclient.ClassifyError(err)
	return &install.Problem{Reason: reason, Message: message}
}
