//go:build linux

package relay_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest/mailboxtest"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

const concurrencyTimeout = 3 * time.Minute

// newCachedReader starts a cache of one end of the mailbox, as hubs do.
func newCachedReader(ctx context.Context, t *testing.T, namespace string) client.Reader {
	t.Helper()
	c, err := cache.New(plane.Config(), cache.Options{Scheme: server.Scheme(), DefaultNamespaces: map[string]cache.Config{namespace: {}}})
	require.NoError(t, err)
	for _, object := range []client.Object{&v1alpha1.ClusterPlan{}, &v1alpha1.TransferGrant{}, &v1alpha1.ClusterReport{}} {
		_, err := c.GetInformer(ctx, object)
		require.NoError(t, err)
	}
	go func() { _ = c.Start(ctx) }()
	require.True(t, c.WaitForCacheSync(ctx))
	return c
}

// watchVersions fails the test when an object's version falls.
func watchVersions(ctx context.Context, b *mailboxtest.Mailbox, c client.WithWatch, namespace string, list client.ObjectList, version func(client.Object) int64) (seen func() int) {
	b.Helper()
	var count atomic.Int32
	newest := map[string]int64{}
	stop, err := controlplane.WatchObjects(ctx, c, list, func(change controlplane.Change[client.Object]) {
		if change.Type == watch.Deleted {
			return
		}
		if !change.Preexisting {
			count.Add(1)
		}
		name, v := change.Object.GetName(), version(change.Object)
		assert.GreaterOrEqual(b, v, newest[name], "version of %s %s/%s", change.Type, namespace, name)
		newest[name] = v
	}, client.InNamespace(namespace))
	require.NoError(b, err)
	b.Cleanup(stop)
	return func() int { return int(count.Load()) }
}

// TestTwoRelaysAtOnce runs the relays of two replicas for one member at full speed while
// plan and report change. They write nothing older over newer, and each write conflicts
// with the other relay at most once.
func TestTwoRelaysAtOnce(t *testing.T) {
	b := mailboxtest.New(t, server, server)
	ctx, cancel := context.WithTimeout(t.Context(), concurrencyTimeout)
	defer cancel()
	a := mailboxtest.NewReportWriter(b)
	a.WriteRoot()
	b.WritePlan(1, 1, "1", "1")
	var relays []mailbox.Relay
	for range 2 {
		r := b.NewRelay()
		r.Hub.Cached, r.Member.Cached = newCachedReader(ctx, t, b.HubNamespace), newCachedReader(ctx, t, b.AgentNamespace)
		relays = append(relays, r)
	}
	reports := watchVersions(ctx, b, b.Hub, b.HubNamespace, &v1alpha1.ClusterReportList{}, func(o client.Object) int64 { return o.(*v1alpha1.ClusterReport).Sequence })
	copies := watchVersions(ctx, b, b.Member, b.AgentNamespace, &v1alpha1.ClusterPlanList{}, func(o client.Object) int64 { return o.(*v1alpha1.ClusterPlan).Spec.Sequence })

	stop := make(chan struct{})
	var running sync.WaitGroup
	var carried, conflicts atomic.Int32
	for _, r := range relays {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				up, err := r.SyncUp(ctx, mailboxtest.Cluster)
				carried.Add(int32(up.Written))
				down, downErr := r.SyncDown(ctx)
				carried.Add(int32(len(down.Written)))
				assert.Nil(b, down.NewerPlan)
				assert.False(b, up.ReportOlder)
				for _, err := range []error{err, downErr} {
					if apierrors.IsConflict(err) {
						conflicts.Add(1)
					} else if !assert.NoError(b, err) {
						return
					}
				}
			}
		})
	}
	const changes = 60
	for n := range changes {
		a.WritePage(fmt.Sprintf("page-%03b", n%5), fmt.Sprint(n))
		a.WriteRoot()
		if n%10 == 9 {
			name := fmt.Sprintf("page-%03b", n%5)
			a.DropPage(name)
			a.WriteRoot()
			a.DeletePage(name)
		}
		b.WritePlan(1, int64(n+2), fmt.Sprint(n), fmt.Sprint(n))
	}
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, b.ListReports(b.Member, b.AgentNamespace), b.ListReports(b.Hub, b.HubNamespace))
		assert.EqualValues(c, changes+1, b.GetPlanCopy().Spec.Sequence)
	}, concurrencyTimeout, 20*time.Millisecond)
	close(stop)
	running.Wait()
	t.Logf("%d changes of plan and report: %d objects carried, %d conflicts, the hub saw %d writes of reports, the member %d of plans",
		changes, carried.Load(), conflicts.Load(), reports(), copies())
	assert.LessOrEqual(t, conflicts.Load(), carried.Load(), "each conflict is somebody else's write")
	assert.Greater(t, reports(), changes/10, "writes that the witness saw")
	assert.Greater(t, copies(), changes/10, "writes that the witness saw")

	b.ResetCounts()
	for _, r := range relays {
		assert.Equal(t, mailbox.UpResult{}, b.MustUp(r))
		assert.Equal(t, mailbox.DownResult{}, b.MustDown(r))
	}
	b.RequireWrites(0, 0)
}
