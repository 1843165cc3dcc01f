//go:build linux

package simulator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// importerMetricsPort is where importers serve their metrics.
	importerMetricsPort = 8443
	// progressStep is how often the progress changes: CDI writes each change, and reads again
	// when it has written. A progress that is never the same keeps it writing without a pause.
	progressStep = 10 * time.Second
)

// ImportProgress is the metrics endpoint of all importers of a member, from which CDI reads how
// far an import is. The simulated importers have one address together.
type ImportProgress struct {
	server *http.Server
	done   chan struct{}
}

// StartImportProgress serves it at the address of the kubelet's Pods.
func StartImportProgress(c client.Reader, k *Kubelet) (*ImportProgress, error) {
	address := net.JoinHostPort(k.podIP, strconv.Itoa(importerMetricsPort))
	certificate, err := newImporterCertificate()
	if err != nil {
		return nil, err
	}
	listener, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, fmt.Errorf("serving the progress of simulated imports: %w", err)
	}
	p := &ImportProgress{done: make(chan struct{}), server: &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, err := renderImportProgress(r.Context(), c, time.Now())
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte(text))
		}),
	}}
	go func() {
		defer close(p.done)
		_ = p.server.Serve(listener) // until Stop
	}()
	return p, nil
}

// Stop ends it.
func (p *ImportProgress) Stop() error {
	err := p.server.Close()
	<-p.done
	return err
}

// newImporterCertificate returns a certificate as importers make one: CDI does not verify it.
func newImporterCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making the importers' key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making the importers' certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func renderImportProgress(ctx context.Context, c client.Reader, now time.Time) (string, error) {
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.MatchingLabels{"cdi.kubevirt.io": "importer"}); err != nil {
		return "", fmt.Errorf("listing importer Pods: %w", err)
	}
	var text strings.Builder
	for i := range pods.Items {
		if owner, percent, ok := importProgress(&pods.Items[i], now); ok {
			fmt.Fprintf(&text, "kubevirt_cdi_import_progress_total{ownerUID=%q} %.2f\n", owner, percent)
		}
	}
	return text.String(), nil
}

// hangsAt is where an importer with a duration hangs: in mid-transfer.
const hangsAt = 40

// importProgress returns how far a running importer is by its duration, as CDI's importer says
// it: 100 only once it has ended.
func importProgress(pod *corev1.Pod, now time.Time) (owner string, percent float64, ok bool) {
	if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Running == nil {
		return "", 0, false
	}
	endpoint := ""
	for _, env := range pod.Spec.Containers[0].Env {
		switch env.Name {
		case "OWNER_UID":
			owner = env.Value
		case "IMPORTER_ENDPOINT":
			endpoint = env.Value
		}
	}
	lasts := importDuration(endpoint)
	if owner == "" || lasts <= 0 {
		return "", 0, false
	}
	if parsed, err := url.Parse(endpoint); err == nil && strings.HasPrefix(parsed.Path, "/hang/") {
		return owner, hangsAt, true
	}
	since := now.Sub(pod.Status.ContainerStatuses[0].State.Running.StartedAt.Time).Truncate(progressStep)
	return owner, min(max(100*since.Seconds()/lasts.Seconds(), 0), 99), true
}

var durationSegment = regexp.MustCompile(durationPattern)

// importDuration returns the duration in the path of an image's URL; 0 for none.
func importDuration(endpoint string) time.Duration {
	parsed, err := url.Parse(endpoint)
	if err != nil {
		return 0
	}
	segments := strings.Split(strings.TrimPrefix(parsed.Path, "/"), "/")
	for _, segment := range segments[min(1, len(segments)):min(3, len(segments))] {
		if durationSegment.MatchString(segment) {
			d, _ := time.ParseDuration(segment)
			return d
		}
	}
	return 0
}
