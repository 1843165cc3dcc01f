package report

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxWrittenReports and maxWrittenBytes bound what is held of ClusterReports between their write and
	// the reconcile that its event leads to. A busy hub writes some hundred within a second.
	maxWrittenReports = 1024
	maxWrittenBytes   = 16 << 20
	// maxAnswerWait bounds the wait for the answer to a write whose event has come.
	maxAnswerWait = time.Second
)

// writtenReports has the ClusterReports that this process has written, until they are read. An
// API server with older definitions may have stored fewer fields.
type writtenReports struct {
	mu sync.Mutex
	*byteCache[*v1alpha1.ClusterReport]
	// inFlight has a channel for each write that has not been answered. It is closed when it is.
	inFlight map[types.NamespacedName]chan struct{}
}

func newWrittenReports() *writtenReports {
	return &writtenReports{byteCache: newByteCache[*v1alpha1.ClusterReport](maxWrittenReports, maxWrittenBytes), inFlight: map[types.NamespacedName]chan struct{}{}}
}

// beginWrite records that a write is in flight until its end is called, with what was written; nil if
// the write failed.
func (w *writtenReports) beginWrite(key types.NamespacedName) (end func(written *v1alpha1.ClusterReport)) {
	answered := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight[key] = answered
	return func(written *v1alpha1.ClusterReport) {
		bytes := int(mailbox.DecodedBytes(written))
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.inFlight[key] == answered {
			delete(w.inFlight, key)
		}
		close(answered)
		if w.remove(key); written != nil {
			w.put(key, written, bytes)
		}
	}
}

// takeStored returns what was written if it is what is stored; nil if it is not. An event often comes
// before the answer to the write, which is waited for.
func (w *writtenReports) takeStored(ctx context.Context, stored *metav1.PartialObjectMetadata) *v1alpha1.ClusterReport {
	written, answered := w.takeAnswered(stored)
	if written != nil || answered == nil {
		return written
	}
	select {
	case <-answered:
	case <-time.After(maxAnswerWait):
	case <-ctx.Done():
	}
	written, _ = w.takeAnswered(stored)
	return written
}

// takeAnswered returns what was written if it is what is stored, or else the channel of a write in
// flight.
func (w *writtenReports) takeAnswered(stored *metav1.PartialObjectMetadata) (*v1alpha1.ClusterReport, <-chan struct{}) {
	key := client.ObjectKeyFromObject(stored)
	w.mu.Lock()
	defer w.mu.Unlock()
	written, found := w.get(key)
	if !found || written.UID != stored.UID || written.ResourceVersion != stored.ResourceVersion {
		return nil, w.inFlight[key] // what was written may be of a later event
	}
	w.remove(key)
	return written, nil
}

// RememberWrites returns a client whose writes of ClusterReports need not be read again by the
// Reconciler of the elected replica. Its objects must not be changed after they were written.
func (r *Reconciler) RememberWrites(live client.Client) client.Client {
	return rememberingClient{live, r}
}

type rememberingClient struct {
	client.Client
	reports *Reconciler
}

// Create implements client.Writer.
func (c rememberingClient) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return c.remember(o, func() error { return c.Client.Create(ctx, o, options...) })
}

// Update implements client.Writer.
func (c rememberingClient) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	return c.remember(o, func() error { return c.Client.Update(ctx, o, options...) })
}

func (c rememberingClient) remember(o client.Object, write func() error) error {
	report, isReport := o.(*v1alpha1.ClusterReport)
	if !isReport || !c.reports.isReading() {
		return write()
	}
	end := c.reports.written.beginWrite(client.ObjectKeyFromObject(report))
	err := write()
	if err != nil {
		end(nil)
		return err
	}
	report.ManagedFields = nil
	end(report)
	return nil
}

// isReading reports whether this replica is elected and has read what was stored before.
func (r *Reconciler) isReading() bool {
	select {
	case <-r.filled: // nil without Setup
		return true
	default:
		return false
	}
}
