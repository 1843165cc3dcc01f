package web

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// latePages are those of an API server that answers late.
type latePages struct {
	release chan struct{}
	asked   atomic.Int32
}

func (p *latePages) Page(ctx context.Context, _, _ string) ([]v1alpha1.ReportedImage, bool, error) {
	p.asked.Add(1)
	select {
	case <-p.release:
		return nil, false, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// Answers from memory do not wait for those that read pages of reports, though these are
// remembered, too.
func TestLateReadsHoldUpNoAnswerFromMemory(t *testing.T) {
	for _, path := range []string{
		"why?cluster=a&namespace=images&name=debian", "rollouts/reach?name=ubuntu&wave=canary", "images/clusters?name=ubuntu", "members/images?member=a",
	} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, pages := newTestFleet(t, "a"), &latePages{release: make(chan struct{})}
				img := apitest.FleetDiskImage("ubuntu").WithGeneration(1).WithWave("canary").Obj()
				setReport(f.Index, "a", 2, []v1alpha1.ReportedImage{
					{Namespace: "images", Name: "debian", UID: "u"}, {Namespace: img.Spec.TargetNamespace, Name: "ubuntu-1.0.0", UID: "u", Phase: v1alpha1.PhaseSucceeded},
				})
				f.Pages, f.PageNames = pages, func(string) []string { return []string{"page"} }
				f.RolloutView = func(string) (rollout.View, bool) {
					report := rollout.Report{Exists: true, Phase: v1alpha1.PhaseSucceeded}
					return rollout.View{Image: img, Now: apitest.Epoch, Clusters: []rollout.Cluster{{Name: "a", Report: report}}}, true
				}
				var asked sync.WaitGroup
				for range 2 * maxReading {
					asked.Go(func() { f.get(t, path, nil) })
				}
				synctest.Wait()
				require.EqualValues(t, maxReading, pages.asked.Load(), "so many read at a time")
				status := make(chan int, 1)
				asked.Go(func() { status <- f.get(t, "summary", nil).Code })
				synctest.Wait()
				select {
				case code := <-status:
					assert.Equal(t, http.StatusOK, code)
				default:
					assert.Fail(t, "the summary waits for them")
				}
				close(pages.release)
				asked.Wait()
			})
		})
	}
}

// readRecorder counts what an answer reads beside the memory of the hub.
type readRecorder struct {
	client.Reader
	reads atomic.Int32
}

func (r *readRecorder) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	r.reads.Add(1)
	return r.Reader.Get(ctx, key, into, options...)
}

func (r *readRecorder) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	r.reads.Add(1)
	return r.Reader.List(ctx, into, options...)
}

func (r *readRecorder) Page(context.Context, string, string) ([]v1alpha1.ReportedImage, bool, error) {
	r.reads.Add(1)
	return []v1alpha1.ReportedImage{{Namespace: "images", Name: "debian"}}, true, nil
}

func (r *readRecorder) Targets(context.Context, string) ([]readapi.PruneTarget, bool, error) {
	r.reads.Add(1)
	return nil, true, nil
}

// Invariant: an answer that reads objects live says so, or it takes the slots of those from memory.
func TestEndpointsThatReadSaySo(t *testing.T) {
	queries := map[string]string{
		"summary": "", "why": "cluster=a&namespace=images&name=debian", "matrix": "rows=source", "search": "q=a", "history": "by=cluster", "policy": "",
		"transfers": "", "blastradius": `policy={"concurrency":"5"}`,
		"members": "", "members/detail": "member=a", "members/images": "member=a", "members/quarantine": "member=a",
		"images": "", "images/versions": "name=ubuntu", "images/clusters": "name=ubuntu", "images/detail": "source=http+debian",
		"rollouts": "", "rollouts/detail": "name=ubuntu", "rollouts/reach": "name=ubuntu&wave=canary", "rollouts/clusters": "name=ubuntu", "rollouts/owners": "name=ubuntu",
		"prunereports": "name=spring", "prunereports/groups": "report=spring", "prunereports/rows": "report=spring",
		"imageprunes": "name=spring", "imageprunes/targets": "prune=spring",
	}
	f := newTestFleet(t, "a")
	img := apitest.FleetDiskImage("ubuntu").WithGeneration(1).WithWave("canary").Obj()
	setReport(f.Index, "a", 2, []v1alpha1.ReportedImage{
		{Namespace: "images", Name: "debian", UID: "u", Source: "http debian"}, {Namespace: img.Spec.TargetNamespace, Name: "ubuntu-1.0.0", UID: "u", Phase: v1alpha1.PhaseSucceeded},
	})
	f.RolloutView = func(string) (rollout.View, bool) {
		report := rollout.Report{Exists: true, Phase: v1alpha1.PhaseSucceeded}
		return rollout.View{Image: img, Now: apitest.Epoch, Clusters: []rollout.Cluster{{Name: "a", Report: report}}}, true
	}
	require.NoError(t, corev1.AddToScheme(f.client.Scheme()))
	f.PolicyKey = types.NamespacedName{Namespace: "hub", Name: "policy"}
	for _, object := range append(newStoredReport("spring", newReportedPages()),
		&v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: "spring"}}, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "hub", Name: "policy"}}) {
		require.NoError(t, f.client.Create(t.Context(), object))
	}
	recorder := &readRecorder{Reader: f.client}
	f.Live, f.Pages, f.PageNames, f.PruneTargets = recorder, recorder, func(string) []string { return []string{"page"} }, recorder.Targets

	endpoints := f.endpoints()
	for _, path := range slices.Sorted(maps.Keys(endpoints)) {
		path = strings.TrimPrefix(path, readapi.Root)
		t.Run(path, func(t *testing.T) {
			query, listed := queries[path]
			require.True(t, listed, "give it a query whose answer reads all that the endpoint may read")
			before := recorder.reads.Load()
			answer := f.get(t, path+"?"+query, nil)
			require.Equal(t, http.StatusOK, answer.Code, answer.Body)
			assert.Equal(t, endpoints[readapi.Root+path].reads, recorder.reads.Load() > before, "whether the answer read objects live")
		})
	}
}
