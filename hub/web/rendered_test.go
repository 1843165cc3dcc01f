package web

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
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
