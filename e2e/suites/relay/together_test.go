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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

const concurrencyTimeout = 3 * time.Minute

// newCachedReader starts a cache of one end of the mailbox, as hubs do.
func newCachedReader(ctx context.Context, t *testing.T, cfg *rest.Config, namespace string) client.Reader {
	t.Helper()
	c, err := cache.New(cfg, cache.Options{Scheme: relayScheme, DefaultNamespaces: map[string]cache.Config{namespace: {}}})
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
func (b *mailboxEnd) watchVersions(ctx context.Context, c client.WithWatch, namespace string, list client.ObjectList, version func(client.Object) int64) (seen func() int) {
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
	b := newMailbox(t)
	ctx, cancel := context.WithTimeout(t.Context(), concurrencyTimeout)
	defer cancel()
	a := newReportWriter(b)
	a.writeRoot()
	b.writePlan(1, 1, "1", "1")
	var relays []mailbox.Relay
	for range 2 {
		r := b.newRelay()
		r.Hub.Cached, r.Member.Cached = newCachedReader(ctx, t, hubConfig, b.hubNamespace), newCachedReader(ctx, t, memberConfig, b.agentNamespace)
		relays = append(relays, r)
	}
	reports := b.watchVersions(ctx, hubClient, b.hubNamespace, &v1alpha1.ClusterReportList{}, func(o client.Object) int64 { return o.(*v1alpha1.ClusterReport).Sequence })
	copies := b.watchVersions(ctx, memberClient, b.agentNamespace, &v1alpha1.ClusterPlanList{}, func(o client.Object) int64 { return o.(*v1alpha1.ClusterPlan).Spec.Sequence })

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
				up, err := r.SyncUp(ctx, cluster)
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
		a.writePage(fmt.Sprintf("page-%03b", n%5), fmt.Sprint(n))
		a.writeRoot()
		if n%10 == 9 {
			name := fmt.Sprintf("page-%03b", n%5)
			a.dropPage(name)
			a.writeRoot()
			a.deletePage(name)
		}
		b.writePlan(1, int64(n+2), fmt.Sprint(n), fmt.Sprint(n))
	}
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, b.listReports(memberClient, b.agentNamespace), b.listReports(hubClient, b.hubNamespace))
		assert.EqualValues(c, changes+1, b.getPlanCopy().Spec.Sequence)
	}, concurrencyTimeout, 20*time.Millisecond)
	close(stop)
	running.Wait()
	t.Logf("%d changes of plan and report: %d objects carried, %d conflicts, the hub saw %d writes of reports, the member %d of plans",
		changes, carried.Load(), conflicts.Load(), reports(), copies())
	assert.LessOrEqual(t, conflicts.Load(), carried.Load(), "each conflict is somebody else's write")
	assert.Greater(t, reports(), changes/10, "writes that the witness saw")
	assert.Greater(t, copies(), changes/10, "writes that the witness saw")

	b.resetCounts()
	for _, r := range relays {
		assert.Equal(t, mailbox.UpResult{}, b.mustUp(r))
		assert.Equal(t, mailbox.DownResult{}, b.mustDown(r))
	}
	b.requireWrites(0, 0)
}
