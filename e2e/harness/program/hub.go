//go:build linux

package program

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// HubNamespace is where the hub's chart is installed.
const HubNamespace = "ot-hub"

// Hub is a running hub.
type Hub struct {
	*process.Process
	// MetricsURL serves its metrics.
	MetricsURL string
	// APIURL is the base of the read API's paths.
	APIURL string
	// UIURL serves the dashboard with Options.UI, by a self-signed certificate.
	UIURL  string
	reader *apiReader
}

// HubLeaseDuration is as long as in a real cluster: a busy machine loses a shorter one, and a
// hub that loses its Lease exits.
const HubLeaseDuration = 15 * time.Second

var hubProgram = Program{CheckoutProgram: binaries.HubProgram, LeaseDuration: HubLeaseDuration}

// InstallHub installs the hub's chart: CRDs, RBAC and the policy ConfigMap.
func InstallHub(ctx context.Context, cp *controlplane.ControlPlane, values map[string]any) error {
	return hubProgram.Install(ctx, cp, values)
}

// StartHub runs a hub against a control plane with its chart installed.
func StartHub(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Hub, error) {
	args, uiURL := []string{"--advertise-address=127.0.0.1"}, ""
	if o.UI {
		port, err := process.FreePort()
		if err != nil {
			return nil, err
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		args, uiURL = append(args, "--ui-bind-address="+address), "https://"+address
	}
	o.Args = append(args, o.Args...)
	p, address, err := hubProgram.Start(ctx, cp, o)
	if err != nil {
		return nil, err
	}
	h := &Hub{Process: p, APIURL: "https://" + address, UIURL: uiURL}
	h.MetricsURL = h.APIURL + "/metrics"
	h.reader = newAPIReader(h, cp.Config().BearerToken)
	return h, nil
}

// CreateMemberSecret creates the labelled kubeconfig Secret from which a hub creates a
// MemberCluster.
func CreateMemberSecret(ctx context.Context, c client.Client, member string, cfg *rest.Config) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: HubNamespace, Name: member, Labels: map[string]string{v1alpha1.LabelMember: member}},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	}
	if err := c.Create(ctx, secret); err != nil {
		return fmt.Errorf("registering member %s: creating Secret %s/%s: %w", member, HubNamespace, member, err)
	}
	return nil
}

// ErrNotServed is returned while a hub that starts does not serve its read API.
var ErrNotServed = errors.New("the hub does not serve its read API yet")
