package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelotech/ot-fleet/hub/dashboard"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/web"
	"github.com/pelotech/ot-fleet/ui"
)

// uiService is the Service of the dashboard in the hub's chart.
const uiService = "ot-hub-ui"

// uiOptions are the flags of the dashboard.
type uiOptions struct {
	// address serves the dashboard; "0" disables it.
	address string
	// certDir has the certificate to serve it with; empty: a self-signed one.
	certDir string
	// hosts are further names by which browsers reach it.
	hosts []string
}

func (o *uiOptions) bindFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.address, "ui-bind-address", "0", "Address that serves the dashboard over HTTPS, such as :8443; 0 disables it.")
	flags.StringVar(&o.certDir, "ui-cert-dir", "", "Directory with tls.crt and tls.key to serve the dashboard with; a replaced certificate is loaded. Default: a self-signed certificate.")
	bindList(flags, &o.hosts, "ui-hosts", "Host names by which browsers reach the dashboard, separated by commas, beside its Service's, localhost and 127.0.0.1. Others are refused.")
}

func (o *uiOptions) validate() error {
	for _, host := range o.hosts {
		if net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
			return fmt.Errorf("--ui-hosts has %q, which is no host name: give names such as fleet.example.com, without https:// and port", host)
		}
	}
	return nil
}

// uiHosts are all names by which browsers reach the dashboard.
func uiHosts(namespace string, further []string) []string {
	hosts := []string{"localhost", "127.0.0.1", "::1", uiService, uiService + "." + namespace, uiService + "." + namespace + ".svc", uiService + "." + namespace + ".svc.cluster.local"}
	for _, host := range further {
		hosts = append(hosts, strings.ToLower(host))
	}
	return hosts
}

// setupDashboard serves the dashboard from every replica, with the handlers of the read API.
func (h *hub) setupDashboard(reads map[string]http.Handler) error {
	if h.ui.address == "0" {
		return nil
	}
	own, err := web.NewCertificate(h.advertise)
	if err != nil {
		return err
	}
	var given *certwatcher.CertWatcher
	if h.ui.certDir != "" {
		given, err = certwatcher.New(filepath.Join(h.ui.certDir, corev1.TLSCertKey), filepath.Join(h.ui.certDir, corev1.TLSPrivateKeyKey))
		if err != nil {
			return fmt.Errorf("reading the certificate in --ui-cert-dir: %w", err)
		}
		if err := h.addRunnables(given); err != nil {
			return err
		}
	}
	access, err := dashboard.NewAccess(h.apiServer.Bounded)
	if err != nil {
		return err
	}
	keys := &dashboard.KeyStore{Live: h.live, Namespace: h.Namespace}
	handler, err := dashboard.NewHandler(dashboard.Options{
		APIServer: h.apiServer.Bounded, Access: access, Keys: keys, Hosts: uiHosts(h.Namespace, h.ui.hosts), Reads: reads,
		Metrics: metrics.NewDashboard(ctrlmetrics.Registry),
		App:     ui.Options{Version: version, HubVersion: version, HubNamespace: h.Namespace, Policy: h.Policy},
	})
	if err != nil {
		return err
	}
	return h.addRunnables(keys, &dashboard.Listener{
		Address: h.ui.address, Handler: handler,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: web.SelectCertificate(own, given)},
	})
}
