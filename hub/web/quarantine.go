package web

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

// getQuarantine reads the member live: the cache has no managed fields, by which GitOps is
// recognized.
func (a *API) getQuarantine(request *http.Request) (any, error) {
	name := request.URL.Query().Get("member")
	if name == "" {
		return nil, httpError{http.StatusBadRequest, "member is required: a member from /fleet/v1/members"}
	}
	var member v1alpha1.MemberCluster
	err := a.Live.Get(request.Context(), client.ObjectKey{Name: name}, &member)
	switch {
	case apierrors.IsNotFound(err):
		return nil, notFound("MemberCluster", name)
	case err != nil:
		return nil, fmt.Errorf("reading MemberCluster %s: %w", v1alpha1.Truncate(name, maxKeyBytes), err)
	}
	return answers.DescribeQuarantine(&member), nil
}
