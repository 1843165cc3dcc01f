//go:build linux

// Package report tests what the agent tells the hub of its cluster, read as the
// hub would read it. Nothing is imported here but by an instant CDI, and nothing
// at all where the policy's concurrency is 0.
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
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

var place *scene.Scene

func TestMain(m *testing.M) {
	scene.Main(m, &place, member.Options{Name: "report", Instant: true, LogDir: os.Getenv("OT_FLEET_LOG_DIR")}, false)
}

// never is a heartbeat that no test waits for: what happens has another cause.
const never = "--report-heartbeat=1h"

// reporter is an agent behind a proxy of its own.
type reporter struct {
	*agent.Agent
	proxy *proxy.Proxy
	began int
}

// start runs an agent that needs no Lease until the test ends, at the latest.
func start(t *testing.T, args ...string) *reporter {
	t.Helper()
	return startThrough(t, nil, append(args, "--leader-elect=false")...)
}

// startThrough has the proxy call a hook with each write that was stored.
func startThrough(t *testing.T, after func(*reporter, proxy.Write) error, args ...string) *reporter {
	t.Helper()
	p, err := proxy.Start(place.ControlPlane.Config())
	require.NoError(t, err)
	r := &reporter{proxy: p}
	started := make(chan struct{})
	if after != nil {
		p.After(func(w proxy.Write) error { <-started; return after(r, w) })
	}
	r.Agent, err = agent.Start(t.Context(), place.ControlPlane, agent.Options{Through: p.Through, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: args})
	require.NoError(t, err)
	close(started)
	t.Cleanup(r.end)
	return r
}

// end kills an agent and waits until it is gone.
func (r *reporter) end() {
	r.Kill()
	<-r.Done()
	_ = r.proxy.Close()
}

// mark has what was written so far not counted.
func (r *reporter) mark() { r.began = len(r.proxy.Writes()) }

// writes lists which objects of the report were written since the mark: the
// names, and "+" for one that was created.
func (r *reporter) writes() (names []string) {
	for _, w := range r.proxy.Writes()[r.began:] {
		if _, name, is := strings.Cut(w.Path, "/clusterreports"); is {
			names = append(names, w.Method+strings.ReplaceAll(name, "/", " "))
		}
	}
	return names
}

func isReport(w proxy.Write) (*v1alpha1.ClusterReport, bool) {
	if !strings.Contains(w.Path, "/clusterreports") || w.Method == "DELETE" {
		return nil, false
	}
	obj := &v1alpha1.ClusterReport{}
	return obj, json.Unmarshal(w.Body, obj) == nil
}

// farm is a namespace with images. Nothing is imported unless the policy is
// changed. Images and reports go when the test ends.
func farm(t *testing.T, images int) string {
	t.Helper()
	place.StorePolicy(t, map[string]string{"concurrency": "0"})
	ns := place.Namespace(t)
	t.Cleanup(func() { clean(t, ns) })
	var group errgroup.Group
	group.SetLimit(8)
	for n := range images {
		group.Go(func() error { return place.Client().Create(t.Context(), imageOf(ns, n)) })
	}
	require.NoError(t, group.Wait())
	return ns
}

func imageOf(ns string, n int) *v1alpha1.VMDiskImage {
	return place.Image(ns, fmt.Sprintf("image-%d", n), fmt.Sprintf("/ok/%d", n))
}

// clean removes everything while no agent runs. It is registered before agents
// are started, so that it comes after their end.
func clean(t *testing.T, ns string) {
	ctx, c := context.Background(), place.Client()
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
	require.NoError(t, c.DeleteAllOf(ctx, &v1alpha1.ClusterReport{}, client.InNamespace(agent.Namespace)))
}

// told is a report as it is stored.
type told struct {
	root  *v1alpha1.ClusterReport
	pages map[string]*v1alpha1.ClusterReport
}

func read(t *testing.T) told {
	t.Helper()
	var list v1alpha1.ClusterReportList
	require.NoError(t, place.Client().List(t.Context(), &list, client.InNamespace(agent.Namespace)))
	r := told{pages: map[string]*v1alpha1.ClusterReport{}}
	for i := range list.Items {
		if obj := &list.Items[i]; obj.Name == v1alpha1.MailboxName {
			r.root = obj
		} else {
			r.pages[obj.Name] = obj
		}
	}
	return r
}

// complete tells that there are exactly the pages that the root lists, as it
// lists them.
func (r told) complete() bool {
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

// images by namespace/name, each of which is on one page only.
func (r told) images(t *testing.T) map[string]v1alpha1.ReportedImage {
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

// versions of the pages.
func (r told) versions() map[string]string {
	versions := map[string]string{}
	for name, page := range r.pages {
		versions[name] = page.ResourceVersion
	}
	return versions
}

// eventually reads until the report is complete and as wanted.
func eventually(t *testing.T, what string, wanted func(told) bool) told {
	t.Helper()
	var r told
	require.True(t, scene.Await(t, func() bool { r = read(t); return r.complete() && wanted(r) }), "%s: the report is %+v with %d pages", what, r.root, len(r.pages))
	return r
}

// settled waits until n images of a namespace stand in the report as the agent
// leaves them for good: paused. The root, too, says by then what it will go on saying:
// the ledger is written once more when the agent has looked at API server and CDI.
func settled(t *testing.T, ns string, n int) told {
	t.Helper()
	return eventually(t, fmt.Sprintf("%d images are paused", n), func(r told) bool {
		paused := 0
		for _, img := range r.images(t) {
			if img.Namespace == ns && img.Reason == v1alpha1.ReasonPaused {
				paused++
			}
		}
		looking := slices.ContainsFunc(r.root.Root.Conditions, func(c metav1.Condition) bool { return c.Status == metav1.ConditionUnknown })
		return paused == n && r.root.Root.Phases[v1alpha1.PhaseQueued] >= int32(n) && !looking &&
			equality.Semantic.DeepEqual(r.root.Root.Conditions, place.Ledger(t).Status.Conditions)
	})
}

// quiet waits until nothing of the report has been written for a while.
func (r *reporter) quiet(t *testing.T) {
	t.Helper()
	writes, since := -1, time.Now()
	require.True(t, scene.Await(t, func() bool {
		if n := len(r.writes()); n != writes {
			writes, since = n, time.Now()
		}
		return time.Since(since) > time.Second
	}), "the agent keeps on writing: %v", r.writes())
}
