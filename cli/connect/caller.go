package connect

import (
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// CallerName returns who the API server takes the caller for. Approvals carry that name, and
// the hub's admission policies refuse any other.
func (c *Cluster) CallerName(ctx context.Context) (string, error) {
	review := &authenticationv1.SelfSubjectReview{}
	if err := c.Client.Create(ctx, review); err != nil {
		return "", fmt.Errorf("asking who you are: %w", c.Explain(err))
	}
	if review.Status.UserInfo.Username == "" {
		return "", errors.New("the API server does not say who you are: sign in again")
	}
	return review.Status.UserInfo.Username, nil
}

// CheckMay returns an error, unless the caller may do this to an object of OT Fleet. role is
// the ClusterRole of chart ot-hub that has the right.
func (c *Cluster) CheckMay(ctx context.Context, verb, resource, name, role string) error {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: v1alpha1.GroupVersion.Group, Resource: resource, Name: name, Verb: verb},
	}}
	if err := c.Client.Create(ctx, review); err != nil {
		return fmt.Errorf("asking what you may do: %w", c.Explain(err))
	}
	if review.Status.Allowed {
		return nil
	}
	return fmt.Errorf("you may not %s %s.%s: ask for ClusterRole %s, which has the right", verb, resource, v1alpha1.GroupVersion.Group, role)
}
