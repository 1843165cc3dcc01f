package mailbox

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxCleanUpAttempts is how often plan and grant are deleted in vain before the hub
	// learns that they may be left behind.
	maxCleanUpAttempts = 3
	// recreationWait is the time between the two deletions of a clean-up.
	recreationWait = 300 * time.Millisecond
	// maxErrorBytes bounds an error in the status of a MemberLink.
	maxErrorBytes = 1024
)

// connectionSync syncs the mailbox over one connection.
type connectionSync struct {
	syncer    *Syncer
	hub       *hubclient.Connection
	namespace string

	// copies and findings are those since challenge was read; copies is nil before.
	copies          *mailbox.EqualCopies
	challenge       string
	findings        mailbox.Findings
	failures        hubclient.SyncFailures
	cleanUpAttempts int
}

// syncOnce syncs the mailbox, or cleans up a member that leaves, if the hub leaves that
// to the agent. It returns the delay before the next sync; 0: none until an event.
func (c *connectionSync) syncOnce(ctx context.Context) (delay time.Duration, err error) {
	if err := c.syncer.Leadership.Confirm(ctx); err != nil {
		return 0, err
	}
	link := &v1alpha1.MemberLink{}
	err = c.hub.GetCache().Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: v1alpha1.MailboxName}, link)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil // its creation is an event
	case err != nil:
		return 0, fmt.Errorf("reading MemberLink %s/%s on the hub: %w", c.namespace, v1alpha1.MailboxName, err)
	case link.Spec.Mode != v1alpha1.LinkPull || !link.DeletionTimestamp.IsZero():
		c.copies = nil
		return 0, nil // a replica of the hub syncs
	}
	if c.copies == nil || c.challenge != link.Spec.Challenge {
		c.copies, c.challenge = &mailbox.EqualCopies{}, link.Spec.Challenge
		c.findings = mailbox.FindingsFromStatus(&link.Status, c.challenge)
	}
	next := *link.Status.DeepCopy()
	next.ObservedGeneration, next.Carrier, next.Connection = link.Generation, v1alpha1.CarrierAgentPrefix+c.syncer.BootID, link.Spec.Connection
	next.Known, next.Reachable = true, true
	next.Reason, next.Message = v1alpha1.ReasonConnected, "the agent is connected (pull mode)"
	if link.Spec.Leaving {
		err = c.cleanUpMember(ctx, &next)
	} else {
		next.CleanedUp, next.CleanUpError = false, ""
		c.findings.Connection = link.Spec.Connection
		delay, err = c.syncMailbox(ctx)
		c.findings.SetStatus(&next, c.challenge)
	}
	written, statusErr := c.updateLinkStatus(ctx, link, next)
	switch {
	case err != nil:
		return 0, err
	case statusErr != nil:
		return 0, statusErr
	case !written:
		delay = trigger.ConflictRetryDelay
	}
	return delay, nil
}

// syncMailbox copies the report up, then plan and grant down: a plan may wait for what the
// report says.
func (c *connectionSync) syncMailbox(ctx context.Context) (delay time.Duration, err error) {
	member, metric, began := c.syncer.Member, c.syncer.Metrics, time.Now()
	relay := mailbox.Relay{
		Hub:    mailbox.Side{Cached: c.hub.GetCache(), Live: c.hub.GetClient(), Namespace: c.namespace},
		Member: mailbox.Side{Cached: member.Cached, Live: member.Live, Namespace: member.Namespace},
		Copies: c.copies, Recheck: c.findings.NeedsRecheck(c.copies, began),
	}
	known, err := c.knownClusterUID(ctx)
	if err != nil {
		return 0, err
	}
	up, upErr := relay.SyncUp(ctx, known)
	metric.CountCopied(mailbox.DirectionUp, up.Written)
	if up.ActivityRefused != nil {
		ctrl.LoggerFrom(ctx).Info("The hub refuses the activity of the report; going on without it. Its CustomResourceDefinitions may be of an older version", "error", up.ActivityRefused)
	}
	down, downErr := relay.SyncDown(ctx)
	metric.CountCopied(mailbox.DirectionDown, len(down.Written))
	c.copies.RecordSync(relay.Recheck, up, upErr, downErr, began)
	before := c.findings.SyncError
	c.findings = c.findings.Merge(up, upErr, down, downErr)
	c.findings.SyncError = c.failures.Describe(upErr, downErr, before)
	c.findings.ReportRefused = c.findings.SyncError != "" && hubclient.IsSameForAll(upErr)

	if ctx.Err() != nil {
		return 0, nil
	}
	return c.failures.Result(upErr, downErr, metric.CountCopyFailure)
}

// knownClusterUID is the cluster that the hub plans for: the report of another one is not
// copied. It is empty before there is a plan; then the hub's copy of the report decides.
func (c *connectionSync) knownClusterUID(ctx context.Context) (types.UID, error) {
	plan := &v1alpha1.ClusterPlan{}
	err := c.hub.GetCache().Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: v1alpha1.MailboxName}, plan)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading ClusterPlan %s/%s on the hub: %w", c.namespace, v1alpha1.MailboxName, err)
	}
	return plan.Spec.ClusterUID, nil
}

// cleanUpMember deletes plan and grant in this cluster, which leaves the fleet.
func (c *connectionSync) cleanUpMember(ctx context.Context, status *v1alpha1.MemberLinkStatus) error {
	if status.CleanedUp || status.CleanUpError != "" {
		return nil
	}
	err := c.deletePlanAndGrant(ctx)
	c.cleanUpAttempts++
	switch {
	case err == nil:
		status.CleanedUp = true
	case c.cleanUpAttempts >= maxCleanUpAttempts:
		status.CleanUpError = v1alpha1.SanitizeText(err.Error(), maxErrorBytes)
	}
	return err
}

// deletePlanAndGrant deletes twice: an agent that was paused may recreate them after the
// first time.
func (c *connectionSync) deletePlanAndGrant(ctx context.Context) error {
	member := c.syncer.Member
	for range 2 {
		for _, o := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}} {
			o.SetNamespace(member.Namespace)
			o.SetName(v1alpha1.MailboxName)
			if err := member.Live.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("deleting %T %s/%s: %w", o, member.Namespace, v1alpha1.MailboxName, err)
			}
		}
		hubclient.WaitForTrigger(ctx, nil, recreationWait)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// updateLinkStatus writes the status if it has changed. written is false after a write
// conflict.
func (c *connectionSync) updateLinkStatus(ctx context.Context, link *v1alpha1.MemberLink, next v1alpha1.MemberLinkStatus) (written bool, err error) {
	if equality.Semantic.DeepEqual(link.Status, next) {
		return true, nil
	}
	link.Status = next
	err = c.hub.GetClient().Status().Update(ctx, link)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("updating the status of MemberLink %s/%s on the hub: %w", link.Namespace, link.Name, err)
	}
	return true, nil
}
