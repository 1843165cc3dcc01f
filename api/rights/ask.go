package rights

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
	// patience with an API server that goes by new roles a little later.
	patience = 5 * time.Second
	// interval of asking it.
	interval = time.Second
	// timeout of all that is asked at a time.
	timeout = 10 * time.Second
	// together are asked about at a time.
	together = 8
)

// Lacking asks the API server which of these rights the account of cfg lacks.
func Lacking(ctx context.Context, cfg *rest.Config, needed []Right) ([]Right, error) {
	fast := rest.CopyConfig(cfg)
	fast.QPS, fast.Timeout = -1, timeout
	asking, err := authorizationclient.NewForConfig(fast)
	if err != nil {
		return nil, fmt.Errorf("asking which rights there are: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(together)
	lacks := make([]bool, len(needed))
	for i, right := range needed {
		group.Go(func() error {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: right.attributes()}}
			answer, err := asking.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("asking for the right to %s %s: %w", right.Verb, right.object(), err)
			}
			lacks[i] = !answer.Status.Allowed
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var missing []Right
	for i, right := range needed {
		if lacks[i] {
			missing = append(missing, right)
		}
	}
	return missing, nil
}

// Wait returns an error that names them if rights go on lacking. An API server that does
// not answer, or lets nobody ask, is not waited for.
func Wait(ctx context.Context, cfg *rest.Config, needed []Right, program string) error {
	return waitFor(ctx, cfg, needed, program, patience)
}

func waitFor(ctx context.Context, cfg *rest.Config, needed []Right, program string, patience time.Duration) error {
	var missing []Right
	err := wait.PollUntilContextTimeout(ctx, interval, patience, true, func(context.Context) (_ bool, err error) {
		// Not in the time that is left: the answer to the last question would be that there is none.
		if missing, err = Lacking(ctx, cfg, needed); err != nil {
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
	return errors.New(Text(missing, program))
}
