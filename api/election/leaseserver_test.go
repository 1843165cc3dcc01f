package election

import (
	"context"
	"errors"
	"strconv"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// leaseServer is an API server with one Lease.
type leaseServer struct {
	mu       sync.Mutex
	lease    *coordinationv1.Lease
	version  int
	watchers []*watch.FakeWatcher
}

var leases = coordinationv1.Resource("leases")

func (s *leaseServer) store(lease *coordinationv1.Lease) *coordinationv1.Lease {
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.UID, s.lease.ResourceVersion = "lease", strconv.Itoa(s.version)
	for _, w := range s.watchers {
		w.Modify(s.lease.DeepCopy())
	}
	return s.lease.DeepCopy()
}

// leaseClient is the way of one process to a leaseServer.
type leaseClient struct {
	coordinationclient.LeaseInterface
	*leaseServer
	// cut: no request is answered. watchFails, or else watches are muted.
	cut, watchFails, watchEnds, muted bool
	gets                              int
}

var errCut = errors.New("cut off")

func (c *leaseClient) Leases(string) coordinationclient.LeaseInterface { return c }

func (c *leaseClient) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets++
	switch {
	case c.cut:
		return nil, errCut
	case c.lease == nil:
		return nil, apierrors.NewNotFound(leases, "lease")
	}
	return c.lease.DeepCopy(), nil
}

func (c *leaseClient) Create(_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cut:
		return nil, errCut
	case c.lease != nil:
		return nil, apierrors.NewAlreadyExists(leases, "lease")
	}
	return c.store(lease), nil
}

func (c *leaseClient) Update(_ context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cut:
		return nil, errCut
	case c.lease == nil || c.lease.ResourceVersion != lease.ResourceVersion:
		return nil, apierrors.NewConflict(leases, "lease", errors.New("somebody else was faster"))
	}
	return c.store(lease), nil
}

func (c *leaseClient) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut || c.watchFails {
		return nil, errCut
	}
	w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1000})
	switch {
	case c.watchEnds:
		w.Stop()
	case !c.muted:
		c.watchers = append(c.watchers, w)
	}
	return stoppedWatch{w, c.leaseServer}, nil
}

// stoppedWatch removes a watch from its server when it is stopped.
type stoppedWatch struct {
	*watch.FakeWatcher
	server *leaseServer
}

func (w stoppedWatch) Stop() {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	for i, other := range w.server.watchers {
		if other == w.FakeWatcher {
			w.server.watchers = append(w.server.watchers[:i:i], w.server.watchers[i+1:]...)
			break
		}
	}
	w.FakeWatcher.Stop()
}
