// Package preflight probes HTTP sources for an image before a slot or any egress is
// spent on it.
package preflight

import (
	"context"
	"crypto/x509"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/preflight/fairqueue"
	"github.com/pelotech/ot-fleet/api/policy"
)

// probeTimeout bounds one probe. Meanwhile the image blocks those behind it in the queue.
const probeTimeout = 3 * time.Second

// probeLimits bound how many probes run at a time. Four namespaces full of sources that
// do not answer leave the others waiting for one probe to end.
var probeLimits = fairqueue.Limits{Total: 32, PerNamespace: 8, PerHost: 4}

// Source is what is probed: the URL of an image, before an attempt.
type Source struct {
	UID       types.UID
	Namespace string
	URL       string
	Attempt   int32
	// Headers and HeaderSecrets are the image's extraHeaders and secretExtraHeaders, one a
	// line: sources are compared.
	Headers, HeaderSecrets string
}

// Prober probes sources. It keeps one result per image, for one Source, until Forget.
// Its memory is bounded by the number of images: only probes that run have a goroutine.
type Prober struct {
	network  func(context.Context) network
	secret   func(context.Context, types.NamespacedName) (map[string][]byte, error)
	allow    func() policy.PreflightAllow
	resolver *net.Resolver
	roots    *x509.CertPool
	timeout  time.Duration

	mu     sync.Mutex
	queue  *fairqueue.Queue
	lastID uint64
	probes map[types.UID]*probe
	// started has the probes that wait or run, also of images that ask for another
	// source meanwhile.
	started map[uint64]*probe
	silent  silentServers
}

// probe is one request for a source, and its result when Known.
type probe struct {
	Source
	id     uint64
	result image.PreflightResult
	// ctx and onDone are of the reconcile that asked, and nil when the probe is finished: a
	// result is kept for as long as its image, and they hold a logger of 2 KiB.
	ctx    context.Context
	onDone func()
}

// New returns a Prober without results. allow returns the internal sources that are
// probed as well.
func New(cluster *ClusterReader, allow func() policy.PreflightAllow) *Prober {
	return &Prober{
		network: cluster.read, secret: cluster.readSecret, allow: allow, resolver: net.DefaultResolver, timeout: probeTimeout,
		queue: fairqueue.New(probeLimits), probes: map[types.UID]*probe{}, started: map[uint64]*probe{}, silent: silentServers{},
	}
}

// CachedResult returns the source's answer before an attempt; Known is false while there
// is none.
func (p *Prober) CachedResult(s Source) image.PreflightResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.probes[s.UID]; known != nil && known.Source == s {
		result := known.result
		result.Waiting = p.queue.IsWaiting(known.id)
		return result
	}
	return image.PreflightResult{Waiting: p.queue.WouldWait(s.Namespace, hostOf(s.URL))}
}

// ProbeAsync probes a source in the background, and calls onDone when the result is
// there. It does nothing where that probe waits, runs or has a result.
func (p *Prober) ProbeAsync(ctx context.Context, s Source, onDone func()) {
	p.mu.Lock()
	if known := p.probes[s.UID]; known != nil && known.Source == s {
		p.mu.Unlock()
		return
	}
	p.dropLocked(s.UID)
	p.lastID++
	asked := &probe{Source: s, id: p.lastID, ctx: ctx, onDone: onDone}
	p.probes[s.UID], p.started[asked.id] = asked, asked
	p.queue.Add(fairqueue.Request{ID: asked.id, Namespace: s.Namespace, Host: hostOf(s.URL)})
	answered := p.startNextLocked()
	p.mu.Unlock()
	notify(answered)
}

// Forget drops the result of an image, and its probe if that still waits.
func (p *Prober) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(uid)
}

func (p *Prober) dropLocked(uid types.UID) {
	if known := p.probes[uid]; known != nil && p.queue.IsWaiting(known.id) {
		p.queue.Remove(known.id)
		delete(p.started, known.id)
	}
	delete(p.probes, uid)
}

// startNextLocked starts the probes whose turn it is. It returns onDone of those that need
// not be run: their server did not answer a moment ago.
func (p *Prober) startNextLocked() (answered []func()) {
	for r, ok := p.queue.Start(); ok; r, ok = p.queue.Start() {
		next := p.started[r.ID]
		if p.silent.contains(serverOf(next.Source), time.Now()) {
			answered = append(answered, p.finishLocked(next, image.PreflightResult{Known: true}))
			continue
		}
		go p.run(next)
	}
	return answered
}

func (p *Prober) run(asked *probe) {
	ctx, cancel := context.WithTimeout(asked.ctx, p.timeout)
	network := p.network(ctx)
	headers, known := p.headersOf(ctx, asked.Source)
	cancel()
	request := &headRequest{
		judge: addressJudge{allow: p.allow(), clusterNetworks: network.internal}, proxy: network.proxy, resolver: p.resolver, roots: p.roots, timeout: p.timeout,
		headers: headers,
	}
	result, silent := image.PreflightResult{Known: true}, false
	if known {
		result, silent = request.send(asked.ctx, asked.URL)
	}
	p.mu.Lock()
	if silent {
		p.silent.record(serverOf(asked.Source), time.Now())
	} else {
		p.silent.forget(serverOf(asked.Source))
	}
	done := p.finishLocked(asked, result)
	answered := append(p.startNextLocked(), done)
	p.mu.Unlock()
	notify(answered)
}

// finishLocked returns what is called once the lock is released.
func (p *Prober) finishLocked(asked *probe, result image.PreflightResult) (onDone func()) {
	p.queue.Finish(asked.id)
	delete(p.started, asked.id)
	onDone, asked.ctx, asked.onDone, asked.result = asked.onDone, nil, nil, result
	return onDone
}

func notify(answered []func()) {
	for _, onDone := range answered {
		onDone()
	}
}

// hostOf returns the host that the limit per host counts a URL for.
func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}

// serverOf returns the server of a source, as its namespace sees it.
func serverOf(s Source) server {
	u, err := url.Parse(s.URL)
	if err != nil {
		return server{namespace: s.Namespace}
	}
	return server{s.Namespace, u.Scheme, strings.ToLower(u.Host)}
}
