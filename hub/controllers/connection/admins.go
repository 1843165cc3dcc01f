package connection

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// AdminKubeconfigs are the kubeconfigs that charts are installed in members with: Cluster API's
// own, or the one that was given. The hub's token is allowed the mailbox and no more.
type AdminKubeconfigs struct {
	Secrets *SecretReader
	Live    client.Reader
}

// ForMember that reaches a member. Of an error that MissingPrerequisite knows somebody has to make
// something first.
func (a *AdminKubeconfigs) ForMember(ctx context.Context, member *v1alpha1.MemberCluster) ([]byte, error) {
	if member.Spec.Connection.ClusterAPI != nil {
		return readClusterAPIKubeconfig(ctx, a.Live, member)
	}
	name, key := connectionSecret(member)
	if name == "" {
		return nil, prerequisiteError("its agent dials in: there is no kubeconfig")
	}
	secret, err := a.Secrets.readSecret(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case secret == nil:
		return nil, prerequisiteError(fmt.Sprintf("Secret %s/%s with its kubeconfig is not there", a.Secrets.Namespace, name))
	case len(secret.Data[key]) == 0:
		return nil, prerequisiteError(fmt.Sprintf("Secret %s/%s has no key %s with its kubeconfig", a.Secrets.Namespace, name, key))
	}
	return secret.Data[key], nil
}

// MissingPrerequisite tells what an error says that somebody has to make first.
func MissingPrerequisite(err error) (message string, is bool) {
	var missing prerequisiteError
	is = errors.As(err, &missing)
	return string(missing), is
}
