package hubclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ErrNotServed means that the API server answers but does not serve the kinds of the mailbox.
var ErrNotServed = errors.New("it does not serve the kinds of the mailbox")

// Scheme has the kinds that a connection is used for.
var Scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme, authenticationv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // two types are registered for one kind
		}
	}
	return s
}()

// Mapper needs no discovery: the kinds are known, and a credential has no other
// permissions.
var Mapper = func() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ClusterPlan", "TransferGrant", "ClusterReport", "MemberLink", "ClusterJoin"} {
		m.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
		m.Add(v1alpha1.GroupVersion.WithKind(kind+"List"), meta.RESTScopeNamespace)
	}
	m.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), meta.RESTScopeNamespace)
	return m
}()

// Options of a connection. Zero durations get the default.
type Options struct {
	// RequestTimeout bounds a request. Default: 10s.
	RequestTimeout time.Duration
	// ProbeInterval is the interval of probes. Default: 10s.
	ProbeInterval time.Duration
	// AlignProbes has the connections of this process probe together, a fifth of ProbeInterval later
	// at most. Only for those to many servers.
	AlignProbes bool
	// ProbeTimeout bounds a probe. Default: 5s.
	ProbeTimeout time.Duration
	// SyncTimeout bounds the initial sync of the cache. Default: 30s.
	SyncTimeout time.Duration
	UserAgent   string
}

// untilProbe returns the wait before the next probe, of at least delay.
func (o *Options) untilProbe(delay time.Duration) time.Duration {
	if o.AlignProbes {
		return trigger.UntilTick(delay, max(1, o.ProbeInterval/5))
	}
	return wait.Jitter(delay, 0.1)
}

// SetDefaults sets zero durations to their defaults.
func (o *Options) SetDefaults() {
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&o.RequestTimeout, 10 * time.Second},
		{&o.ProbeInterval, 10 * time.Second},
		{&o.ProbeTimeout, 5 * time.Second},
		{&o.SyncTimeout, 30 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.standard
		}
	}
}

// Endpoint is what to connect to.
type Endpoint struct {
	// Config without a bearer token; Token has it.
	Config *rest.Config
	Token  *Token
	// Namespace of the mailbox: nothing else is read or watched.
	Namespace string
	// Watched are the kinds that the cache holds. Report is the one of them, whole or
	// metadata only, whose root is used to check that watches deliver changes.
	Watched []client.Object
	Report  client.Object
}

// Connection is one connection to a mailbox. It has its own transport, so that a
// hanging predecessor does not affect it.
type Connection struct {
	endpoint       Endpoint
	options        Options
	closeTransport func()
	cache          *mailboxCache
	client         client.Client
	httpClient     *http.Client
	watching       rest.Interface
	watches        []*mailboxWatch
	report         cachedKind
	exceededLimits chan error
	watchErrors    chan error
}

// codecs decode the errors of lists and watches.
var codecs = serializer.NewCodecFactory(Scheme).WithoutConversion()

// New prepares a connection without sending a request.
func New(endpoint Endpoint, o Options) (*Connection, error) {
	o.SetDefaults()
	cfg := rest.CopyConfig(endpoint.Config)
	cfg.Timeout = o.RequestTimeout
	cfg.UserAgent = o.UserAgent
	cfg.QPS, cfg.Burst = 50, 100
	requireJSON(cfg)
	c := &Connection{
		endpoint: endpoint, options: o, cache: newMailboxCache(endpoint.Namespace),
		exceededLimits: make(chan error, 1), watchErrors: make(chan error, 1),
	}
	var err error
	if c.report, err = kindOf(endpoint.Report); err != nil {
		return nil, err
	}
	through, done, err := newTransport(cfg, o.RequestTimeout, transport.Mailbox, c.reportExceededLimit)
	if err != nil {
		return nil, err
	}
	c.closeTransport = done
	wrapped, err := rest.HTTPWrappersForConfig(cfg, &tokenTransport{token: endpoint.Token, next: through})
	if err != nil {
		return nil, err
	}
	c.httpClient = newHTTPClient(wrapped, o.RequestTimeout)
	live, err := client.New(cfg, client.Options{HTTPClient: c.httpClient, Scheme: Scheme, Mapper: Mapper})
	if err != nil {
		return nil, err
	}
	c.client = checkedClient{live}
	// A client's timeout also ends its watches. The transport bounds the wait for response
	// headers, and pings detect dead connections.
	unbounded := rest.CopyConfig(cfg)
	unbounded.Timeout = 0
	unbounded.APIPath, unbounded.GroupVersion, unbounded.NegotiatedSerializer = "/apis", &v1alpha1.GroupVersion, codecs
	c.watching, err = rest.RESTClientForConfigAndClient(unbounded, newHTTPClient(wrapped, 0))
	return c, err
}

// GetCache reads the latest observed state.
func (c *Connection) GetCache() client.Reader { return c.cache }

// GetClient reads and writes live, and each of its requests is bounded.
func (c *Connection) GetClient() client.Client { return c.client }

// GetHTTPClient sends bounded requests with the token.
func (c *Connection) GetHTTPClient() *http.Client { return c.httpClient }

// Close closes idle connections; requests in progress end by their context.
func (c *Connection) Close() { c.closeTransport() }

// reportExceededLimit ends the connection: the server would answer the next request in
// the same way.
func (c *Connection) reportExceededLimit(err *transport.LimitError) {
	select {
	case c.exceededLimits <- err:
	default:
	}
}

// limitOr returns the limit that was exceeded, if one was, and else err: decoders drop the
// cause of an error.
func (c *Connection) limitOr(err error) error {
	select {
	case limit := <-c.exceededLimits:
		return limit
	default:
		return err
	}
}

// Start returns when the watched kinds are listed and their watches accepted. They stay watched until ctx ends.
func (c *Connection) Start(ctx context.Context) error {
	for _, like := range c.endpoint.Watched {
		w, err := c.newWatch(like)
		if err != nil {
			return fmt.Errorf("watching %T: %w", like, err)
		}
		c.cache.addKind(w.kind)
		c.watches = append(c.watches, w)
	}
	for _, w := range c.watches {
		go w.run(ctx)
	}
	// Requests in progress keep their connection busy until their timeout.
	context.AfterFunc(ctx, func() { time.AfterFunc(c.options.RequestTimeout, c.Close) })
	return c.waitForSync(ctx)
}

// waitForSync waits until all kinds are watched, a list or watch fails, or SyncTimeout passes. Where
// several fail it returns the error of the first kind, whichever fails first: it goes into a condition.
func (c *Connection) waitForSync(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, c.options.SyncTimeout)
	defer cancel()
	for _, w := range c.watches {
		select {
		case err := <-c.exceededLimits:
			return err
		case err := <-w.started:
			if err != nil {
				return c.limitOr(err)
			}
		case <-bounded.Done():
			return fmt.Errorf("reading the mailbox in namespace %s: no answer within %s: %w",
				c.endpoint.Namespace, c.options.SyncTimeout, context.DeadlineExceeded)
		}
	}
	select {
	case err := <-c.watchErrors: // a kind that was started failed while others were listed
		return c.limitOr(err)
	default:
		return nil
	}
}

// OnMailboxEvent calls do for each object of the mailbox that is created, changed or
// deleted, and for those that already exist. do must not block or change the object.
// Call it after Start.
func (c *Connection) OnMailboxEvent(do func(Event)) { c.cache.onEvent(do) }
