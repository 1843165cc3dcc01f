package report

import (
	"context"

	lru "github.com/hashicorp/golang-lru/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxWrittenReports bounds what is held of ClusterReports between their write and the reconcile
// that its event leads to. Each is at most MaxReportObjectBytes large.
const maxWrittenReports = 64

// writtenReports has the ClusterReports that this process has written, until they are read. An
// API server with older definitions may have stored fewer fields.
type writtenReports struct {
	lru *lru.Cache[types.NamespacedName, *v1alpha1.ClusterReport]
}

func newWrittenReports() writtenReports {
	cache, err := lru.New[types.NamespacedName, *v1alpha1.ClusterReport](maxWrittenReports)
	if err != nil {
		panic(err) // the size is not positive
	}
	return writtenReports{cache}
}

// takeStored returns what was written if it is what is stored; nil if it is not.
func (w writtenReports) takeStored(stored *metav1.PartialObjectMetadata) *v1alpha1.ClusterReport {
	key := client.ObjectKeyFromObject(stored)
	written, _ := w.lru.Get(key)
	if written == nil || written.UID != stored.UID || written.ResourceVersion != stored.ResourceVersion {
		return nil // it may be of a later event
	}
	w.lru.Remove(key)
	return written
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
	err := c.Client.Create(ctx, o, options...)
	c.remember(o, err)
	return err
}

// Update implements client.Writer.
func (c rememberingClient) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	err := c.Client.Update(ctx, o, options...)
	c.remember(o, err)
	return err
}

func (c rememberingClient) remember(o client.Object, err error) {
	report, isReport := o.(*v1alpha1.ClusterReport)
	if err != nil || !isReport || !c.reports.isReading() {
		return
	}
	report.ManagedFields = nil
	c.reports.written.lru.Add(client.ObjectKeyFromObject(report), report)
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
