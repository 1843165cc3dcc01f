//go:build linux

package restore_test

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// objectVersion is the version of a plan or a report, by its own fields.
type objectVersion struct {
	epoch, sequence int64
	hash            string
}

func versionOf(o client.Object) objectVersion {
	switch o := o.(type) {
	case *v1alpha1.ClusterPlan:
		return objectVersion{o.Spec.Epoch, o.Spec.Sequence, o.Spec.Hash}
	case *v1alpha1.ClusterReport:
		return objectVersion{sequence: o.Sequence}
	default:
		panic(fmt.Sprintf("%T has no version", o))
	}
}

// versionJudge records every stored state of the plans and reports of an API server.
type versionJudge struct {
	client client.WithWatch
	where  string

	mu     sync.Mutex
	last   map[string]string // resourceVersions
	states map[string][]objectVersion
}

// startJudge watches an API server until the test ends.
func startJudge(t *testing.T, where string, cfg *rest.Config) *versionJudge {
	t.Helper()
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: testenv.NewScheme()})
	require.NoError(t, err)
	j := &versionJudge{client: c, where: where, last: map[string]string{}, states: map[string][]objectVersion{}}
	for _, list := range []client.ObjectList{&v1alpha1.ClusterPlanList{}, &v1alpha1.ClusterReportList{}} {
		stop, err := controlplane.WatchObjects(context.Background(), c, list, func(change controlplane.Change[client.Object]) {
			if change.Type != watch.Deleted {
				j.record(change.Object)
			}
		})
		require.NoError(t, err)
		t.Cleanup(stop)
	}
	return j
}

func objectKey(o client.Object) string {
	kind := "plan"
	if _, ok := o.(*v1alpha1.ClusterReport); ok {
		kind = "report"
	}
	return fmt.Sprintf("%s %s/%s", kind, o.GetNamespace(), o.GetName())
}

func (j *versionJudge) record(o client.Object) {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := objectKey(o)
	j.last[key] = o.GetResourceVersion()
	j.states[key] = append(j.states[key], versionOf(o))
}

// requireOnlyRising requires that no state is followed by an older one, or by another one of the
// same version. It waits until the watches have seen all plans.
func (j *versionJudge) requireOnlyRising(t *testing.T) {
	t.Helper()
	// Reports change all the time; the plans have settled.
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var plans v1alpha1.ClusterPlanList
		require.NoError(t, j.client.List(t.Context(), &plans))
		j.mu.Lock()
		defer j.mu.Unlock()
		for i := range plans.Items {
			if j.last[objectKey(&plans.Items[i])] != plans.Items[i].ResourceVersion {
				return false
			}
		}
		return true
	}), "%s: the watch has not seen all plans", j.where)
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, states := range j.states {
		for i, now := range states[1:] {
			before := states[i]
			order := cmp.Or(cmp.Compare(now.epoch, before.epoch), cmp.Compare(now.sequence, before.sequence))
			assert.GreaterOrEqual(t, order, 0, "%s: %s went from %v to %v", j.where, key, before, now)
			if order == 0 {
				assert.Equal(t, before.hash, now.hash, "%s: %s became another one under version %v", j.where, key, now)
			}
		}
	}
}

// startJudges watches the hub and all members.
func (f *testFleet) startJudges(t *testing.T) (onlyRose func(*testing.T)) {
	t.Helper()
	all := []*versionJudge{startJudge(t, "hub", f.HubMember.ControlPlane.Config()), startJudge(t, realName, f.realMember.ControlPlane.Config()), startJudge(t, "fake", f.FakePlane.Config())}
	return func(t *testing.T) {
		t.Helper()
		for _, j := range all {
			j.requireOnlyRising(t)
		}
	}
}

// writeGate holds one write in flight.
type writeGate struct {
	proxy   *faults.Proxy
	mu      sync.Mutex
	write   faults.Write
	caught  chan struct{}
	release chan struct{}
	open    func()
}

// holdWrites holds the first update of each path.
func holdWrites(t *testing.T, p *faults.Proxy, paths ...string) []*writeGate {
	t.Helper()
	gates := make([]*writeGate, len(paths))
	for i := range gates {
		g := &writeGate{proxy: p, caught: make(chan struct{}), release: make(chan struct{})}
		g.open = sync.OnceFunc(func() { close(g.release) })
		t.Cleanup(g.open)
		gates[i] = g
	}
	p.SetBeforeHook(func(w faults.Write) error {
		for i, path := range paths {
			if w.Method == "PUT" && w.Path == path && gates[i].holdIfMatching(w) {
				<-gates[i].release
			}
		}
		return nil
	})
	t.Cleanup(func() { p.SetBeforeHook(nil) })
	return gates
}

// holdIfMatching reports whether the write is the first; it is held then.
func (g *writeGate) holdIfMatching(w faults.Write) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.write.N != 0 {
		return false
	}
	g.write = w
	close(g.caught)
	return true
}

func (g *writeGate) isHolding() bool {
	select {
	case <-g.caught:
		return true
	default:
		return false
	}
}

// awaitStatus releases the write and returns the HTTP status of its answer.
func (g *writeGate) awaitStatus(t *testing.T) int {
	t.Helper()
	g.open()
	return g.proxy.AwaitAnswer(t, g.write)
}

// mailboxPath is the API path of an object of a mailbox.
func mailboxPath(namespace, resource, name string) string {
	return fmt.Sprintf("/apis/%s/namespaces/%s/%s/%s", v1alpha1.GroupVersion, namespace, resource, name)
}
