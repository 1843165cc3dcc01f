//go:build linux

// Package shard_test runs three replicas of a hub over fake members, and cuts replicas off
// from the hub's API server, from members, and from both. Only it shows that members move
// between replicas and that two replicas that sync one member do no harm.
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
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	fakeCount = 7
	// leases are short, but not so short that a busy machine loses them.
	leaseDuration = 15 * time.Second
)

var replicaNames = []string{"one", "two", "three"}

// replica of the hub, with ways of its own to the hub's API server and to members.
type replica struct {
	name        string
	Hub         *program.Hub
	hubLink     *faults.Link
	memberLinks *memberProxy
}

type testFleet struct {
	client.WithWatch
	Plane    *controlplane.ControlPlane
	Fakes    *fakemember.Members
	replicas map[string]*replica
	judge    *versionJudge
}

// shared is the fleet that the tests of this package have in common. A test leaves it
// with all replicas alive.
var shared *testFleet

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		var err error
		shared, err = startFleet(ctx)
		return shared.stopAll, err
	})
}

func startFleet(ctx context.Context) (f *testFleet, err error) {
	f = &testFleet{replicas: map[string]*replica{}}
	planes, err := controlplane.StartAll(ctx, controlplane.Options{Name: "hub"})
	if err != nil {
		return f, err
	}
	f.Plane = planes[0]
	if f.WithWatch, err = client.NewWithWatch(f.Plane.Config(), client.Options{Scheme: testenv.NewScheme()}); err != nil {
		return f, err
	}
	if err := program.InstallHub(ctx, f.Plane, map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": "2"}}}); err != nil {
		return f, err
	}
	if f.Fakes, err = fakemember.Start(ctx, f.Plane, "light", fakeCount); err != nil {
		return f, err
	}
	api, err := url.Parse(f.Plane.Config().Host)
	if err != nil {
		return f, err
	}
	for _, name := range replicaNames {
		r := &replica{name: name}
		f.replicas[name] = r
		if r.hubLink, err = faults.StartLink(f.Plane.Config()); err != nil {
			return f, err
		}
		if r.memberLinks, err = newMemberProxy(api.Host); err != nil {
			return f, err
		}
		if err := f.startReplica(ctx, r); err != nil {
			return f, err
		}
	}
	for _, m := range f.Fakes.List {
		if err := f.joinFake(ctx, m); err != nil {
			return f, err
		}
	}
	f.judge = newJudge(f)
	return f, nil
}

func (f *testFleet) startReplica(ctx context.Context, r *replica, args ...string) (err error) {
	r.Hub, err = program.StartHub(ctx, f.Plane, program.Options{
		ConfigureClient: r.hubLink.Redirect, LeaseDuration: leaseDuration, Log: filepath.Join(f.Plane.Dir(), r.name+".log"),
		Args: append([]string{"--replica-name=" + r.name, "--probe-interval=1s", "--member-timeout=5s"}, args...), Env: r.memberLinks.proxyEnv(),
	})
	return err
}

// restartEnded starts replicas that have ended, as a kubelet does.
func (f *testFleet) restartEnded(t *testing.T) {
	t.Helper()
	for _, r := range f.replicas {
		if r.Hub.ExitError() != nil {
			require.NoError(t, f.startReplica(t.Context(), r))
		}
	}
}

// replaceReplica has another process take the place of a replica's.
func (f *testFleet) replaceReplica(t *testing.T, r *replica, args ...string) {
	t.Helper()
	r.Hub.Kill()
	require.NoError(t, f.startReplica(t.Context(), r, args...))
}

// blockMember cuts replicas off from a member for as long as the test runs, at the most.
func (f *testFleet) blockMember(t *testing.T, member string, among ...string) {
	t.Helper()
	for _, name := range among {
		r := f.replicas[name]
		r.memberLinks.setBlocked(member, true)
		t.Cleanup(func() { r.memberLinks.setBlocked(member, false) })
	}
}

// assignMember has a member assigned to a replica.
func (f *testFleet) assignMember(t *testing.T, member, to string) {
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

func (f *testFleet) joinFake(ctx context.Context, m *fakemember.Member) error {
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
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: m.Name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
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

func (f *testFleet) stopAll() error {
	var errs []error
	if f.judge != nil {
		f.judge.stopWatching()
	}
	for _, r := range f.replicas {
		if r.Hub != nil {
			r.Hub.Kill()
		}
		if r.hubLink != nil {
			r.hubLink.Close()
		}
		if r.memberLinks != nil {
			errs = append(errs, r.memberLinks.listener.Close())
		}
	}
	if f.Fakes != nil {
		f.Fakes.Stop()
	}
	if f.Plane != nil {
		errs = append(errs, f.Plane.Stop())
	}
	return errors.Join(errs...)
}

// getMemberLinks are the MemberLinks by member.
func (f *testFleet) getMemberLinks(t *testing.T) map[string]v1alpha1.MemberLink {
	t.Helper()
	var list v1alpha1.MemberLinkList
	require.NoError(t, f.List(t.Context(), &list))
	links := map[string]v1alpha1.MemberLink{}
	for _, link := range list.Items {
		links[link.Namespace[len(v1alpha1.MemberNamespacePrefix):]] = link
	}
	return links
}

// awaitBalanced waits until members are divided evenly among replicas, each of which
// carries for its own, and returns who has which.
func (f *testFleet) awaitBalanced(t *testing.T, among ...string) map[string]string {
	t.Helper()
	return f.awaitBalancedDoing(t, func() {}, among...)
}

// awaitBalancedDoing is settled, with something done before each look.
func (f *testFleet) awaitBalancedDoing(t *testing.T, do func(), among ...string) map[string]string {
	t.Helper()
	var assigned map[string]string
	var state string
	require.True(t, testenv.Await(t, func() bool {
		do()
		assigned = map[string]string{}
		counts := map[string]int{}
		state = ""
		for member, link := range f.getMemberLinks(t) {
			assigned[member] = link.Spec.Replica
			counts[link.Spec.Replica]++
			state += fmt.Sprintf("%s: %s, carried by %s (%v %s)\n", member, link.Spec.Replica, link.Status.Carrier, link.Status.Reachable, link.Status.Message)
			if link.Status.Carrier != link.Spec.Replica || !link.Status.Reachable || link.Status.ObservedGeneration != link.Generation {
				return false
			}
		}
		for _, name := range among {
			if counts[name] < fakeCount/len(among) || counts[name] > (fakeCount+len(among)-1)/len(among) {
				return false
			}
		}
		return len(assigned) == fakeCount
	}), "members are not divided among %v; logs are in %s:\n%s", among, f.Plane.Dir(), &state)
	return assigned
}

// membersOf are the members that a replica has.
func membersOf(assigned map[string]string, replica string) (list []string) {
	for member, name := range assigned {
		if name == replica {
			list = append(list, member)
		}
	}
	return list
}

// electedReplica is the replica that assigns members.
func (f *testFleet) electedReplica(t *testing.T) *replica {
	t.Helper()
	var found *replica
	require.True(t, testenv.Await(t, func() bool {
		for _, r := range f.replicas {
			text, err := r.Hub.ReadMetrics(t.Context())
			if err == nil && strings.Contains(text, `leader_election_master_status{name="ot-hub"} 1`) {
				found = r
			}
		}
		return found != nil
	}), "no replica is elected")
	return found
}

// otherReplicas than the elected replica.
func (f *testFleet) otherReplicas(t *testing.T) (list []*replica) {
	t.Helper()
	elected := f.electedReplica(t)
	for _, name := range replicaNames {
		if r := f.replicas[name]; r != elected {
			list = append(list, r)
		}
	}
	return list
}

// awaitNewReports has every member report something new, and waits until the hub has it.
func (f *testFleet) awaitNewReports(t *testing.T) {
	t.Helper()
	wanted := map[string]int64{}
	for _, m := range f.Fakes.List {
		require.NoError(t, retry.OnError(retry.DefaultBackoff, func(error) bool { return true }, func() error { return m.SetImages(t.Context(), "page-0", nil) }))
		root := &v1alpha1.ClusterReport{}
		require.NoError(t, f.Get(t.Context(), client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}, root))
		wanted[m.Name] = root.Sequence
	}
	for member, sequence := range wanted {
		f.awaitReport(t, member, sequence)
	}
}

func (f *testFleet) awaitReport(t *testing.T, member string, sequence int64) {
	t.Helper()
	root := &v1alpha1.ClusterReport{}
	require.True(t, testenv.Await(t, func() bool {
		err := f.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}, root)
		return err == nil && root.Sequence >= sequence
	}), "report %d of %s is not carried; logs are in %s", sequence, member, f.Plane.Dir())
}

// changePolicy changes the policy, and waits until all members work by it.
func (f *testFleet) changePolicy(t *testing.T, concurrency string) {
	t.Helper()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := f.Get(t.Context(), client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
			return err
		}
		cm.Data["concurrency"] = concurrency
		return f.Update(t.Context(), cm)
	}))
	for _, m := range f.Fakes.List {
		require.True(t, testenv.Await(t, func() bool {
			plan := &v1alpha1.ClusterPlan{}
			err := f.Get(t.Context(), client.ObjectKey{Namespace: m.Name, Name: v1alpha1.MailboxName}, plan)
			return err == nil && plan.Spec.Policy["concurrency"] == concurrency
		}), "%s has no plan of concurrency %s; logs are in %s", m.Name, concurrency, f.Plane.Dir())
	}
}

// versionJudge watches what must never happen, from the beginning to the end.
type versionJudge struct {
	fleet  *testFleet
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	last   map[string]planVersion
	faults map[string]bool
}

type planVersion struct{ epoch, sequence int64 }

func newJudge(f *testFleet) *versionJudge {
	ctx, cancel := context.WithCancel(context.Background())
	j := &versionJudge{fleet: f, cancel: cancel, last: map[string]planVersion{}, faults: map[string]bool{}}
	j.done.Go(func() {
		for ticker := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
			j.checkVersions(ctx)
		}
	})
	return j
}

func (j *versionJudge) stopWatching() {
	j.cancel()
	j.done.Wait()
}

// checkVersions reads all copies. An API server that is away has nothing to say.
func (j *versionJudge) checkVersions(ctx context.Context) {
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
		j.requireRising("ClusterReport "+r.Namespace+"/"+r.Name, planVersion{0, r.Sequence})
	}
	for _, p := range plans.Items {
		j.requireRising("ClusterPlan "+p.Namespace, planVersion{p.Spec.Epoch, p.Spec.Sequence})
	}
	for _, m := range all.Items {
		if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentHealthy); c != nil && c.Status == metav1.ConditionFalse {
			j.faults[fmt.Sprintf("the agent of %s is not healthy: %s", m.Name, c.Message)] = true
		}
	}
}

func (j *versionJudge) requireRising(what string, now planVersion) {
	before := j.last[what]
	if now.epoch < before.epoch || now.epoch == before.epoch && now.sequence < before.sequence {
		j.faults[fmt.Sprintf("%s has gone back from %v to %v", what, before, now)] = true
	}
	j.last[what] = now
}

// requireNoFaults wants that nothing has happened which must not, since it was asked last.
func (j *versionJudge) requireNoFaults(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	assert.Empty(t, j.faults)
	j.faults = map[string]bool{}
}
