package execute

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/cli/join"
)

// checkHubAddress refuses a join token whose address the agent cannot reach, before anything is
// installed. What this user may not read is not checked.
func (e *Executor) checkHubAddress(ctx context.Context) error {
	access, err := registration.ParseHubAccess(e.token)
	if err != nil {
		return nil //nolint:nilerr // the agent says what is wrong with it
	}
	service, err := getOptional(ctx, e.Hub, "default", "kubernetes", &corev1.Service{})
	if err != nil || service == nil || !join.IsServiceAddress(access.Server, service.Spec.ClusterIPs) {
		return nil //nolint:nilerr // see above
	}
	system, err := getOptional(ctx, e.Hub, "", "kube-system", &corev1.Namespace{})
	if err != nil || system != nil && system.UID == e.uid() {
		return nil //nolint:nilerr // the hub's own cluster reaches it
	}
	return join.ClusterOnlyError(e.Request.Name, access.Server)
}
