package members

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// firstRetry is how soon a member is tried again; the wait doubles up to the
// interval of probes.
const firstRetry = time.Second

// errNotServed: the member answers, and knows none of the mailbox's kinds.
var errNotServed = errors.New("it does not serve the kinds of the mailbox")

// look keeps a member connected until ctx ends.
func (p *Provider) look(ctx context.Context, e *entry) {
	longest := p.options.ProbeInterval
	pause := min(firstRetry, longest)
	for ctx.Err() == nil {
		engaged, err := p.session(ctx, e)
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, errNotServed):
			p.settle(e, State{
				Known: true, Reachable: true, Reason: v1alpha1.ReasonConnected,
				Message: "connected, but its API server does not serve ClusterReports: is ot-agent's chart installed there, its mailbox included?",
			})
			pause = longest
		case errors.Is(err, errDeaf):
			// It is reachable, and connected again at once.
			log.FromContext(ctx).Info("Connecting to the member anew", "member", e.name, "reason", err.Error())
		case err != nil:
			reason, message := Classify(err)
			log.FromContext(ctx).V(1).Info("No connection to the member", "member", e.name, "reason", reason, "error", err.Error())
			p.settle(e, State{Known: true, Reason: reason, Message: message})
		}
		if engaged {
			pause = min(firstRetry, longest)
		}
		e.await(ctx, pause)
		pause = min(2*pause, longest)
	}
}

// session is one connection, from dialling until it is no longer good. It
// tells whether it was good at all.
func (p *Provider) session(ctx context.Context, e *entry) (engaged bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := dial(e, p.options)
	if err != nil {
		return false, err
	}
	defer l.close()
	if _, err := l.probe(ctx); err != nil {
		return false, err
	}

	// A source of a controller blocks the engaging of all clusters until its
	// informer has synced. So the informers are there, and have synced, before.
	var informers []cache.Informer
	for _, kind := range mailbox() {
		informer, err := l.cluster.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return false, fmt.Errorf("watching %T: %w", kind, err)
		}
		informers = append(informers, informer)
	}
	if err := p.addIndexes(ctx, l); err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- l.cluster.Start(ctx)
		// What was under way keeps its connection from being idle, and has ended then.
		time.AfterFunc(p.options.RequestTimeout, l.close)
	}()
	if err := l.sync(ctx, p.options.SyncTimeout); err != nil {
		return false, err
	}

	m := &Member{Cluster: l.cluster, Namespace: e.target.Namespace}
	p.engage(e, m)
	// What is deferred last runs first: it is unknown before its context ends.
	defer p.engage(e, nil)
	if err := p.aware.Engage(ctx, multicluster.ClusterName(e.name), m); err != nil {
		return false, fmt.Errorf("engaging it: %w", err)
	}
	for _, informer := range informers {
		if _, err := informer.AddEventHandler(p.mailOf(e.name)); err != nil {
			return false, fmt.Errorf("listening to what is watched in it: %w", err)
		}
	}
	p.settle(e, connected())
	p.changed(e.name)

	var heard hearing
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case err := <-ended:
			return true, errors.Join(errors.New("its cache has ended"), err)
		case err := <-l.refused:
			return true, err
		case <-e.nudge:
		case <-time.After(wait.Jitter(p.options.ProbeInterval, 0.1)):
		}
		cached, err := l.cached(ctx)
		if err != nil {
			return true, err
		}
		live, err := l.probe(ctx)
		if err != nil {
			// One answer that is lost is no outage.
			e.await(ctx, min(firstRetry, p.options.ProbeInterval))
			if live, err = l.probe(ctx); err != nil {
				return true, err
			}
		}
		if heard.deaf(cached, live, time.Now()) {
			return true, errDeaf
		}
	}
}

// mailOf tells the hooks of what happens in a member's mailbox.
func (p *Provider) mailOf(name string) toolscache.ResourceEventHandler {
	p.mu.Lock()
	hooks := slices.Clone(p.mail)
	p.mu.Unlock()
	tell := func(what any) {
		if gone, is := what.(toolscache.DeletedFinalStateUnknown); is {
			what = gone.Obj
		}
		if o, is := what.(client.Object); is {
			for _, hook := range hooks {
				hook(name, o)
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, now any) { tell(now) }, DeleteFunc: tell,
	}
}

func (p *Provider) addIndexes(ctx context.Context, l *link) error {
	p.mu.Lock()
	all := p.indexes[:len(p.indexes):len(p.indexes)]
	p.mu.Unlock()
	for _, i := range all {
		if err := l.cluster.GetFieldIndexer().IndexField(ctx, i.object, i.field, i.extract); err != nil {
			return fmt.Errorf("indexing field %s of %T: %w", i.field, i.object, err)
		}
	}
	return nil
}

// sync waits until the mailbox has been read.
func (l *link) sync(ctx context.Context, timeout time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	synced := make(chan bool, 1)
	go func() { synced <- l.cluster.GetCache().WaitForCacheSync(bounded) }()
	select {
	case err := <-l.refused:
		return err
	case ok := <-synced:
		if !ok {
			return fmt.Errorf("reading ClusterPlans, TransferGrants and ClusterReports in namespace %s: no answer within %s: %w",
				l.namespace, timeout, context.DeadlineExceeded)
		}
	}
	return nil
}

// watchFailed ends the connection where a credential may read an object and not
// list or watch it: the reflector would try for ever, and the probe see nothing.
func (l *link) watchFailed(err error) {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		select {
		case l.refused <- err:
		default:
		}
	}
}

// await waits for a while, or until somebody knows something new.
func (e *entry) await(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-e.nudge:
	case <-time.After(wait.Jitter(d, 0.1)):
	}
}
