//go:build linux

// Package shard_test runs three replicas of a hub over light members, and takes the
// replicas away from the hub, from members, and altogether.
package shard_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/light"
	"github.com/pelotech/ot-fleet/e2e/link"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

const (
	members = 7
	// leases are short, but not so short that a busy machine loses them.
	leaseDuration = 15 * time.Second
)

var names = []string{"one", "two", "three"}

// replica of the hub, with ways of its own to the hub's API server and to members.
type replica struct {
	name  string
	hub   *hub.Hub
	toHub *link.Link
	road  *road
}

type fleet struct {
	client.WithWatch
	plane    *controlplane.ControlPlane
	light    *light.Members
	replicas map[string]*replica
	judge    *judge
}

// shared is the fleet that the tests of this package have in common. A test leaves it
// with all replicas alive.
var shared *fleet

func TestMain(m *testing.M) {
	scene.Shared(m, func(ctx context.Context) (func() error, error) {
		var err error
		shared, err = startFleet(ctx)
		return shared.stop, err
	})
}

func startFleet(ctx context.Context) (f *fleet, err error) {
	f = &fleet{replicas: map[string]*replica{}}
	planes, err := controlplane.StartAll(ctx, controlplane.Options{Name: "hub"})
	if err != nil {
		return f, err
	}
	f.plane = planes[0]
	if f.WithWatch, err = client.NewWithWatch(f.plane.Config(), client.Options{Scheme: scene.NewScheme()}); err != nil {
		return f, err
	}
	if err := hub.Install(ctx, f.plane, map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": "2"}}}); err != nil {
		return f, err
	}
	if f.light, err = light.Start(ctx, f.plane, "light", members); err != nil {
		return f, err
	}
	api, err := url.Parse(f.plane.Config().Host)
	if err != nil {
		return f, err
	}
	for _, name := range names {
		r := &replica{name: name}
		f.replicas[name] = r
		if r.toHub, err = link.Start(f.plane.Config()); err != nil {
			return f, err
		}
		if r.road, err = newRoad(api.Host); err != nil {
			return f, err
		}
		if err := f.start(ctx, r); err != nil {
			return f, err
		}
	}
	for _, m := range f.light.List {
		if err := f.join(ctx, m); err != nil {
			return f, err
		}
	}
	f.judge = newJudge(f)
	return f, nil
}

func (f *fleet) start(ctx context.Context, r *replica, args ...string) (err error) {
	r.hub, err = hub.Start(ctx, f.plane, hub.Options{
		Through: r.toHub.Through, LeaseDuration: leaseDuration, Log: filepath.Join(f.plane.Dir(), r.name+".log"),
		Args: append([]string{"--replica-name=" + r.name, "--probe-interval=1s", "--member-timeout=5s"}, args...), Env: r.road.env(),
	})
	return err
}

// revive starts replicas that have ended, as a kubelet does.
func (f *fleet) revive(t *testing.T) {
	t.Helper()
	for _, r := range f.replicas {
		if r.hub.Ended() != nil {
			require.NoError(t, f.start(t.Context(), r))
		}
	}
}

// restart has another process take the place of a replica's.
func (f *fleet) restart(t *testing.T, r *replica, args ...string) {
	t.Helper()
	r.hub.Kill()
	require.NoError(t, f.start(t.Context(), r, args...))
}

// block cuts replicas off from a member for as long as the test runs, at the most.
func (f *fleet) block(t *testing.T, member string, among ...string) {
	t.Helper()
	for _, name := range among {
		r := f.replicas[name]
		r.road.block(member, true)
		t.Cleanup(func() { r.road.block(member, false) })
	}
}

// move has a member assigned to a replica.
func (f *fleet) move(t *testing.T, member, to string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		link := &v1alpha1.MemberLink{}
		if err := f.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, link); err != nil {
			return err
		}
		link.Spec.Replica = to
		return f.Update(t.Context(), link)
	}))
}

func (f *fleet) join(ctx context.Context, m *light.Member) error {
	cfg, err := m.Config(ctx)
	if err != nil {
		return err
	}
	api, err := url.Parse(cfg.Host)
	if err != nil {
		return err
	}
	cfg.ServerName = api.Hostname()
	cfg.Host = "https://" + m.Name + ".test:443"
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: m.Name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	if err := f.Create(ctx, secret); err != nil {
		return err
	}
	return f.Create(ctx, &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: m.Name},
		Spec: v1alpha1.MemberClusterSpec{
			Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: m.Name}},
			AgentNamespace: m.Name,
		},
	})
}

func (f *fleet) stop() error {
	var errs []error
	if f.judge != nil {
		f.judge.stop()
	}
	for _, r := range f.replicas {
		if r.hub != nil {
			r.hub.Kill()
		}
		if r.toHub != nil {
			r.toHub.Close()
		}
		if r.road != nil {
			errs = append(errs, r.road.listener.Close())
		}
	}
	if f.light != nil {
		f.light.Stop()
	}
	if f.plane != nil {
		errs = append(errs, f.plane.Stop())
	}
	return errors.Join(errs...)
}

// links are the MemberLinks by member.
func (f *fleet) links(t *testing.T) map[string]v1alpha1.MemberLink {
	t.Helper()
	var list v1alpha1.MemberLinkList
	require.NoError(t, f.List(t.Context(), &list))
	links := map[string]v1alpha1.MemberLink{}
	for _, link := range list.Items {
		links[link.Namespace[len(v1alpha1.MemberNamespacePrefix):]] = link
	}
	return links
}

// settled waits until members are divided evenly among replicas, each of which
// carries for its own, and returns who has which.
func (f *fleet) settled(t *testing.T, among ...string) map[string]string {
	t.Helper()
	return f.settledWith(t, func() {}, among...)
}

// settledWith is settled, with something done before each look.
func (f *fleet) settledWith(t *testing.T, do func(), among ...string) map[string]string {
	t.Helper()
	var assigned map[string]string
	var state string
	require.True(t, scene.Await(t, func() bool {
		do()
		assigned = map[string]string{}
		counts := map[string]int{}
		state = ""
		for member, link := range f.links(t) {
			assigned[member] = link.Spec.Replica
			counts[link.Spec.Replica]++
			state += fmt.Sprintf("%s: %s, carried by %s (%v %s)\n", member, link.Spec.Replica, link.Status.Carrier, link.Status.Reachable, link.Status.Message)
			if link.Status.Carrier != link.Spec.Replica || !link.Status.Reachable || link.Status.ObservedGeneration != link.Generation {
				return false
			}
		}
		for _, name := range among {
			if counts[name] < members/len(among) || counts[name] > (members+len(among)-1)/len(among) {
				return false
			}
		}
		return len(assigned) == members
	}), "members are not divided among %v; logs are in %s:\n%s", among, f.plane.Dir(), &state)
	return assigned
}

// of are the members that a replica has.
func of(assigned map[string]string, replica string) (list []string) {
	for member, name := range assigned {
		if name == replica {
			list = append(list, member)
		}
	}
	return list
}

// elected is the replica that assigns members.
func (f *fleet) elected(t *testing.T) *replica {
	t.Helper()
	var found *replica
	require.True(t, scene.Await(t, func() bool {
		for _, r := range f.replicas {
			text, err := r.hub.Metrics(t.Context())
			if err == nil && strings.Contains(text, `leader_election_master_status{name="ot-hub"} 1`) {
				found = r
			}
		}
		return found != nil
	}), "no replica is elected")
	return found
}

// others than the elected replica.
func (f *fleet) others(t *testing.T) (list []*replica) {
	t.Helper()
	elected := f.elected(t)
	for _, name := range names {
		if r := f.replicas[name]; r != elected {
			list = append(list, r)
		}
	}
	return list
}

// carried has every member report something new, and waits until the hub has it.
func (f *fleet) carried(t *testing.T) {
	t.Helper()
	wanted := map[string]int64{}
	for _, m := range f.light.List {
		require.NoError(t, retry.OnError(retry.DefaultBackoff, func(error) bool { return true }, func() error { return m.SetImages(t.Context(), "page-0", nil) }))
		root := &v1alpha1.ClusterReport{}
		require.NoError(t, f.Get(t.Context(), client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}, root))
		wanted[m.Name] = root.Sequence
	}
	for member, sequence := range wanted {
		f.hasReport(t, member, sequence)
	}
}

func (f *fleet) hasReport(t *testing.T, member string, sequence int64) {
	t.Helper()
	root := &v1alpha1.ClusterReport{}
	require.True(t, scene.Await(t, func() bool {
		err := f.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, root)
		return err == nil && root.Sequence >= sequence
	}), "report %d of %s is not carried; logs are in %s", sequence, member, f.plane.Dir())
}

// plan changes the policy, and waits until all members work by it.
func (f *fleet) plan(t *testing.T, concurrency string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := f.Get(t.Context(), client.ObjectKey{Namespace: hub.PolicyNamespace, Name: hub.PolicyName}, cm); err != nil {
			return err
		}
		cm.Data["concurrency"] = concurrency
		return f.Update(t.Context(), cm)
	}))
	for _, m := range f.light.List {
		require.True(t, scene.Await(t, func() bool {
			plan := &v1alpha1.ClusterPlan{}
			err := f.Get(t.Context(), client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}, plan)
			return err == nil && plan.Spec.Policy["concurrency"] == concurrency
		}), "%s has no plan of concurrency %s; logs are in %s", m.Name, concurrency, f.plane.Dir())
	}
}

// judge watches what must never happen, from the beginning to the end.
type judge struct {
	fleet  *fleet
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	last   map[string]version
	faults map[string]bool
}

type version struct{ epoch, sequence int64 }

func newJudge(f *fleet) *judge {
	ctx, cancel := context.WithCancel(context.Background())
	j := &judge{fleet: f, cancel: cancel, last: map[string]version{}, faults: map[string]bool{}}
	j.done.Go(func() {
		for ticker := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
			j.look(ctx)
		}
	})
	return j
}

func (j *judge) stop() {
	j.cancel()
	j.done.Wait()
}

// look reads all copies. An API server that is away has nothing to say.
func (j *judge) look(ctx context.Context) {
	var reports v1alpha1.ClusterReportList
	var plans v1alpha1.ClusterPlanList
	var all v1alpha1.MemberClusterList
	for _, list := range []client.ObjectList{&reports, &plans, &all} {
		if j.fleet.List(ctx, list) != nil {
			return
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range reports.Items {
		j.rises("ClusterReport "+r.Namespace+"/"+r.Name, version{0, r.Sequence})
	}
	for _, p := range plans.Items {
		j.rises("ClusterPlan "+p.Namespace, version{p.Spec.Epoch, p.Spec.Sequence})
	}
	for _, m := range all.Items {
		if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentHealthy); c != nil && c.Status == metav1.ConditionFalse {
			j.faults[fmt.Sprintf("the agent of %s is not healthy: %s", m.Name, c.Message)] = true
		}
	}
}

func (j *judge) rises(what string, now version) {
	before := j.last[what]
	if now.epoch < before.epoch || now.epoch == before.epoch && now.sequence < before.sequence {
		j.faults[fmt.Sprintf("%s has gone back from %v to %v", what, before, now)] = true
	}
	j.last[what] = now
}

// clean wants that nothing has happened which must not, since it was asked last.
func (j *judge) clean(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	assert.Empty(t, j.faults)
	j.faults = map[string]bool{}
}
