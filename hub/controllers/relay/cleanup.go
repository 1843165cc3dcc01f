package relay

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"

	"github.com/pelotech/ot-fleet/hub/memberclient"
)

const (
	// A removed member is asked this often to delete its plan, once the state of its
	// connection is known. The planner waits no longer than cleanUpTimeout.
	maxCleanUpAttempts = 3
	cleanUpRetryDelay  = time.Second
	// deletionSettleTime is how long a deleted object must stay absent: another relay may
	// have been about to write it.
	deletionSettleTime = 300 * time.Millisecond
)

// cleanUpAttempts counts the failed attempts to clean up a member.
type cleanUpAttempts struct{ failed int }

// cleanUpMember deletes plan and grant in a member, and sets in the status that this is
// done or given up. It returns the retry delay; 0 for none.
func (r *Reconciler) cleanUpMember(ctx context.Context, name string, connected *memberclient.Member, status *v1alpha1.MemberLinkStatus) time.Duration {
	if status.CleanedUp || status.CleanUpError != "" {
		return 0
	}
	var err error
	if connected != nil {
		err = deleteMailboxInMember(ctx, connected)
	} else if state := r.Members.State(name); !state.Known {
		return 0 // no known problem: the member will be connected soon
	} else if state.Reachable {
		return cleanUpRetryDelay // between two connections
	} else {
		err = fmt.Errorf("the hub does not reach the member (%s): %s", state.Reason, state.Message)
	}
	if err == nil {
		status.CleanedUp = true
		return 0
	}
	f := &r.ensureState(name, connected).cleanUp
	f.failed++
	if f.failed < maxCleanUpAttempts {
		return cleanUpRetryDelay
	}
	status.CleanUpError = v1alpha1.SanitizeText(err.Error(), 1024)
	return 0
}

func deleteMailboxInMember(ctx context.Context, connected *memberclient.Member) error {
	// Twice: a relay that was paused may have written again what was deleted.
	for range 2 {
		for _, o := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
			o.SetNamespace(connected.Namespace)
			o.SetName(v1alpha1.MailboxName)
			err := connected.GetClient().Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground))
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting %T %s/%s: %w", o, connected.Namespace, v1alpha1.MailboxName, err)
			}
		}
		if err := trigger.Sleep(ctx, deletionSettleTime); err != nil {
			return err
		}
	}
	return nil
}
