package startup

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/transport"
)

// LoadConfig finds the program's own API server. userAgent names the program and its
// version.
func (o *Options) LoadConfig(userAgent string) (*rest.Config, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the API server: %w", err)
	}
	cfg = rest.AddUserAgent(cfg, userAgent)
	cfg.QPS, cfg.Burst = float32(o.QPS), int(2*o.QPS)
	return cfg, nil
}

// APIServer is the monitored connection to the program's own API server.
type APIServer struct {
	// Config has no timeout, for watches: the timeout of a client ends its watches too,
	// and a dead connection is found by the pings of HTTP/2.
	Config *rest.Config
	// Bounded is Config with a timeout for every request.
	Bounded     *rest.Config
	Monitor     *health.APIServerMonitor
	Permissions *health.PermissionWatch
}

// NewAPIServer monitors all requests that are made with its configurations.
func NewAPIServer(cfg *rest.Config, needed []health.Permission, program string) *APIServer {
	s := &APIServer{
		Config: rest.CopyConfig(cfg), Monitor: health.NewAPIServerMonitor(),
		Permissions: health.NewPermissionWatch(rest.CopyConfig(cfg), needed, program),
	}
	s.Config.Wrap(s.Monitor.WrapTransport)
	s.Config.Wrap(s.Permissions.WrapTransport)
	s.Bounded = rest.CopyConfig(s.Config)
	s.Bounded.Timeout = transport.RequestTimeout
	return s
}

// ManagerOptions returns the options of a manager that is made with s.Bounded.
func (o *Options) ManagerOptions(s *APIServer, scheme *runtime.Scheme, cached cache.Options, leaseName string) ctrl.Options {
	return ctrl.Options{
		Scheme: scheme,
		Cache:  cached,
		NewCache: func(_ *rest.Config, options cache.Options) (cache.Cache, error) {
			options.HTTPClient = nil
			return cache.New(s.Config, options)
		},
		Metrics:                       o.MetricsOptions(),
		HealthProbeBindAddress:        o.HealthAddress,
		PprofBindAddress:              o.PprofAddress,
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       o.Namespace,
		LeaseDuration:                 &o.LeaseDuration,
		RenewDeadline:                 &o.RenewDeadline,
		RetryPeriod:                   &o.RetryPeriod,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       ptr.To(o.shutdownTimeout()),
	}
}

const (
	// terminationGracePeriod is after how long Kubernetes kills a Pod that it asked to end, by default.
	terminationGracePeriod = 30 * time.Second
	minShutdownTimeout     = 5 * time.Second
	// releaseMargin is left after the release of the Lease.
	releaseMargin = 5 * time.Second
)

// shutdownTimeout returns how long controllers may take to end: as long as the release of the Lease,
// which takes up to the renew deadline, ends before the process is killed. That holds for deadlines of
// up to 20 s.
func (o *Options) shutdownTimeout() time.Duration {
	return max(minShutdownTimeout, terminationGracePeriod-o.RenewDeadline-releaseMargin)
}

// MetricsOptions returns how metrics are served: over HTTPS, to callers that the API
// server authorizes, with the certificate in MetricsCertDir or a self-signed one.
func (o *Options) MetricsOptions() server.Options {
	served := server.Options{BindAddress: o.MetricsAddress, SecureServing: o.MetricsSecure}
	if o.MetricsSecure {
		served.FilterProvider = filters.WithAuthenticationAndAuthorization
		served.CertDir = o.MetricsCertDir
	}
	return served
}

// NewScheme returns a scheme with the kinds of several packages.
func NewScheme(adders ...func(*runtime.Scheme) error) *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range adders {
		if err := add(scheme); err != nil {
			panic(err) // two packages register one kind: a fault of the build
		}
	}
	return scheme
}
