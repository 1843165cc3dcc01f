package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// readerAccount is the ServiceAccount whose token reads the read API for callers whose
// kubeconfig has a client certificate: the read API takes tokens only. Chart ot-hub creates
// it, and cli.readers says who may have one.
const readerAccount = "ot-hub-cli"

// answerTimeout bounds how long the read API may be silent: a replica that has stopped answers nothing.
// Streams send their headers at once.
const answerTimeout = 30 * time.Second

// ErrNoReadAPI wraps every reason why the read API cannot be asked. Verbs that can do with
// the hub's kinds go on, and say so.
var ErrNoReadAPI = errors.New("the read API cannot be asked")

// ReadAPI asks the hub's read API. Close ends a port-forward.
type ReadAPI struct {
	*readapi.Client
	URL   string
	Close func()
}

func newReadAPI(address string, transport http.RoundTripper, end func()) (*ReadAPI, error) {
	client, err := readapi.NewClient(address, &http.Client{Transport: transport})
	if err != nil {
		end()
		return nil, err
	}
	return &ReadAPI{Client: client, URL: address, Close: end}, nil
}

// OpenReadAPI finds the elected replica and connects to it. Its certificate must be that of
// its Lease: the caller's credential goes there. The service proxy of the API server is not
// used, since it strips credentials (kubernetes/kubernetes#38775).
func (f *Flags) OpenReadAPI(ctx context.Context, hub *Cluster) (*ReadAPI, error) {
	api, err := f.openReadAPI(ctx, hub)
	switch {
	case err == nil:
		return api, nil
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return nil, fmt.Errorf("%w: it is not open to you: %w", ErrNoReadAPI, err)
	default:
		return nil, fmt.Errorf("%w: %w", ErrNoReadAPI, err)
	}
}

func (f *Flags) openReadAPI(ctx context.Context, hub *Cluster) (*ReadAPI, error) {
	if hub.Config.Impersonate.UserName != "" {
		return nil, errors.New("it knows no --as: leave it out, or read what the kinds tell")
	}
	credential, err := readerCredential(ctx, hub, f.HubNamespace)
	if err != nil {
		return nil, err
	}
	if f.ReadAPI != "" {
		return openURL(f.ReadAPI, credential, answerTimeout)
	}
	leader := readapi.LeaderLocator{Live: hub.Client, Namespace: f.HubNamespace}
	to, err := leader.Locate(ctx)
	if errors.Is(err, readapi.ErrNoReplica) {
		return nil, fmt.Errorf("context %s, namespace %s: %w: name the hub's context with --hub, its namespace with --hub-namespace", orCurrent(hub.Context), f.HubNamespace, err)
	}
	if err != nil {
		return nil, hub.Explain(err)
	}
	target, err := url.Parse(to.URL)
	if err != nil || target.Scheme != "https" || to.Fingerprint == "" {
		return nil, fmt.Errorf("the elected replica serves at %s without a known certificate: no credential is sent there", to.URL)
	}
	address, end := target.Host, func() {}
	if !onSameMachine(target, hub.Config.Host) {
		if address, end, err = forwardPort(ctx, hub.Config, f.HubNamespace, to.Replica, target.Port()); err != nil {
			return nil, err
		}
	}
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSClientConfig:       readapi.PinCertificate(to.Fingerprint),
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: answerTimeout,
		ForceAttemptHTTP2:     true,
	}
	wrapped, err := rest.HTTPWrappersForConfig(credential, transport)
	if err != nil {
		end()
		return nil, fmt.Errorf("using the credential of context %s: %w", hub.Context, err)
	}
	return newReadAPI("https://"+address, wrapped, end)
}

// onSameMachine reports whether both API server and replica run on this machine, as those of
// make up do, where no kubelet forwards ports. An API server elsewhere cannot make the
// command send a credential to a local port.
func onSameMachine(replica *url.URL, apiServer string) bool {
	server, err := url.Parse(apiServer)
	return err == nil && readapi.IsLoopback(replica.Hostname()) && readapi.IsLoopback(server.Hostname())
}

func openURL(address string, credential *rest.Config, timeout time.Duration) (*ReadAPI, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = timeout
	wrapped, err := rest.HTTPWrappersForConfig(credential, transport)
	if err != nil {
		return nil, err
	}
	api, err := newReadAPI(address, wrapped, func() {})
	if err != nil {
		return nil, fmt.Errorf("--read-api: %w", err)
	}
	return api, nil
}

// readerCredential returns what identifies the caller to the read API: the kubeconfig's
// token, else a token of readerAccount, which is kept in memory only.
func readerCredential(ctx context.Context, hub *Cluster, namespace string) (*rest.Config, error) {
	c := hub.Config
	if c.BearerToken != "" || c.BearerTokenFile != "" || c.AuthProvider != nil || (c.ExecProvider != nil && c.CertData == nil) {
		return &rest.Config{Host: c.Host, BearerToken: c.BearerToken, BearerTokenFile: c.BearerTokenFile, AuthProvider: c.AuthProvider, ExecProvider: c.ExecProvider, UserAgent: c.UserAgent}, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](600)}}
	account := &corev1.ServiceAccount{}
	account.Namespace, account.Name = namespace, readerAccount
	if err := hub.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, fmt.Errorf("your kubeconfig has no token, and one of ServiceAccount %s/%s cannot be had (chart ot-hub, value cli.readers): %w", namespace, readerAccount, err)
	}
	return &rest.Config{Host: c.Host, BearerToken: request.Status.Token, UserAgent: c.UserAgent}, nil
}

// forwardPort forwards a local port to a Pod, by websocket where the API server can.
func forwardPort(ctx context.Context, config *rest.Config, namespace, pod, port string) (address string, end func(), err error) {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", nil, err
	}
	target := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	dialer, err := newDialer(config, target)
	if err != nil {
		return "", nil, err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:" + port}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return "", nil, fmt.Errorf("forwarding a port to Pod %s/%s: %w", namespace, pod, err)
	case <-ctx.Done():
		close(stop)
		return "", nil, ctx.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(stop)
		return "", nil, err
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), func() { close(stop) }, nil
}

func newDialer(config *rest.Config, target *url.URL) (httpstream.Dialer, error) {
	roundTripper, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	overSPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: roundTripper}, http.MethodPost, target)
	overWebsocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(target, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(overWebsocket, overSPDY, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}
