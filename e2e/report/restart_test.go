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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// An agent that starts writes no page that says what it would say itself.
func TestRestartRewritesNoPage(t *testing.T) {
	ns := farm(t, 150)
	a := start(t, never)
	settled(t, ns, 150)
	a.quiet(t)
	before := read(t)
	a.end()

	b := start(t, never)
	eventually(t, "another process reports", func(r told) bool { return r.root.Root.BootID != before.root.Root.BootID })
	b.quiet(t)
	after := read(t)
	assert.Greater(t, after.root.Sequence, before.root.Sequence)
	assert.Equal(t, before.versions(), after.versions())
	for _, w := range b.writes() {
		assert.Equal(t, "PUT default", w)
	}
}

// The hub may know later pages than a cluster that was restored from a backup:
// an agent that finds an old root writes everything anew.
func TestOldReportIsWrittenAnew(t *testing.T) {
	ns := farm(t, 150)
	a := start(t, never)
	settled(t, ns, 150)
	a.quiet(t)
	a.end()
	root := read(t).root
	root.Root.ObservedAt = metav1.NewTime(time.Now().Add(-4 * time.Hour))
	require.NoError(t, place.Client().Update(t.Context(), root))
	before := read(t)

	start(t, never)
	eventually(t, "every page is newer", func(r told) bool {
		for name, page := range before.pages {
			if r.pages[name] == nil || r.pages[name].Sequence <= page.Sequence {
				return false
			}
		}
		return true
	})
}

// TestKilledBetweenPageAndRoot kills the agent when it has stored a page, and
// the root does not say so yet.
func TestKilledBetweenPageAndRoot(t *testing.T) {
	for name, images := range map[string]int{"a page changes": 100, "a page is split": 128} {
		t.Run(name, func(t *testing.T) {
			ns := farm(t, images)
			var armed atomic.Bool
			a := startThrough(t, func(a *reporter, w proxy.Write) error {
				if obj, is := isReport(w); is && obj.Page != nil && armed.Load() {
					a.Kill()
					return proxy.Lose()
				}
				return nil
			}, never, "--leader-elect=false")
			settled(t, ns, images)
			a.quiet(t)
			before := read(t)
			armed.Store(true)
			place.Create(t, imageOf(ns, images))
			require.True(t, scene.Await(t, func() bool {
				select {
				case <-a.Done():
					return true
				default:
					return false
				}
			}), "the agent was not killed")
			assert.False(t, read(t).complete(), "the root knows of the page already")
			assert.Equal(t, before.root.ResourceVersion, read(t).root.ResourceVersion)

			b := start(t, never)
			after := settled(t, ns, images+1)
			assert.Equal(t, int32(images+1), after.root.Root.Images)
			b.quiet(t)
			assert.True(t, read(t).complete())
		})
	}
}

// Of two agents the one that leads reports, and when it is gone, the other.
func TestOnlyTheLeaderReports(t *testing.T) {
	ns := farm(t, 3)
	// Long Leases: nobody takes over from either but for the reason that is tested.
	args := []string{"--report-heartbeat=1s", "--leader-elect-lease-duration=30s", "--leader-elect-renew-deadline=20s"}
	leads := startThrough(t, nil, args...)
	settled(t, ns, 3)
	standby := startThrough(t, nil, args...)
	_, err := standby.Metrics(t.Context())
	require.NoError(t, err)
	before := read(t)
	eventually(t, "three heartbeats", func(r told) bool {
		return r.root.Root.ObservedAt.Sub(before.root.Root.ObservedAt.Time) >= 3*time.Second
	})
	assert.Empty(t, standby.writes())
	assert.Equal(t, before.root.Root.BootID, read(t).root.Root.BootID)

	leads.end()
	after := eventually(t, "the other reports", func(r told) bool { return r.root.Root.BootID != before.root.Root.BootID })
	assert.Greater(t, after.root.Sequence, before.root.Sequence)
	assert.Equal(t, before.versions(), after.versions())
}

// bare is a cluster of its own with the agent's chart, nothing else, and an agent.
func bare(t *testing.T, name string, values map[string]any, args ...string) (*controlplane.ControlPlane, client.Client) {
	t.Helper()
	ctx := context.Background()
	plane, err := controlplane.Start(ctx, controlplane.Options{Name: name, LogDir: os.Getenv("OT_FLEET_LOG_DIR")})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
	require.NoError(t, agent.Install(ctx, plane, values))
	a, err := agent.Start(ctx, plane, agent.Options{Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: append(args, "--leader-elect=false")})
	require.NoError(t, err)
	t.Cleanup(a.Kill)
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	c, err := client.New(plane.Config(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	// The ledger says that the agent is at work.
	require.True(t, scene.Await(t, func() bool {
		l := &v1alpha1.SyncLedger{}
		return c.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.LedgerName}, l) == nil && l.Status != nil
	}))
	return plane, c
}

// TestKindsServedLater has the mailbox's kinds installed under an agent that runs.
func TestKindsServedLater(t *testing.T) {
	plane, c := bare(t, "late", map[string]any{"crds": map[string]any{"mailbox": false}}, never)
	_, err := envtest.InstallCRDs(plane.Config(), envtest.CRDInstallOptions{
		Paths: []string{filepath.Join("..", "..", "charts", "ot-agent", "files", "mailbox")}, ErrorIfPathMissing: true,
	})
	require.NoError(t, err)
	root := &v1alpha1.ClusterReport{}
	require.True(t, scene.Await(t, func() bool {
		return c.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}, root) == nil
	}), "the agent does not report")
	assert.False(t, root.Root.NoLedger)
}

// TestClusterRestoredUnderTheAgent puts a cluster back to an older state. What
// the agent has written since may be known to the hub: it is overtaken, though no
// watch tells of the restore.
func TestClusterRestoredUnderTheAgent(t *testing.T) {
	plane, c := bare(t, "restored", nil, "--report-heartbeat=1s")
	img := place.Image(agent.Namespace, "image", "/ok/a")
	require.NoError(t, c.Create(t.Context(), img))
	reported := func(wanted func(root, page *v1alpha1.ClusterReport) bool) (root, page *v1alpha1.ClusterReport) {
		t.Helper()
		require.True(t, scene.Await(t, func() bool {
			root, page = &v1alpha1.ClusterReport{}, &v1alpha1.ClusterReport{}
			return c.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}, root) == nil &&
				c.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: "page"}, page) == nil &&
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

	require.True(t, scene.Await(t, func() bool {
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
