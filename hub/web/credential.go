package web

import (
	"context"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// authorizationKey is the key of what a caller has identified itself with.
type authorizationKey struct{}

// KeepCredential returns a filter that lets a Forwarder know the credential of a
// caller that another filter has authorized: the API server's own authentication
// (k8s.io/apiserver, bearertoken) takes the header out of a request.
func KeepCredential(provider func(*rest.Config, *http.Client) (server.Filter, error)) func(*rest.Config, *http.Client) (server.Filter, error) {
	return func(cfg *rest.Config, c *http.Client) (server.Filter, error) {
		filter, err := provider(cfg, c)
		if err != nil {
			return nil, err
		}
		return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
			filtered, err := filter(log, handler)
			if err != nil {
				return nil, err
			}
			return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				known := context.WithValue(request.Context(), authorizationKey{}, request.Header.Get("Authorization"))
				filtered.ServeHTTP(w, request.WithContext(known))
			}), nil
		}, nil
	}
}

// callerCredential is what a caller has identified itself with.
func callerCredential(request *http.Request) string {
	if kept, is := request.Context().Value(authorizationKey{}).(string); is {
		return kept
	}
	return request.Header.Get("Authorization")
}
