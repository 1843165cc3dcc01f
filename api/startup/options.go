package startup

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
)

// Options are the flags that both programs have.
type Options struct {
	// Namespace that the program runs in.
	Namespace string
	// Policy names the policy ConfigMap.
	Policy types.NamespacedName

	// MetricsAddress serves metrics; "0" disables it.
	MetricsAddress string
	MetricsSecure  bool
	// MetricsCertDir has the certificate to serve them with; empty: the program signs
	// its own.
	MetricsCertDir string
	HealthAddress  string
	PprofAddress   string

	LeaderElect   bool
	LeaseDuration time.Duration
	RenewDeadline time.Duration
	RetryPeriod   time.Duration

	// QPS limits the requests to the program's own API server, per second.
	QPS float64
}

// BindFlags adds the flags to a set. qps is the default of --kube-api-qps.
func (o *Options) BindFlags(flags *flag.FlagSet, qps float64) {
	flags.StringVar(&o.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "Namespace that this program runs in. Default: $POD_NAMESPACE.")
	flags.StringVar(&o.Policy.Namespace, "policy-namespace", policy.DefaultNamespace, "Namespace of the policy ConfigMap.")
	flags.StringVar(&o.Policy.Name, "policy-name", policy.DefaultName, "Name of the policy ConfigMap.")

	flags.StringVar(&o.MetricsAddress, "metrics-bind-address", ":8080", "Address that serves metrics, and the read API of a hub; 0 disables it.")
	flags.BoolVar(&o.MetricsSecure, "metrics-secure", true, "Serve them over HTTPS, to callers that the API server authorizes for the path. Otherwise in plain text, to everybody.")
	flags.StringVar(&o.MetricsCertDir, "metrics-cert-dir", "", "Directory with tls.crt and tls.key to serve them with; a replaced certificate is loaded. Default: a self-signed certificate.")
	flags.StringVar(&o.HealthAddress, "health-probe-bind-address", ":8081", "Address that serves /healthz and /readyz; 0 disables it.")
	flags.StringVar(&o.PprofAddress, "pprof-bind-address", "0", "Address that serves /debug/pprof; 0 disables it.")

	flags.BoolVar(&o.LeaderElect, "leader-elect", true, "Elect one of several replicas as the leader.")
	flags.DurationVar(&o.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long other replicas wait for a replica that does not renew its Lease, in whole seconds.")
	flags.DurationVar(&o.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long a replica that cannot renew its Lease keeps working.")
	flags.DurationVar(&o.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "Wait between two attempts to take or renew a Lease.")
	flags.Float64Var(&o.QPS, "kube-api-qps", qps, "Requests per second to the program's own API server, for each kind of object, on average; 1 to 10000.")
}

// Validate returns an error for options that no program can run with.
func (o *Options) Validate() error {
	if o.Namespace == "" {
		return fmt.Errorf("neither --namespace nor $POD_NAMESPACE is set: name the namespace that this program runs in")
	}
	return errors.Join(o.validateQPS(), o.validateElection())
}

// CertificateFiles returns the paths of certificate and key in MetricsCertDir; false
// where the program serves with a certificate of its own, or none.
func (o *Options) CertificateFiles() (certificate, key string, ok bool) {
	if o.MetricsCertDir == "" || !o.MetricsSecure {
		return "", "", false
	}
	return filepath.Join(o.MetricsCertDir, corev1.TLSCertKey), filepath.Join(o.MetricsCertDir, corev1.TLSPrivateKeyKey), true
}

// CheckCertificate reads the certificate in MetricsCertDir. Otherwise a server that
// cannot read it silently signs its own.
func (o *Options) CheckCertificate() error {
	certificate, key, ok := o.CertificateFiles()
	if !ok {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		return fmt.Errorf("reading the certificate in --metrics-cert-dir: %w", err)
	}
	return nil
}
