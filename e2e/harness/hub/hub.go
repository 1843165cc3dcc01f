//go:build linux

// Package hub runs ot-hub as its chart installs it: see package program. It reads
// what the hub serves.
package hub

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
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// Where the chart is installed.
const (
	HubNamespace    = "ot-hub"
	PolicyNamespace = "sync-operator"
	PolicyName      = "sync-operator-policy"
)

// Hub is a running hub.
type Hub struct {
	*process.Process
	// MetricsURL serves its metrics, APIURL is what the paths of its read API are
	// below.
	MetricsURL string
	APIURL     string
	reader     *apiReader
}

// A lease as in a real cluster: a shorter one is lost now and then on a busy
// machine, and a hub that has lost it ends.
var hubProgram = program.Program{Name: "ot-hub", Package: "hub", LeaseDuration: 15 * time.Second}

// Options of one hub.
type Options = program.Options

// InstallHub installs the hub's chart: kinds, rights and the policy ConfigMap.
func InstallHub(ctx context.Context, cp *controlplane.ControlPlane, values map[string]any) error {
	return hubProgram.Install(ctx, cp, values)
}

// StartHub runs a hub against a control plane that its chart is installed in.
func StartHub(ctx context.Context, cp *controlplane.ControlPlane, o Options) (*Hub, error) {
	o.Args = append([]string{"--advertise-address=127.0.0.1"}, o.Args...)
	p, address, err := hubProgram.Start(ctx, cp, o)
	if err != nil {
		return nil, err
	}
	h := &Hub{Process: p, APIURL: "https://" + address}
	h.MetricsURL = h.APIURL + "/metrics"
	h.reader = newAPIReader(h, cp.Config().BearerToken)
	return h, nil
}

// CreateMemberSecret has a hub find a member by a kubeconfig Secret with the label of that
// name.
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
		return fmt.Errorf("joining member %s: creating Secret %s/%s: %w", member, HubNamespace, member, err)
	}
	return nil
}

// ErrNotServed is what the read API answers with while a hub starts.
var ErrNotServed = errors.New("the hub does not serve its read API yet")
