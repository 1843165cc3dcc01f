package web

import (
	"context"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// authorizationKey is the context key of the caller's Authorization header.
type authorizationKey struct{}

// KeepCredential wraps a filter that authorizes callers, and keeps their credential for a
// Forwarder: authentication (k8s.io/apiserver, bearertoken) removes the header.
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
				withCredential := context.WithValue(request.Context(), authorizationKey{}, request.Header.Get("Authorization"))
				filtered.ServeHTTP(w, request.WithContext(withCredential))
			}), nil
		}, nil
	}
}

// callerCredential returns the Authorization header of the caller.
func callerCredential(request *http.Request) string {
	if kept, ok := request.Context().Value(authorizationKey{}).(string); ok {
		return kept
	}
	return request.Header.Get("Authorization")
}
