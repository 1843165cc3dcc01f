// Command virthandler replaces KubeVirt's virt-handler on kind nodes that run no guests: a VMI is
// Running as soon as its Pod is, and ends as soon as it is asked to. virt-operator starts it in the
// DaemonSet of the real one; virt-api, virt-controller, scheduler, kubelet and disks are real.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

const (
	// pollInterval is the interval between reconciles of the node's VMIs.
	pollInterval = time.Second
	// heartbeatRounds is the number of polls between heartbeats, well below the five minutes
	// after which virt-controller considers the node lost.
	heartbeatRounds = 30
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("NODE_NAME")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, node string) error {
	if node == "" {
		return errors.New("NODE_NAME has to be set")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	config.Timeout = 10 * time.Second
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, kubevirtv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("knowing the kinds of KubeVirt: %w", err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making the client of the API server: %w", err)
	}
	failed := make(chan error, 1)
	go func() { failed <- serveHealth() }()
	h := nodeHandler{client: c, node: node}
	for round := 0; ; round++ {
		if round%heartbeatRounds == 0 {
			if err := h.prepareNode(ctx); err != nil && ctx.Err() == nil {
				log.Print(err)
			}
		}
		if err := h.reconcileVMIs(ctx); err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-time.After(pollInterval):
		}
	}
}

// serveHealth answers the probes of the DaemonSet. Kubelets do not verify its certificate.
func serveHealth() error {
	certificate, key, err := cert.GenerateSelfSignedCertKey("virt-handler", nil, nil)
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{
		Addr: ":8443", Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	return fmt.Errorf("answering probes: %w", server.ListenAndServeTLS("", ""))
}

type nodeHandler struct {
	client client.Client
	node   string
}

// prepareNode adds KubeVirt's labels and devices to the node. A restarted kubelet drops devices without
// a plugin.
func (h *nodeHandler) prepareNode(ctx context.Context) error {
	return errors.Join(simulator.AddKubeVirtDevices(ctx, h.client, h.node), simulator.UpdateHeartbeat(ctx, h.client, h.node))
}

// reconcileVMIs sets the next phase of each VMI of the node.
func (h *nodeHandler) reconcileVMIs(ctx context.Context) error {
	var machines kubevirtv1.VirtualMachineInstanceList
	if err := h.client.List(ctx, &machines, client.MatchingLabels{kubevirtv1.NodeNameLabel: h.node}); err != nil {
		return fmt.Errorf("listing the machines of node %s: %w", h.node, err)
	}
	if len(machines.Items) == 0 {
		return nil
	}
	var pods corev1.PodList
	if err := h.client.List(ctx, &pods, client.MatchingLabels{kubevirtv1.AppLabel: "virt-launcher"}, client.MatchingFields{"spec.nodeName": h.node}); err != nil {
		return fmt.Errorf("listing the launchers of node %s: %w", h.node, err)
	}
	var failed []error
	for i := range machines.Items {
		vmi := &machines.Items[i]
		phase := simulator.NextVMIPhase(vmi, findLauncher(vmi, pods.Items), h.node)
		if phase == "" {
			continue
		}
		// A conflict is retried in the next round.
		if err := simulator.SetVMIPhase(ctx, h.client, vmi, phase); err != nil && !apierrors.IsInvalid(err) {
			failed = append(failed, err)
			continue
		}
		log.Printf("machine %s/%s: %s", vmi.Namespace, vmi.Name, phase)
	}
	return errors.Join(failed...)
}

// findLauncher returns the Pod that runs a VMI; nil for none. It is neither the first consumer of the
// VMI's claims nor a Pod of a former VMI of the same name.
func findLauncher(vmi *kubevirtv1.VirtualMachineInstance, pods []corev1.Pod) *corev1.Pod {
	for i := range pods {
		if metav1.IsControlledBy(&pods[i], vmi) && simulator.IsLauncherPod(&pods[i]) {
			return &pods[i]
		}
	}
	return nil
}
