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
	fast := rest.CopyConfig(cfg)
	fast.QPS, fast.Timeout = -1, reviewTimeout
	asking, err := authorizationclient.NewForConfig(fast)
	if err != nil {
		return nil, fmt.Errorf("asking which rights there are: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelReviews)
	lacks := make([]bool, len(needed))
	for i, right := range needed {
		group.Go(func() error {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: right.resourceAttributes()}}
			answer, err := asking.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("asking for the right to %s %s: %w", right.Verb, right.describeResource(), err)
			}
			lacks[i] = !answer.Status.Allowed
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var missing []Permission
	for i, right := range needed {
		if lacks[i] {
			missing = append(missing, right)
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

func waitForPermissions(ctx context.Context, cfg *rest.Config, needed []Permission, program string, patience time.Duration) error {
	var missing []Permission
	err := wait.PollUntilContextTimeout(ctx, permissionPollInterval, patience, true, func(context.Context) (_ bool, err error) {
		// Not in the time that is left: the answer to the last question would be that there is none.
		if missing, err = MissingPermissions(ctx, cfg, needed); err != nil {
			log.FromContext(ctx).Error(err, "Not knowing whether all rights are there")
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
