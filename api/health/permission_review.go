package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/validation"
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

func newReviewClient(cfg *rest.Config) (*authorizationclient.AuthorizationV1Client, error) {
	unthrottled := rest.CopyConfig(cfg)
	unthrottled.QPS, unthrottled.Timeout = -1, reviewTimeout
	reviews, err := authorizationclient.NewForConfig(unthrottled)
	if err != nil {
		return nil, fmt.Errorf("making a client for access reviews: %w", err)
	}
	return reviews, nil
}

// nowhere can be the name of no namespace: what an account may do there holds in all of them.
const nowhere = "-"

// unruledPermissions returns which of these permissions the rules of the account do not grant, by a
// request for each namespace. An authorizer that is not RBAC may grant more, or refuse before RBAC
// is asked: only an access review tells.
func unruledPermissions(ctx context.Context, reviews authorizationclient.SelfSubjectRulesReviewsGetter, needed []Permission) (unruled []Permission, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, permission := range needed {
		in, listed := rules[permission.Namespace]
		if !listed {
			review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: cmp.Or(permission.Namespace, nowhere)}}
			answer, err := reviews.SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return nil, fmt.Errorf("listing the rules of the account: %w", err)
			}
			for _, rule := range answer.Status.ResourceRules {
				in = append(in, rbacv1.PolicyRule{Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames})
			}
			rules[permission.Namespace] = in
		}
		if granted, _ := validation.Covers(in, []rbacv1.PolicyRule{permission.rule()}); !granted {
			unruled = append(unruled, permission)
		}
	}
	return unruled, nil
}

// MissingPermissions returns which of these permissions the account of cfg lacks.
func MissingPermissions(ctx context.Context, cfg *rest.Config, needed []Permission) ([]Permission, error) {
	reviews, err := newReviewClient(cfg)
	if err != nil {
		return nil, err
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

// WaitForPermissions returns an error that lists missing permissions if they stay missing: it asks
// for the account's rules, and reviews one by one what they do not grant. It does not wait for an API
// server that does not answer or refuses access reviews.
func WaitForPermissions(ctx context.Context, cfg *rest.Config, needed []Permission, program string) error {
	return waitForPermissions(ctx, cfg, needed, program, permissionWaitTimeout)
}

func waitForPermissions(ctx context.Context, cfg *rest.Config, needed []Permission, program string, timeout time.Duration) error {
	reviews, err := newReviewClient(cfg)
	if err != nil {
		return err
	}
	if unruled, err := unruledPermissions(ctx, reviews, needed); err == nil {
		needed = unruled
	} else if ctx.Err() == nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		log.FromContext(ctx).Error(err, "Failed to review permissions; starting without") // it does not answer
		return nil
	}
	var missing []Permission
	err = wait.PollUntilContextTimeout(ctx, permissionPollInterval, timeout, true, func(context.Context) (_ bool, err error) {
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
