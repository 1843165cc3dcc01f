package connection

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AdminKubeconfigs returns the kubeconfigs for installing charts in members: Cluster
// API's, or the configured one. The hub's own token can access only the mailbox.
type AdminKubeconfigs struct {
	Secrets *SecretReader
	Live    client.Reader
}

// ForMember returns a kubeconfig for a member. If MissingPrerequisite(err) is true,
// somebody has to create something first.
func (a *AdminKubeconfigs) ForMember(ctx context.Context, member *v1alpha1.MemberCluster) ([]byte, error) {
	if member.Spec.Connection.ClusterAPI != nil {
		return readClusterAPIKubeconfig(ctx, a.Live, member)
	}
	name, key := connectionSecret(member)
	if name == "" {
		return nil, prerequisiteError("it is in pull mode and has no kubeconfig")
	}
	secret, err := a.Secrets.readSecret(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case secret == nil:
		return nil, prerequisiteError(fmt.Sprintf("Secret %s/%s with its kubeconfig does not exist", a.Secrets.Namespace, name))
	case len(secret.Data[key]) == 0:
		return nil, prerequisiteError(fmt.Sprintf("Secret %s/%s has no key %s with its kubeconfig", a.Secrets.Namespace, name, key))
	}
	return secret.Data[key], nil
}

// MissingPrerequisite returns what somebody has to create or correct first, if err is
// about that.
func MissingPrerequisite(err error) (message string, ok bool) {
	var missing prerequisiteError
	ok = errors.As(err, &missing)
	return string(missing), ok
}
