package members

import (
	"context"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A connection on which nothing comes is asked for a sign of life, and given up
// without one: a watch has no timeout, and would hang with it.
const (
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// mailbox is what the hub knows of a member.
func mailbox() []client.Object {
	return []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}, &v1alpha1.ClusterReport{}}
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		panic(err) // two types of one kind: a fault of the build
	}
	return s
}()

// mapper needs no discovery: the kinds are known, and a credential is given the
// right to nothing else.
var mapper = func() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ClusterPlan", "TransferGrant", "ClusterReport"} {
		m.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
		m.Add(v1alpha1.GroupVersion.WithKind(kind+"List"), meta.RESTScopeNamespace)
	}
	return m
}()

// link is what one connection consists of. Its transport is its own: it is not
// shared with the connection before, which may hang, and goes with it.
type link struct {
	cluster      cluster.Cluster
	namespace    string
	transport    *http.Transport
	probeTimeout time.Duration
	refused      chan error
}

func dial(e *entry, o Options) (*link, error) {
	cfg := rest.CopyConfig(e.target.Config)
	cfg.Timeout = o.RequestTimeout
	cfg.UserAgent = o.UserAgent
	cfg.QPS, cfg.Burst = 50, 100
	l := &link{namespace: e.target.Namespace, probeTimeout: o.ProbeTimeout, refused: make(chan error, 1)}
	var err error
	if l.transport, err = transport(cfg, o.RequestTimeout); err != nil {
		return nil, err
	}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, &bearer{entry: e, next: l.transport})
	if err != nil {
		return nil, err
	}
	bounded := &http.Client{Transport: wrapped, Timeout: o.RequestTimeout}
	l.cluster, err = cluster.New(cfg, func(options *cluster.Options) {
		options.Scheme = scheme
		options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil }
		options.HTTPClient = bounded
		options.NewClient = func(cfg *rest.Config, options client.Options) (client.Client, error) {
			options.Cache = nil
			return client.New(cfg, options)
		}
		options.NewCache = l.newCache(&http.Client{Transport: wrapped})
	})
	return l, err
}

// newCache watches the mailbox in the agent's namespace. The timeout of a client
// ends its watches too, so the cache has a client without: the transport bounds
// the wait for an answer's beginning, pings tell a dead connection.
func (l *link) newCache(watching *http.Client) cache.NewCacheFunc {
	return func(cfg *rest.Config, options cache.Options) (cache.Cache, error) {
		options.HTTPClient = watching
		options.DefaultNamespaces = map[string]cache.Config{l.namespace: {}}
		options.DefaultTransform = cache.TransformStripManagedFields()
		options.ReaderFailOnMissingInformer = true
		options.DefaultWatchErrorHandler = func(ctx context.Context, r *toolscache.Reflector, err error) {
			l.watchFailed(err)
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
		}
		unbounded := rest.CopyConfig(cfg)
		unbounded.Timeout = 0
		return cache.New(unbounded, options)
	}
}

// transport of one connection, on which nothing is waited for without end.
func transport(cfg *rest.Config, timeout time.Duration) (*http.Transport, error) {
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       tlsConfig,
		TLSHandshakeTimeout:   timeout,
		ResponseHeaderTimeout: timeout,
		IdleConnTimeout:       90 * time.Second,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	if cfg.Proxy != nil {
		t.Proxy = cfg.Proxy
	}
	if cfg.Dial != nil {
		t.DialContext = cfg.Dial
	}
	return t, nil
}

// NewClient makes a client for a few requests to a member, each of which ends
// in time. Its connections go with done.
func NewClient(cfg *rest.Config, timeout time.Duration, options client.Options) (c client.Client, done func(), err error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = timeout
	t, err := transport(cfg, timeout)
	if err != nil {
		return nil, nil, err
	}
	wrapped, err := rest.HTTPWrappersForConfig(cfg, t)
	if err != nil {
		return nil, nil, err
	}
	options.HTTPClient = &http.Client{Transport: wrapped, Timeout: timeout}
	c, err = client.New(cfg, options)
	return c, t.CloseIdleConnections, err
}

// close lets go of connections; what is under way on them ends by its context.
func (l *link) close() { l.transport.CloseIdleConnections() }

// probe asks the member for a sign of life: the resourceVersion of its report's
// root, empty for none.
func (l *link) probe(ctx context.Context) (live string, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.probeTimeout)
	defer cancel()
	// That it is not there is an answer too.
	root := &v1alpha1.ClusterReport{}
	err = l.cluster.GetClient().Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: v1alpha1.MailboxName}, root)
	switch {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return "", errNotServed
	case apierrors.IsNotFound(err):
		return "", nil
	}
	return root.ResourceVersion, err
}

// bearer sends the token that the member's entry has by now: one that was
// renewed needs no new connection.
type bearer struct {
	entry *entry
	next  http.RoundTripper
}

func (b *bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	if token := *b.entry.token.Load(); token != "" && request.Header.Get("Authorization") == "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return b.next.RoundTrip(request)
}

// WrappedRoundTripper is for those who look for what is below.
func (b *bearer) WrappedRoundTripper() http.RoundTripper { return b.next }
