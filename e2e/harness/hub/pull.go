//go:build linux

package hub

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// joinTokenPatience is how long a hub may take to make a join token.
const joinTokenPatience = 3 * time.Minute

// AwaitJoinToken waits for the join token that a hub makes for a member whose agent is
// to dial in, of another ServiceAccount than that of before, and returns it.
func AwaitJoinToken(ctx context.Context, c client.Reader, member, before string) (registration.HubAccess, error) {
	var access registration.HubAccess
	secret := &corev1.Secret{}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, joinTokenPatience, true, func(ctx context.Context) (bool, error) {
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

// PutJoinToken puts a join token into a member, whose agent then dials in.
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
		return fmt.Errorf("removing the join token before: %w", err)
	}
	if err := c.Create(ctx, secret); err != nil {
		return fmt.Errorf("giving a join token to an agent: %w", err)
	}
	return nil
}

// RegisterPullMember has a member's agent dial in, by way of what through makes of the address:
// a MemberCluster, and the Secret with the join token.
func RegisterPullMember(ctx context.Context, hub, member client.Client, agentNamespace, name string, labels map[string]string, through func(*registration.HubAccess)) error {
	mc := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{
			Pull: &v1alpha1.MemberPull{AutoAccept: true},
		}},
	}
	if err := hub.Create(ctx, mc); err != nil {
		return fmt.Errorf("creating MemberCluster %s, whose agent dials in: %w", name, err)
	}
	access, err := AwaitJoinToken(ctx, hub, name, "")
	if err != nil {
		return err
	}
	if through != nil {
		through(&access)
	}
	return PutJoinToken(ctx, member, agentNamespace, access)
}

// PullModeVariable of the environment says which members of a fleet dial in: all of them,
// one, or none.
const PullModeVariable = "OT_FLEET_PULL"

// UsesPullMode tells whether a member of a fleet is to dial in. one is the member that does
// where one is to.
func UsesPullMode(member, one string) bool {
	switch os.Getenv(PullModeVariable) {
	case "all":
		return true
	case "one":
		return member == one
	}
	return false
}

// HubAPIFlags are the hub's flags for a hub that goes to its API server by a way that agents
// do not take; none where no member dials in.
func HubAPIFlags(cp *controlplane.ControlPlane) ([]string, error) {
	if os.Getenv(PullModeVariable) == "" {
		return nil, nil
	}
	cfg := cp.Config()
	ca := filepath.Join(cp.Dir(), "door.crt")
	if err := os.WriteFile(ca, cfg.CAData, 0o600); err != nil {
		return nil, fmt.Errorf("writing down how agents are to know the hub: %w", err)
	}
	return []string{"--hub-api-url=" + cfg.Host, "--hub-api-ca-file=" + ca}, nil
}
