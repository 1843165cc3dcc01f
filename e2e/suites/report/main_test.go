//go:build linux

// Package report reads the ClusterReport as the hub reads it: pages and root, which objects
// are written when, and what an agent finds after a restart or a restored backup. It takes a
// real API server's resourceVersions; CDI is simulated.
package report

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) {
	testenv.RunTests(m, &env, member.Options{Name: "report", InstantImporter: true, LogDir: os.Getenv("OT_FLEET_LOG_DIR")}, false)
}

// rareHeartbeat is the longest that the agent accepts.
const rareHeartbeat = 5 * time.Minute

// noHeartbeatArg rules the heartbeat out as the cause of a write.
var noHeartbeatArg = "--report-heartbeat=" + rareHeartbeat.String()

// reportingAgent is an agent behind a proxy, which records its writes.
type reportingAgent struct {
	*program.Agent
	proxy       *faults.Proxy
	markedWrite int
}

// startReporter runs an agent without leader election until the test ends at the latest.
func startReporter(t *testing.T, args ...string) *reportingAgent {
	t.Helper()
	return startReporterWithHook(t, nil, append(args, "--leader-elect=false")...)
}

// startReporterWithHook calls a hook with each stored write.
func startReporterWithHook(t *testing.T, after func(*reportingAgent, faults.Write) error, args ...string) *reportingAgent {
	t.Helper()
	p, err := faults.StartProxy(env.ControlPlane.Config())
	require.NoError(t, err)
	r := &reportingAgent{proxy: p}
	started := make(chan struct{})
	if after != nil {
		p.SetAfterHook(func(w faults.Write) error { <-started; return after(r, w) })
	}
	r.Agent, err = program.StartAgent(t.Context(), env.ControlPlane, program.Options{ConfigureClient: p.Redirect, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: args})
	require.NoError(t, err)
	close(started)
	t.Cleanup(r.killAndWait)
	return r
}

// killAndWait kills the agent and waits until it has exited.
func (r *reportingAgent) killAndWait() {
	r.Kill()
	<-r.Done()
	_ = r.proxy.Close()
}

// markWrites excludes the writes so far from writesSinceMark.
func (r *reportingAgent) markWrites() { r.markedWrite = len(r.proxy.Writes()) }

// writesSinceMark lists the writes of root and pages since the mark, as method and name.
func (r *reportingAgent) writesSinceMark() (names []string) {
	for _, w := range r.proxy.Writes()[r.markedWrite:] {
		if _, name, ok := strings.Cut(w.Path, "/clusterreports"); ok && !isActivityWrite(w) {
			names = append(names, w.Method+strings.ReplaceAll(name, "/", " "))
		}
	}
	return names
}

// activityWritesSinceMark counts the writes of the activity since the mark.
func (r *reportingAgent) activityWritesSinceMark() (n int) {
	for _, w := range r.proxy.Writes()[r.markedWrite:] {
		if isActivityWrite(w) {
			n++
		}
	}
	return n
}

// isActivityWrite is true for the updates of the activity.
func isActivityWrite(w faults.Write) bool {
	return strings.HasSuffix(w.Path, "/clusterreports/"+v1alpha1.ActivityName)
}

func asReportWrite(w faults.Write) (*v1alpha1.ClusterReport, bool) {
	if !strings.Contains(w.Path, "/clusterreports") || w.Method == "DELETE" {
		return nil, false
	}
	obj := &v1alpha1.ClusterReport{}
	return obj, json.Unmarshal(w.Body, obj) == nil
}

// createImages creates a namespace with images, under a policy that allows no imports. Images
// and reports are deleted when the test ends.
func createImages(t *testing.T, images int) string {
	t.Helper()
	env.StorePolicy(t, map[string]string{"concurrency": "0"})
	ns := env.CreateNamespace(t)
	t.Cleanup(func() { deleteImagesAndReports(t, ns) })
	var group errgroup.Group
	group.SetLimit(8)
	for n := range images {
		group.Go(func() error { return env.Client().Create(t.Context(), imageInFarm(ns, n)) })
	}
	require.NoError(t, group.Wait())
	return ns
}

func imageInFarm(ns string, n int) *v1alpha1.VMDiskImage {
	return env.NewImage(ns, fmt.Sprintf("image-%d", n), fmt.Sprintf("/ok/%d", n))
}

// deleteImagesAndReports deletes everything while no agent runs: it is registered before agents
// are started, so that it is called after their end.
func deleteImagesAndReports(t *testing.T, ns string) {
	ctx, c := context.Background(), env.Client()
	var images v1alpha1.VMDiskImageList
	require.NoError(t, c.List(ctx, &images, client.InNamespace(ns)))
	var group errgroup.Group
	group.SetLimit(8)
	for i := range images.Items {
		img := &images.Items[i]
		group.Go(func() error {
			if len(img.Finalizers) > 0 {
				base := img.DeepCopy()
				img.Finalizers = nil
				if err := c.Patch(ctx, img, client.MergeFrom(base)); err != nil {
					return client.IgnoreNotFound(err)
				}
			}
			return client.IgnoreNotFound(c.Delete(ctx, img))
		})
	}
	require.NoError(t, group.Wait())
	require.NoError(t, c.DeleteAllOf(ctx, &v1alpha1.ClusterReport{}, client.InNamespace(program.AgentNamespace)))
}

// storedReport is the report as it is stored: root, pages and activity.
type storedReport struct {
	root     *v1alpha1.ClusterReport
	pages    map[string]*v1alpha1.ClusterReport
	activity *v1alpha1.ClusterReport
}

func readReport(t *testing.T) storedReport {
	t.Helper()
	var list v1alpha1.ClusterReportList
	require.NoError(t, env.Client().List(t.Context(), &list, client.InNamespace(program.AgentNamespace)))
	r := storedReport{pages: map[string]*v1alpha1.ClusterReport{}}
	for i := range list.Items {
		switch obj := &list.Items[i]; obj.Name {
		case v1alpha1.MailboxName:
			r.root = obj
		case v1alpha1.ActivityName:
			r.activity = obj
		default:
			r.pages[obj.Name] = obj
		}
	}
	return r
}

// isComplete reports whether the pages are exactly those that the root lists.
func (r storedReport) isComplete() bool {
	if r.root == nil || len(r.pages) != len(r.root.Root.Pages) {
		return false
	}
	for _, ref := range r.root.Root.Pages {
		page := r.pages[ref.Name]
		if page == nil || page.Sequence != ref.Sequence || len(page.Page.Images) != int(ref.Images) {
			return false
		}
	}
	return true
}

// imagesByKey returns the images by namespace/name; each is on one page only.
func (r storedReport) imagesByKey(t *testing.T) map[string]v1alpha1.ReportedImage {
	t.Helper()
	images := map[string]v1alpha1.ReportedImage{}
	for _, page := range r.pages {
		for _, img := range page.Page.Images {
			key := img.Namespace + "/" + img.Name
			require.NotContains(t, images, key)
			images[key] = img
		}
	}
	return images
}

// pageVersions returns the resourceVersions of the pages.
func (r storedReport) pageVersions() map[string]string {
	versions := map[string]string{}
	for name, page := range r.pages {
		versions[name] = page.ResourceVersion
	}
	return versions
}

// awaitReport waits until the report is complete and matches, and returns it.
func awaitReport(t *testing.T, what string, wanted func(storedReport) bool) storedReport {
	t.Helper()
	var r storedReport
	require.True(t, testenv.AwaitCondition(t, func() bool { r = readReport(t); return r.isComplete() && wanted(r) }), "%s: the report is %+v with %d pages", what, r.root, len(r.pages))
	return r
}

// awaitSettledImages waits until n images of a namespace are reported in their final state,
// paused, and the root is final as well: the agent writes the ledger once more after its
// checks of API server and CDI.
func awaitSettledImages(t *testing.T, ns string, n int) storedReport {
	t.Helper()
	return awaitReport(t, fmt.Sprintf("%d images are paused", n), func(r storedReport) bool {
		paused := 0
		for _, img := range r.imagesByKey(t) {
			if img.Namespace == ns && img.Reason == v1alpha1.ReasonPaused {
				paused++
			}
		}
		looking := slices.ContainsFunc(r.root.Root.Conditions, func(c metav1.Condition) bool { return c.Status == metav1.ConditionUnknown })
		return paused == n && r.root.Root.Phases[v1alpha1.PhaseQueued] >= int32(n) && !looking &&
			equality.Semantic.DeepEqual(r.root.Root.Conditions, env.Ledger(t).Status.Conditions)
	})
}

// awaitQuiet waits until the report has not been written for some time.
func (r *reportingAgent) awaitQuiet(t *testing.T) {
	t.Helper()
	writes, since := -1, time.Now()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		if n := len(r.writesSinceMark()); n != writes {
			writes, since = n, time.Now()
		}
		return time.Since(since) > time.Second
	}), "the agent keeps on writing: %v", r.writesSinceMark())
}
