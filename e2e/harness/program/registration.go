//go:build linux

package program

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// AwaitJoinToken waits for the join token that a hub creates for a pull-mode member. It
// skips the token before, which was used already.
func AwaitJoinToken(ctx context.Context, c client.Reader, member, before string) (registration.HubAccess, error) {
	var access registration.HubAccess
	secret := &corev1.Secret{}
	err := wait.PollUntilContextTimeout(ctx, pollInterval, controlplane.Patience, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKey{Namespace: HubNamespace, Name: registration.JoinSecretName(member)}, secret)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		access, err = registration.ParseHubAccess(secret.Data[registration.KubeconfigKey])
		return err == nil && access.Token != before, err
	})
	if err != nil {
		return access, fmt.Errorf("waiting for the join token of member %s: %w", member, err)
	}
	return access, nil
}

// PutJoinToken stores a join token in a member, whose agent then registers.
func PutJoinToken(ctx context.Context, c client.Client, agentNamespace string, a registration.HubAccess) error {
	kubeconfig, err := a.MarshalKubeconfig()
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.JoinSecret},
		Data:       map[string][]byte{registration.KubeconfigKey: kubeconfig},
	}
	if err := client.IgnoreNotFound(c.Delete(ctx, secret.DeepCopy())); err != nil {
		return fmt.Errorf("deleting the previous join token: %w", err)
	}
	if err := c.Create(ctx, secret); err != nil {
		return fmt.Errorf("creating the join token for the agent: %w", err)
	}
	return nil
}

// RegisterPullMember creates a MemberCluster in pull mode and passes the join token on to
// the member's agent. redirect changes the address at which the agent reaches the hub; nil
// for none.
func RegisterPullMember(ctx context.Context, hub, member client.Client, agentNamespace, name string, labels map[string]string, redirect func(*registration.HubAccess)) error {
	mc := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{
			Pull: &v1alpha1.MemberPull{AutoAccept: true},
		}},
	}
	if err := hub.Create(ctx, mc); err != nil {
		return fmt.Errorf("creating MemberCluster %s in pull mode: %w", name, err)
	}
	access, err := AwaitJoinToken(ctx, hub, name, "")
	if err != nil {
		return err
	}
	if redirect != nil {
		redirect(&access)
	}
	return PutJoinToken(ctx, member, agentNamespace, access)
}

// PullModeVariable of the environment selects the members in pull mode: "all", "one", or
// none.
const PullModeVariable = "OT_FLEET_PULL"

// UsesPullMode reports whether a member registers in pull mode. one is the member that does
// with OT_FLEET_PULL=one.
func UsesPullMode(member, one string) bool {
	switch os.Getenv(PullModeVariable) {
	case "all":
		return true
	case "one":
		return member == one
	}
	return false
}

// HubAPIFlags returns the flags of a hub that reaches its API server by another address than
// pull-mode agents.
func HubAPIFlags(cp *controlplane.ControlPlane) ([]string, error) {
	cfg := cp.Config()
	ca := filepath.Join(cp.Dir(), "hub-api-ca.crt")
	if err := os.WriteFile(ca, cfg.CAData, 0o600); err != nil {
		return nil, fmt.Errorf("writing the CA of the hub API: %w", err)
	}
	return []string{"--hub-api-url=" + cfg.Host, "--hub-api-ca-file=" + ca}, nil
}
