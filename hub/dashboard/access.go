package dashboard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// reviewQPS bounds what a flood of tokens costs the API server.
	reviewQPS = 50
	// Answers are remembered for so long: what is revoked ends with it.
	tokenCacheLife = time.Minute
	allowCacheLife = time.Minute
	denyCacheLife  = 5 * time.Second
)

// errNotAccepted says no more than a stranger may know.
var errNotAccepted = errors.New("the API server does not accept the token: it is unknown or has ended")

// Access asks the API server who a token is of, and what that user may read.
type Access struct {
	authenticator authenticator.Token
	authorizer    authorizer.Authorizer
}

// NewAccess returns Access that asks with the hub's own rights, which are to create TokenReviews and
// SubjectAccessReviews. cfg bounds the time of a request.
func NewAccess(cfg *rest.Config) (*Access, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = reviewQPS, 2*reviewQPS
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	authorize, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: clients.AuthorizationV1(), AllowCacheTTL: allowCacheLife, DenyCacheTTL: denyCacheLife,
		WebhookRetryBackoff: &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3},
	}.New()
	if err != nil {
		return nil, fmt.Errorf("setting up the dashboard's authorization: %w", err)
	}
	reviewed := authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		return reviewToken(ctx, clients, token)
	})
	return &Access{authenticator: cache.New(reviewed, false, tokenCacheLife, tokenCacheLife), authorizer: authorize}, nil
}

// reviewToken returns an error only where the API server did not judge the token.
func reviewToken(ctx context.Context, clients kubernetes.Interface, token string) (*authenticator.Response, bool, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	review, err := clients.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return nil, false, fmt.Errorf("asking the API server whose token it is: %w", err)
	}
	of := review.Status.User
	if !review.Status.Authenticated || of.Username == "" || of.Username == user.Anonymous {
		return nil, false, nil
	}
	extra := make(map[string][]string, len(of.Extra))
	for key, value := range of.Extra {
		extra[key] = value
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: of.Username, UID: of.UID, Groups: of.Groups, Extra: extra}}, true, nil
}

// userOf returns the user of a token, or errNotAccepted.
func (a *Access) userOf(ctx context.Context, token string) (user.Info, error) {
	response, ok, err := a.authenticator.AuthenticateToken(ctx, token)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errNotAccepted
	}
	return response.User, nil
}

// mayRead reports whether a user may read a path, as the read API itself decides.
func (a *Access) mayRead(ctx context.Context, of user.Info, method, path string) (bool, error) {
	decision, _, err := a.authorizer.Authorize(ctx, authorizer.AttributesRecord{User: of, Verb: strings.ToLower(method), Path: path})
	if err != nil {
		return false, fmt.Errorf("asking the API server what %s may read: %w", of.GetName(), err)
	}
	return decision == authorizer.DecisionAllow, nil
}
