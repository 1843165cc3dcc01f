package shard

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/hub/heartbeat"
)

// peerWorld has two replicas and what the first one knows of the second.
type peerWorld struct {
	server client.WithWatch
	// second is cut off once secondCut is set: it has died.
	secondCut atomic.Bool
	// renewed is when the second one has last stored its Lease.
	renewed time.Time
	reads   int

	peers *Peers
}

// startPeers starts two replicas, and the Peers of the first with these watches; nil for real ones.
func startPeers(ctx context.Context, watches func(context.Context) (watch.Interface, error)) *peerWorld {
	w := &peerWorld{server: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()}
	second := interceptor.NewClient(w.server, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if w.secondCut.Load() {
				return errCut
			}
			w.renewed = time.Now()
			return c.Update(ctx, o, opts...)
		},
	})
	first := interceptor.NewClient(w.server, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			w.reads++
			return c.List(ctx, list, opts...)
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			w.reads++
			if watches != nil {
				return watches(ctx)
			}
			return c.Watch(ctx, list, opts...)
		},
	})
	self := NewReplica(first, options)
	w.peers = NewPeers(first, self, heartbeat.NewReceived(), make(chan struct{}))
	other := options
	other.Name = "two"
	for _, start := range []func(context.Context) error{self.Start, NewReplica(second, other).Start, w.peers.Start} {
		go func() { _ = start(ctx) }()
	}
	return w
}

// stateOfSecond is what the first replica knows of the second.
func (w *peerWorld) stateOfSecond() PeerState {
	all, _ := w.peers.List()
	for _, peer := range all {
		if peer.Name == "two" {
			return peer.State
		}
	}
	return PeerUnknown
}

// A replica that dies is dead one lease duration after its last renewal, and not a poll later. So it
// is with a watch that delivers nothing, or ends at once, as soon as a list shows it.
func TestPeerDiesWithItsLease(t *testing.T) {
	for name, tt := range map[string]struct {
		watches func(context.Context) (watch.Interface, error)
		// wantLate bounds how long after the end of its Lease the replica is known to be dead.
		wantLate time.Duration
	}{
		"watched": {wantLate: 0},
		"muted": {wantLate: 2 * options.RetryPeriod, watches: func(context.Context) (watch.Interface, error) {
			return watch.NewFake(), nil
		}},
		"ending at once": {wantLate: 2 * options.RetryPeriod, watches: func(context.Context) (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(0, false)
			w.Stop()
			return w, nil
		}},
		"refused": {wantLate: 2 * options.RetryPeriod, watches: func(context.Context) (watch.Interface, error) { return nil, errCut }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w := startPeers(ctx, tt.watches)
				const healthy = 5 * time.Minute
				for end := time.Now().Add(healthy); time.Now().Before(end); <-time.After(time.Second) {
					synctest.Wait()
					if time.Until(end) < healthy-3*options.RetryPeriod {
						assert.Equal(t, PeerAlive, w.stateOfSecond(), "%s before the end", time.Until(end))
					}
				}
				assert.LessOrEqual(t, w.reads, int(2*healthy/options.RetryPeriod)+2, "lists and watches")

				w.secondCut.Store(true)
				<-time.After(time.Until(w.renewed.Add(options.LeaseDuration)) - time.Millisecond)
				synctest.Wait()
				assert.Equal(t, PeerAlive, w.stateOfSecond(), "its Lease has not expired")
				<-time.After(tt.wantLate + 2*time.Millisecond)
				synctest.Wait()
				assert.Equal(t, PeerDead, w.stateOfSecond(), "its Lease has expired")
			})
		})
	}
}
