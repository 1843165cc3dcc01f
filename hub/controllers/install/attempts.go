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
	"github.com/pelotech/ot-fleet/api/v1alpha1"

	"github.com/pelotech/ot-fleet/hub/install"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// runAttempt an attempt, and only then make it. The error is of counting; that of the attempt
// is noted.
func (r *Reconciler) runAttempt(ctx context.Context, member *v1alpha1.MemberCluster, seen *install.Snapshot, attempt func() error) error {
	seen.Now = time.Now()
	if err := r.storeAttempts(ctx, member, &seen.Attempts, seen.NextAttempt()); err != nil {
		return err
	}
	log := log.FromContext(ctx).WithValues("version", seen.Desired.Version, "revision", seen.Desired.Revision, "attempt", seen.Attempts.Count)
	err := attempt()
	r.Metrics.CountAttempt(err == nil)
	if err == nil {
		log.Info("Installed the agent")
		r.Events.Eventf(member, nil, corev1.EventTypeNormal, "AgentInstalled", "Install", "Agent %s was installed", seen.Desired.Version)
		return nil
	}
	log.Error(err, "Installing the agent")
	if cause := context.Cause(ctx); errors.Is(cause, errAttemptTimeout) {
		err = fmt.Errorf("%w: %w", cause, err)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), r.requestTimeout())
		defer cancel()
	} else if cause != nil {
		return cause // the hub ends: who comes next finds the attempt counted
	}
	failed := seen.Attempts
	failed.Error = v1alpha1.Truncate(err.Error(), maxErrorLength)
	r.Events.Eventf(member, nil, corev1.EventTypeWarning, "AgentNotInstalled", "Install", "Attempt %d at agent %s failed: %s", failed.Count, seen.Desired.Version, failed.Error)
	return r.storeAttempts(ctx, member, &seen.Attempts, failed)
}

// storeAttempts stores attempts, unless somebody else has by now: two hubs do not count the same
// one, and a person who removes them has them removed.
func (r *Reconciler) storeAttempts(ctx context.Context, member *v1alpha1.MemberCluster, known *install.Attempts, next install.Attempts) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now := &v1alpha1.MemberCluster{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(member), now); err != nil {
			return err
		}
		if now.UID != member.UID || !isOptedIn(now) || install.ParseAttempts(now.Annotations[v1alpha1.AnnotationInstallAttempts]).String() != known.String() {
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
		return fmt.Errorf("counting attempts at the agent of MemberCluster %s: %w", member.Name, err)
	}
	*known = next
	return nil
}

var errAttemptTimeout = fmt.Errorf("the agent was not installed within %v", attemptTimeout)

// errAttemptsChanged: what was decided upon is not so any more.
var errAttemptsChanged = errors.New("somebody else has written them meanwhile")

// problemOf that looking at a member met.
func problemOf(err error) *install.Problem {
	if fault, why := hubclient.ClassifyError(err); fault == hubclient.ForbiddenFailure {
		return &install.Problem{Reason: v1alpha1.ReasonUnauthorized, Message: why +
			": to install the agent its kubeconfig has to be an administrator's. Give it one, or install the agent yourself and remove label " + v1alpha1.LabelInstallAgent}
	}
	reason, message := memberclient.ClassifyError(err)
	return &install.Problem{Reason: reason, Message: message}
}
