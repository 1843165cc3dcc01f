package helm

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelotech/ot-fleet/api/hubclient"
)

// The hub uses the field manager of Helm's command, so that a release can change hands
// between a person and the hub without conflicts.
func init() { kube.ManagedFieldsManager = "helm" }

// Limits of the requests to a member.
const (
	clientQPS   = 50
	clientBurst = 100
)

// Member is a cluster in which charts are installed.
type Member struct {
	ctx         context.Context
	cfg         *rest.Config
	namespace   string
	discovery   discovery.CachedDiscoveryInterface
	mapper      meta.ResettableRESTMapper
	closeClient func()
}

// Options of a Member.
type Options struct {
	// Namespace of the release.
	Namespace string
	// RequestTimeout of each request.
	RequestTimeout time.Duration
	// Fence returns an error once nothing may be changed any more. It is called before
	// each mutating request.
	Fence func() error
}

// NewMember prepares a connection without sending anything. All requests end with ctx,
// since Helm's actions take no context. The caller has to close the Member.
func NewMember(ctx context.Context, cfg *rest.Config, o Options) (*Member, error) {
	own, done, err := hubclient.DedicatedConfig(cfg, o.RequestTimeout, func(next http.RoundTripper) http.RoundTripper {
		return &fencedTransport{ctx: ctx, fence: o.Fence, next: next}
	})
	if err != nil {
		return nil, fmt.Errorf("making a connection of the kubeconfig: %w", err)
	}
	own.QPS, own.Burst = clientQPS, clientBurst
	known, err := discovery.NewDiscoveryClientForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("making a client of the kubeconfig: %w", err)
	}
	cached := newSequentialDiscovery(ctx, known)
	return &Member{
		ctx: ctx, cfg: own, namespace: o.Namespace, discovery: cached,
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached), closeClient: done,
	}, nil
}

// Close closes the connections.
func (m *Member) Close() { m.closeClient() }

// ToRESTConfig implements genericclioptions.RESTClientGetter. It returns a copy, which
// callers modify.
func (m *Member) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(m.cfg), nil }

// ToDiscoveryClient implements genericclioptions.RESTClientGetter.
func (m *Member) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return m.discovery, nil
}

// ToRESTMapper implements genericclioptions.RESTClientGetter.
func (m *Member) ToRESTMapper() (meta.RESTMapper, error) { return m.mapper, nil }

// ToRawKubeConfigLoader implements genericclioptions.RESTClientGetter. Callers read only
// its namespace.
func (m *Member) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), &clientcmd.ConfigOverrides{
		Context: clientcmdapi.Context{Namespace: m.namespace},
	})
}

// newActionConfig returns Helm's configuration with releases in Secrets of the member's
// namespace.
func (m *Member) newActionConfig() (*action.Configuration, error) {
	cfg := action.NewConfiguration(action.ConfigurationSetLogger(logr.ToSlogHandler(logr.FromContextOrDiscard(m.ctx))))
	if err := cfg.Init(m, m.namespace, "secret"); err != nil {
		return nil, fmt.Errorf("preparing Helm: %w", err)
	}
	if client, ok := cfg.KubeClient.(*kube.Client); ok {
		client.Namespace = m.namespace
	}
	core, err := typedcorev1.NewForConfig(m.cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client for releases: %w", err)
	}
	secrets := driver.NewSecrets(boundedSecrets{core.Secrets(m.namespace)})
	secrets.SetLogger(cfg.Logger().Handler())
	cfg.Releases = storage.Init(secrets)
	cfg.Releases.SetLogger(cfg.Logger().Handler())
	return cfg, nil
}
