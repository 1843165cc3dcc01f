//go:build linux

package outage_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/memberclient"
)

// TestMemberRestoredFromBackup shows that a member restored from a backup reports its
// present state and applies the newest plan, and that the hub accepts nothing older than
// what it has. The hub is not restarted.
func TestMemberRestoredFromBackup(t *testing.T) {
	testenv.RunInTurn(t, 1)
	s := shared.Members[bergen]
	s.CreateImageForTest(t, "before-the-backup")
	shared.AwaitMember(t, bergen, "healthy, with an image", isHealthy, hasBudget(2), hasImages(1))
	s.stopAgent(t)
	backup, err := s.ControlPlane.Backup(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backup.Remove()) })
	s.restartImporter(t, 1<<20)
	require.NoError(t, s.StartAgent(t.Context()))
	shared.setConcurrency(t, "3")
	lost := s.CreateImageForTest(t, "after-the-backup")
	before := shared.AwaitMember(t, bergen, "later than its backup", isHealthy, hasBudget(3), hasImages(2))
	copies := shared.recordReports(t, bergen)

	s.Agent.Kill()
	<-s.Agent.Done()
	require.NoError(t, backup.Restore(t.Context()))
	s.restartImporter(t, 1<<20)
	require.True(t, apierrors.IsNotFound(s.Client().Get(t.Context(), client.ObjectKeyFromObject(lost), lost)))
	require.NoError(t, s.StartAgent(t.Context()))
	after := shared.AwaitMember(t, bergen, "as it is now, under the newest plan", isHealthy, hasBudget(3), hasImages(1))
	assert.GreaterOrEqual(t, after.Status.Plan.Compare(*before.Status.Plan), 0)
	assert.Equal(t, before.Status.ClusterUID, after.Status.ClusterUID)
	assert.True(t, hasCondition(v1alpha1.ConditionReportComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete)(after), testenv.DescribeMember(after))
	copies.assertRising(t)

	s.CreateImageForTest(t, "after-the-restore")
	shared.AwaitMember(t, bergen, "with a new image", isHealthy, hasBudget(3), hasImages(2))
}

// TestWatchesResumeAfterRestore shows that a connection that missed the outage lists
// again by itself. Otherwise its watches would stay silent until the member's
// resourceVersions caught up.
func TestWatchesResumeAfterRestore(t *testing.T) {
	testenv.RunInTurn(t, 0)
	s := shared.Members[lab]
	if s.Agent != nil {
		s.stopAgent(t) // it would write
		t.Cleanup(func() { require.NoError(t, s.StartAgent(context.Background())) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	hubLink, err := faults.StartLink(s.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(hubLink.Close)
	// The link is cut while the API server is away: a starting one refuses valid tokens for a
	// moment, which would end the connection.
	away := func(do func(context.Context) error) {
		t.Helper()
		hubLink.Cut()
		require.NoError(t, do(ctx))
		require.NoError(t, hubLink.Repair(ctx))
	}
	// The probe runs on demand only, not while the API server is away.
	provider := memberclient.New(memberclient.Options{ProbeInterval: time.Hour})
	set := func() {
		cfg, err := s.ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
		require.NoError(t, err)
		hubLink.Redirect(cfg)
		provider.SetTarget(lab, memberclient.Target{Config: cfg, Namespace: program.AgentNamespace, ConfigVersion: "1"})
	}
	set()
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, provider.Runnable(unawareManager{}).Start(ctx)) })
	t.Cleanup(func() { cancel(); running.Wait() })

	key := client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}
	write := func(version string) {
		report := &v1alpha1.ClusterReport{}
		err := s.Client().Get(ctx, key, report)
		require.NoError(t, client.IgnoreNotFound(err))
		report.Namespace, report.Name = key.Namespace, key.Name
		report.ClusterUID, report.Sequence = s.ClusterUID(t), report.Sequence+1
		report.Root = &v1alpha1.ReportRoot{ObservedAt: metav1.Now(), HeartbeatSeconds: 60, BootID: "by hand", AgentVersion: version}
		if apierrors.IsNotFound(err) {
			err = s.Client().Create(ctx, report)
		} else {
			err = s.Client().Update(ctx, report)
		}
		require.NoError(t, err)
	}
	hears := func(version string) {
		t.Helper()
		heard := ""
		testenv.AwaitCondition(t, func() bool {
			m, err := provider.GetMember(lab)
			if err != nil {
				return false
			}
			report := &v1alpha1.ClusterReport{}
			require.NoError(t, client.IgnoreNotFound(m.GetCache().Get(ctx, key, report)))
			heard = ""
			if report.Root != nil {
				heard = report.Root.AgentVersion
			}
			return heard == version
		})
		require.Equal(t, version, heard, "heard last")
	}
	t.Cleanup(func() {
		report := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		require.NoError(t, client.IgnoreNotFound(s.Client().Delete(context.Background(), report)))
	})
	// loseWrites restores the member to before 20 writes. missed: the connection did not notice,
	// for the API server was back before it had failed too often.
	loseWrites := func() (missed bool) {
		write("of the backup")
		hears("of the backup")
		first, err := provider.GetMember(lab)
		require.NoError(t, err)
		var backup *controlplane.Backup
		away(func(ctx context.Context) (err error) {
			backup, err = s.ControlPlane.Backup(ctx)
			return err
		})
		defer func() { require.NoError(t, backup.Remove()) }()
		for range 20 {
			write("lost")
		}
		hears("lost")
		away(backup.Restore)
		s.restartImporter(t, 1<<20)
		now, err := provider.GetMember(lab)
		return err == nil && now == first
	}
	for tries := 1; !loseWrites(); tries++ {
		require.Less(t, tries, 5, "the connection notices each outage: the test shows nothing")
		// A connection after failed watches counts as reached only after a probe interval.
		provider.Remove(lab)
		set()
	}

	set()
	hears("of the backup")
	write("of now")
	hears("of now")
	assert.True(t, provider.State(lab).Reachable, "%+v", provider.State(lab))
}

// unawareManager ignores the members that are engaged.
type unawareManager struct{}

func (unawareManager) Engage(context.Context, multicluster.ClusterName, cluster.Cluster) error {
	return nil
}

// TestMemberRestoredDuringImports shows that a restored ledger, with a higher budget and
// no running attempts, finds the running imports, starts none beside them, and applies
// the hub's newest plan.
func TestMemberRestoredDuringImports(t *testing.T) {
	s := shared.Members[bergen]
	shared.setConcurrency(t, "3")
	shared.AwaitMember(t, bergen, "healthy, its images gone", isHealthy, hasBudget(3), hasImages(0))
	s.restartImporter(t, 0)
	t.Cleanup(func() { s.restartImporter(t, 1<<20) })
	key := client.ObjectKey{Namespace: program.AgentNamespace, Name: "default"}
	kept := &v1alpha1.SyncLedger{}
	require.NoError(t, s.Client().Get(t.Context(), key, kept))
	require.Empty(t, kept.Status.Slots)

	shared.SetPolicy(t, map[string]string{"concurrency": "2"})
	newest := shared.AwaitMember(t, bergen, "under the newest plan", isHealthy, hasBudget(2))
	judge, err := observer.Start(t.Context(), s.ControlPlane.Config())
	require.NoError(t, err)
	defer judge.Stop()
	const images, run = 5, 2
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.CreateImageForTest(t, "restored-"+name)
	}
	shared.AwaitMember(t, bergen, "as busy as allowed", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.SlotsUsed != nil && *m.Status.SlotsUsed == run && m.Status.Images != nil && m.Status.Images.Queued == images-run
	})

	s.Agent.Kill()
	<-s.Agent.Done()
	ledger := &v1alpha1.SyncLedger{}
	require.NoError(t, s.Client().Get(t.Context(), key, ledger))
	ledger.Status = kept.Status
	require.NoError(t, s.Client().Status().Update(t.Context(), ledger))
	require.NoError(t, s.StartAgent(t.Context()))
	shared.AwaitMember(t, bergen, "busy again, within the newest plan", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.LastReport != nil && m.Status.LastReport.After(newest.Status.LastReport.Time)
	}, isHealthy, hasBudget(2), func(m *v1alpha1.MemberCluster) bool {
		return *m.Status.SlotsUsed == run && m.Status.Images.Queued == images-run
	})
	s.importer.AllowFinishes(1 << 20)
	after := shared.AwaitMember(t, bergen, "done", isHealthy, hasBudget(2), hasImages(images))
	assert.GreaterOrEqual(t, after.Status.Plan.Compare(*newest.Status.Plan), 0)
	history, err := judge.History(t.Context())
	require.NoError(t, err)
	assert.Empty(t, history.BudgetViolations())
	assert.Empty(t, history.ReusedNames())
	assert.LessOrEqual(t, history.MaxRunning(), run)
}

// restartImporter replaces the member's importer: the watch of the last one gets nothing until the
// API server's versions have caught up with those from before its restore.
func (s *testMember) restartImporter(t *testing.T, allowed int) {
	t.Helper()
	last := s.importer
	if last == nil {
		last = s.InstantImporter()
	}
	require.NoError(t, last.Stop())
	next, err := simulator.StartInstantImporter(context.Background(), simulator.Options{
		Name: s.Name(), Config: s.ControlPlane.Config(), Kubeconfig: s.ControlPlane.Kubeconfig(),
		Dir: s.ControlPlane.Dir(), LogDir: s.ControlPlane.Dir(), Scheme: s.Client().Scheme(),
	}, 0)
	require.NoError(t, err)
	next.AllowFinishes(allowed)
	s.importer = next
	shared.OnStop(func() { _ = next.Stop() })
}

// reportRecorder are the sequences of a member's reports on the hub, by name, in the
// order in which they were stored.
type reportRecorder struct {
	stop func()
	of   map[types.NamespacedName][]int64
}

func (f *testFleet) recordReports(t *testing.T, name string) *reportRecorder {
	t.Helper()
	r := &reportRecorder{of: map[types.NamespacedName][]int64{}}
	var err error
	r.stop, err = controlplane.WatchObjects(t.Context(), f, &v1alpha1.ClusterReportList{}, func(c controlplane.Change[*v1alpha1.ClusterReport]) {
		if c.Type != watch.Deleted {
			key := client.ObjectKeyFromObject(c.Object)
			r.of[key] = append(r.of[key], c.Object.Sequence)
		}
	}, client.InNamespace(v1alpha1.MemberNamespacePrefix+name))
	require.NoError(t, err)
	t.Cleanup(r.stop)
	return r
}

// assertRising requires that no root is older than the one before it.
func (r *reportRecorder) assertRising(t *testing.T) {
	t.Helper()
	r.stop()
	for key, sequences := range r.of {
		if key.Name != v1alpha1.MailboxName {
			continue // a newer root may list older pages
		}
		require.Greater(t, len(sequences), 1, key)
		for i := 1; i < len(sequences); i++ {
			assert.GreaterOrEqual(t, sequences[i], sequences[i-1], "%s: %v", key, sequences)
		}
	}
	require.NotEmpty(t, r.of)
}
