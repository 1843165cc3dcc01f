//go:build linux

package report

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestRestartRewritesOnlyOldReports wants a starting agent to leave pages alone that are up to
// date, and to rewrite all pages of an old report.
func TestRestartRewritesOnlyOldReports(t *testing.T) {
	ns := createImages(t, 130)
	a := startReporter(t, noHeartbeatArg)
	awaitSettledImages(t, ns, 130)
	a.awaitQuiet(t)
	before := readReport(t)
	a.killAndWait()

	b := startReporter(t, noHeartbeatArg)
	awaitReport(t, "another process reports", func(r storedReport) bool { return r.root.Root.BootID != before.root.Root.BootID })
	b.awaitQuiet(t)
	after := readReport(t)
	assert.Greater(t, after.root.Sequence, before.root.Sequence)
	assert.Equal(t, before.pageVersions(), after.pageVersions())
	for _, w := range b.writesSinceMark() {
		assert.Equal(t, "PUT default", w)
	}

	// The hub may have later pages than a cluster that was restored from a backup, so an
	// agent that finds an old root rewrites everything.
	b.killAndWait()
	root := after.root
	root.Root.ObservedAt = metav1.NewTime(time.Now().Add(-4 * time.Hour))
	require.NoError(t, env.Client().Update(t.Context(), root))
	before = readReport(t)

	startReporter(t, noHeartbeatArg)
	awaitReport(t, "every page is newer", func(r storedReport) bool {
		for name, page := range before.pages {
			if r.pages[name] == nil || r.pages[name].Sequence <= page.Sequence {
				return false
			}
		}
		return true
	})
}

// TestKilledBetweenPageAndRoot kills the agent after it has stored a page and before the root.
func TestKilledBetweenPageAndRoot(t *testing.T) {
	for name, images := range map[string]int{"a page changes": 100, "a page is split": 128} {
		t.Run(name, func(t *testing.T) {
			ns := createImages(t, images)
			var armed atomic.Bool
			a := startReporterWithHook(t, func(a *reportingAgent, w faults.Write) error {
				if obj, ok := asReportWrite(w); ok && obj.Page != nil && armed.Load() {
					a.Kill()
					return faults.DropConnection()
				}
				return nil
			}, noHeartbeatArg, "--leader-elect=false")
			awaitSettledImages(t, ns, images)
			a.awaitQuiet(t)
			before := readReport(t)
			armed.Store(true)
			env.Create(t, imageInFarm(ns, images))
			require.True(t, testenv.AwaitCondition(t, func() bool {
				select {
				case <-a.Done():
					return true
				default:
					return false
				}
			}), "the agent was not killed")
			assert.False(t, readReport(t).isComplete(), "the root knows of the page already")
			assert.Equal(t, before.root.ResourceVersion, readReport(t).root.ResourceVersion)

			b := startReporter(t, noHeartbeatArg)
			after := awaitSettledImages(t, ns, images+1)
			assert.Equal(t, int32(images+1), after.root.Root.Images)
			b.awaitQuiet(t)
			assert.True(t, readReport(t).isComplete())
		})
	}
}

// TestOnlyTheLeaderReports wants the second agent to report only when the leader is gone.
func TestOnlyTheLeaderReports(t *testing.T) {
	testenv.RunInTurn(t, 1)
	ns := createImages(t, 3)
	// Long Leases: no leader loses its Lease for another reason.
	args := []string{"--report-heartbeat=1s", "--leader-elect-lease-duration=1h", "--leader-elect-renew-deadline=59m"}
	require.NoError(t, program.DeleteAgentLease(t.Context(), env.Client()))
	leads := startReporterWithHook(t, nil, args...)
	awaitSettledImages(t, ns, 3)
	standby := startReporterWithHook(t, nil, args...)
	_, err := standby.ReadMetrics(t.Context())
	require.NoError(t, err)
	before := readReport(t)
	awaitReport(t, "three heartbeats", func(r storedReport) bool {
		return r.root.Root.ObservedAt.Sub(before.root.Root.ObservedAt.Time) >= 3*time.Second
	})
	assert.Empty(t, standby.writesSinceMark())
	assert.Equal(t, before.root.Root.BootID, readReport(t).root.Root.BootID)

	leads.killAndWait()
	require.NoError(t, program.DeleteAgentLease(t.Context(), env.Client()))
	after := awaitReport(t, "the other reports", func(r storedReport) bool { return r.root.Root.BootID != before.root.Root.BootID })
	assert.Greater(t, after.root.Sequence, before.root.Sequence)
	assert.Equal(t, before.pageVersions(), after.pageVersions())
}

// startBareCluster starts a control plane with the agent's chart and an agent, and no CDI.
func startBareCluster(t *testing.T, name string, values map[string]any, args ...string) (*controlplane.ControlPlane, client.Client) {
	t.Helper()
	ctx := context.Background()
	plane, err := controlplane.Start(ctx, controlplane.Options{Name: name, LogDir: os.Getenv("OT_FLEET_LOG_DIR")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
	require.NoError(t, program.InstallAgent(ctx, plane, values))
	a, err := program.StartAgent(ctx, plane, program.Options{Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: append(args, "--leader-elect=false")})
	require.NoError(t, err)
	t.Cleanup(a.Kill)
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	c, err := client.New(plane.Config(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	// The agent has written the ledger: it works.
	require.True(t, testenv.AwaitCondition(t, func() bool {
		l := &v1alpha1.SyncLedger{}
		return c.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, l) == nil && l.Status != nil
	}))
	return plane, c
}

// TestMailboxCRDsInstalledLater installs the mailbox CRDs while the agent runs, as the hub's
// chart may: the agent reports and applies a plan.
func TestMailboxCRDsInstalledLater(t *testing.T) {
	plane, c := startBareCluster(t, "late", map[string]any{"crds": map[string]any{"mailbox": false}}, noHeartbeatArg)
	require.NoError(t, controlplane.InstallCRDFiles(t.Context(), plane.Config(), filepath.Join("..", "..", "..", "charts", "ot-agent", "files", "mailbox")))
	root := &v1alpha1.ClusterReport{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return c.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}, root) == nil
	}), "the agent does not report")
	assert.False(t, root.Root.NoLedger)

	system := &corev1.Namespace{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	plan := &v1alpha1.ClusterPlan{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName},
		Spec: v1alpha1.ClusterPlanSpec{
			PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: system.UID, Policy: map[string]string{"concurrency": "2"},
		},
	}
	require.NoError(t, c.Create(t.Context(), plan))
	l := &v1alpha1.SyncLedger{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return c.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, l) == nil && l.Status.Plan != nil && l.Status.Policy["concurrency"] == "2"
	}), "the plan is not acknowledged: %+v", l.Status)
}

// TestClusterRestoredUnderARunningAgent restores a backup. The hub may have the reports since
// the backup, so later ones have to be newer, although no watch event shows the restore.
func TestClusterRestoredUnderARunningAgent(t *testing.T) {
	testenv.RunInTurn(t, 2)
	plane, c := startBareCluster(t, "restored", nil, "--report-heartbeat=1s")
	img := env.NewImage(program.AgentNamespace, "image", "/ok/a")
	require.NoError(t, c.Create(t.Context(), img))
	reported := func(wanted func(root, page *v1alpha1.ClusterReport) bool) (root, page *v1alpha1.ClusterReport) {
		t.Helper()
		require.True(t, testenv.AwaitCondition(t, func() bool {
			root, page = &v1alpha1.ClusterReport{}, &v1alpha1.ClusterReport{}
			return c.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}, root) == nil &&
				c.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: "page"}, page) == nil &&
				len(root.Root.Pages) == 1 && root.Root.Pages[0].Sequence == page.Sequence && wanted(root, page)
		}), "last seen: root %+v, page %+v", root.Root, page.Page)
		return root, page
	}
	reported(func(_, page *v1alpha1.ClusterReport) bool {
		return page.Page.Images[0].Reason == v1alpha1.ReasonCDIMissing
	})
	backup, err := plane.Backup(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, backup.Remove()) })

	require.True(t, testenv.AwaitCondition(t, func() bool {
		if c.Get(t.Context(), client.ObjectKeyFromObject(img), img) != nil {
			return false
		}
		img.Spec.URL += "-new"
		return c.Update(t.Context(), img) == nil
	}))
	root, page := reported(func(_, page *v1alpha1.ClusterReport) bool {
		return page.Page.Images[0].Source == "http "+img.Spec.URL
	})
	require.NoError(t, backup.Restore(t.Context()))
	reported(func(newRoot, newPage *v1alpha1.ClusterReport) bool {
		return newRoot.Sequence > root.Sequence && newPage.Sequence > page.Sequence
	})
}
