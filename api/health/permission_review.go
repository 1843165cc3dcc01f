package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// permissionWaitTimeout is how long to wait for an API server to apply new roles.
	permissionWaitTimeout = 5 * time.Second
	// permissionPollInterval is the interval between two reviews.
	permissionPollInterval = time.Second
	// reviewTimeout bounds one review of all permissions.
	reviewTimeout = 10 * time.Second
	// maxParallelReviews is how many access reviews run at a time.
	maxParallelReviews = 8
)

// MissingPermissions returns which of these permissions the account of cfg lacks.
func MissingPermissions(ctx context.Context, cfg *rest.Config, needed []Permission) ([]Permission, error) {
	unthrottled := rest.CopyConfig(cfg)
	unthrottled.QPS, unthrottled.Timeout = -1, reviewTimeout
	reviews, err := authorizationclient.NewForConfig(unthrottled)
	if err != nil {
		return nil, fmt.Errorf("making a client for access reviews: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelReviews)
	denied := make([]bool, len(needed))
	for i, permission := range needed {
		group.Go(func() error {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: permission.resourceAttributes()}}
			result, err := reviews.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("reviewing the permission to %s %s: %w", permission.Verb, permission.describeResource(), err)
			}
			denied[i] = !result.Status.Allowed
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var missing []Permission
	for i, permission := range needed {
		if denied[i] {
			missing = append(missing, permission)
		}
	}
	return missing, nil
}

// WaitForPermissions returns an error that lists missing permissions if they stay
// missing. It does not wait for an API server that does not answer or refuses access
// reviews.
func WaitForPermissions(ctx context.Context, cfg *rest.Config, needed []Permission, program string) error {
	return waitForPermissions(ctx, cfg, needed, program, permissionWaitTimeout)
}

func waitForPermissions(ctx context.Context, cfg *rest.Config, needed []Permission, program string, timeout time.Duration) error {
	var missing []Permission
	err := wait.PollUntilContextTimeout(ctx, permissionPollInterval, timeout, true, func(context.Context) (_ bool, err error) {
		// ctx, not the poll's context: the last review may take longer than the rest of timeout.
		if missing, err = MissingPermissions(ctx, cfg, needed); err != nil {
			log.FromContext(ctx).Error(err, "Failed to review permissions; starting without")
			return true, nil
		}
		return len(missing) == 0, nil
	})
	if err == nil || !wait.Interrupted(err) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.New(FormatMissing(missing, program))
}
