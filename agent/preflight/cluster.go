package preflight

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list

// clusterReadInterval is the maximum age of what a ClusterReader has read.
const clusterReadInterval = time.Minute

// cdiConfigName is the name of CDI's only CDIConfig.
const cdiConfigName = "config"

// proxyFunc returns the proxy for a URL; nil for none.
type proxyFunc func(*url.URL) (*url.URL, error)

// network is what the preflight has to know about the cluster's network.
type network struct {
	// internal networks: those of Services, and of the agent's Pod.
	internal []netip.Prefix
	proxy    proxyFunc
}

// ClusterReader reads the cluster's network. It is safe for concurrent use.
type ClusterReader struct {
	live client.Reader

	mu       sync.Mutex
	readAt   time.Time
	services []netip.Prefix
	current  network
}

// NewClusterReader returns a ClusterReader; live must not be cached.
func NewClusterReader(live client.Reader) *ClusterReader { return &ClusterReader{live: live} }

// read returns the network. What cannot be read stays as it was: an older cluster serves
// no ServiceCIDRs, and there may be no CDI.
func (r *ClusterReader) read(ctx context.Context) network {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.readAt.IsZero() && time.Since(r.readAt) < clusterReadInterval {
		return r.current
	}
	next := network{internal: ownNetworks(), proxy: environmentProxy()}
	if r.live != nil {
		var services networkingv1.ServiceCIDRList
		if err := r.live.List(ctx, &services); err == nil {
			r.services = serviceNetworks(services.Items)
		}
		next.internal = append(next.internal, r.services...)
		config := &cdiv1.CDIConfig{}
		if err := r.live.Get(ctx, types.NamespacedName{Name: cdiConfigName}, config); err == nil {
			next.proxy = importProxy(config.Status.ImportProxy, next.proxy)
		} else if client.IgnoreNotFound(err) != nil && r.current.proxy != nil {
			next.proxy = r.current.proxy
		}
	}
	r.current, r.readAt = next, time.Now()
	return next
}

// importProxy returns CDI's proxy, as imports use it; otherwise if CDI has none.
func importProxy(p *cdiv1.ImportProxy, otherwise proxyFunc) proxyFunc {
	if p == nil || ptr.Deref(p.HTTPProxy, "") == "" && ptr.Deref(p.HTTPSProxy, "") == "" {
		return otherwise
	}
	config := httpproxy.Config{HTTPProxy: ptr.Deref(p.HTTPProxy, ""), HTTPSProxy: ptr.Deref(p.HTTPSProxy, ""), NoProxy: ptr.Deref(p.NoProxy, "")}
	return config.ProxyFunc()
}

func environmentProxy() proxyFunc { return httpproxy.FromEnvironment().ProxyFunc() }

func serviceNetworks(services []networkingv1.ServiceCIDR) (prefixes []netip.Prefix) {
	for i := range services {
		for _, text := range services[i].Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				prefixes = append(prefixes, prefix)
			}
		}
	}
	return prefixes
}

// ownNetworks are those that the agent's Pod is in, and the API server's Service.
func ownNetworks() (prefixes []netip.Prefix) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		addrs = nil // the other rules remain
	}
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil {
			prefixes = append(prefixes, prefix.Masked())
		}
	}
	if addr, err := netip.ParseAddr(os.Getenv("KUBERNETES_SERVICE_HOST")); err == nil {
		prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return prefixes
}
