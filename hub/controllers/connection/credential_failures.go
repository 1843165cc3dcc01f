package connection

import (
	"context"
	"errors"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/credential"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// maxJoinDelay bounds the delay between attempts to get the first token of a member from
// Cluster API, whose control plane may come up at any moment.
const maxJoinDelay = 2 * time.Minute

// failureWait returns how long a member from Cluster API is not asked for a token after its last
// failures. Invariant: a member that does not answer holds a worker for a falling share of the
// time, so that many of these leave workers to the others.
func (k *credentialReconciler) failureWait(member *v1alpha1.MemberCluster, hasToken bool, now time.Time) time.Duration {
	failure := k.given.load(member.Name, clusterAPIPurpose(member)).failure
	if failure == nil {
		return 0
	}
	delay := credential.FailureDelay(failure.Count, k.rotationOptions())
	if !hasToken {
		delay = min(delay, max(maxJoinDelay, k.RetryFailed))
	}
	return failure.At.Add(delay).Sub(now)
}

// recordResult records whether a member from Cluster API was given a token. A failure that is
// answered, or is of a Secret on the hub, holds nothing up: its delay does not grow. A failure is
// logged when it begins and when its message changes.
func (k *credentialReconciler) recordResult(ctx context.Context, member *v1alpha1.MemberCluster, err error, failed string) {
	h := k.given.load(member.Name, clusterAPIPurpose(member))
	former := h.failure
	h.failure = nil
	if err != nil {
		h.failure = &credential.Failure{At: time.Now(), Count: 1, Message: err.Error()}
		var missing prerequisiteError
		reason, message := memberclient.ClassifyError(err)
		if !errors.As(err, &missing) {
			h.failure.Message = message
			if reason == v1alpha1.ReasonUnreachable && former != nil {
				h.failure.Count += former.Count
			}
		}
		if former == nil || former.Message != h.failure.Message {
			ctrl.LoggerFrom(ctx).Info(failed, "member", member.Name, "reason", reason, "error", err.Error())
		}
	}
	k.given.store(member.Name, h)
}
