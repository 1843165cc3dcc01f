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
	// A member that leaves is asked so often to give up its plan, once it is known how
	// the connection to it is; the elected replica does not wait for longer than it
	// says itself.
	maxCleanUpAttempts = 3
	cleanUpRetryDelay  = time.Second
	// deletionSettleTime is how long what was deleted must stay away: a relay may have been
	// about to write it.
	deletionSettleTime = 300 * time.Millisecond
)

// cleanUpAttempts counts the attempts to clean up a member that have failed.
type cleanUpAttempts struct{ failed int }

// cleanUpMember removes plan and grant in a member, and says in the status when that is done,
// or given up. It returns when to try again; 0 for not before something happens.
func (r *Reconciler) cleanUpMember(ctx context.Context, name string, connected *memberclient.Member, status *v1alpha1.MemberLinkStatus) time.Duration {
	if status.CleanedUp || status.CleanUpError != "" {
		return 0
	}
	var err error
	if connected != nil {
		err = deleteMailboxInMember(ctx, connected)
	} else if state := r.Members.State(name); !state.Known {
		return 0 // nothing is known to be wrong with it: it will be connected soon
	} else if state.Reachable {
		return cleanUpRetryDelay // between two connections
	} else {
		err = fmt.Errorf("the hub does not reach it (%s): %s", state.Reason, state.Message)
	}
	if err == nil {
		status.CleanedUp = true
		return 0
	}
	f := r.ensureCleanUpAttempts(name)
	f.failed++
	if f.failed < maxCleanUpAttempts {
		return cleanUpRetryDelay
	}
	status.CleanUpError = v1alpha1.Truncate(err.Error(), 1024)
	return 0
}

// ensureCleanUpAttempts a member is kept over its connections.
func (r *Reconciler) ensureCleanUpAttempts(name string) *cleanUpAttempts {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.states == nil {
		r.states = map[string]*connectionState{}
	}
	if r.states[name] == nil {
		r.states[name] = &connectionState{}
	}
	return &r.states[name].cleanUp
}

func deleteMailboxInMember(ctx context.Context, connected *memberclient.Member) error {
	// Twice: a relay that was paused may have brought back what was deleted.
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
