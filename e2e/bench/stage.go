//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/process"
	"github.com/pelotech/ot-fleet/e2e/simulator"
)

const (
	namespace = "vmdi-farm"
	// patience bounds each wait: a busy machine is no failure.
	patience = 20 * time.Minute
	tick     = 50 * time.Millisecond
	// scrape is how often the agent is asked while what it does is measured: 20
	// times a second would cost it as much as the imports do.
	scrape = time.Second
	// quiet is how long the agent asks the API server for nothing before
	// everything is taken to have settled.
	quiet = 1500 * time.Millisecond
)

// stage is one member with an agent whose requests are written down.
type stage struct {
	*member.Member
	agent  *agent.Agent
	pprof  string
	audit  *audit
	source *httptest.Server
	images int
}

// newStage starts a member and, on it, an agent. A concurrency that no importer
// ends is the place to begin: see simulator.Instant.
func newStage(ctx context.Context, o member.Options, concurrency int, agentArgs ...string) (_ *stage, err error) {
	s := &stage{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.audit, err = newAudit(agent.Namespace + ":ot-agent"); err != nil {
		return nil, err
	}
	o.Scheme = runtime.NewScheme()
	if err := v1alpha1.AddToScheme(o.Scheme); err != nil {
		return nil, err
	}
	// A queue of thousands writes more than the small etcd holds between two of
	// the usual compactions.
	o.APIServerArgs = append(s.audit.apiServerArgs(), "--etcd-compaction-interval=20s")
	o.APIServerMemory = "1GiB"
	if s.Member, err = member.Start(ctx, o); err != nil {
		return nil, err
	}
	values := map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": fmt.Sprint(concurrency)}}}
	if err := agent.Install(ctx, s.ControlPlane, values); err != nil {
		return nil, err
	}
	if err := s.Client().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return nil, fmt.Errorf("creating namespace %s: %w", namespace, err)
	}
	// It has every image; no bytes are served.
	s.source = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return s, s.startAgent(ctx, agentArgs...)
}

// startAgent starts an agent with the lease that the chart gives it, and waits
// until it leads.
func (s *stage) startAgent(ctx context.Context, args ...string) error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	s.pprof = fmt.Sprintf("127.0.0.1:%d", port)
	s.agent, err = agent.Start(ctx, s.ControlPlane, agent.Options{
		LeaseDuration: 15 * time.Second, Args: append([]string{"--pprof-bind-address=" + s.pprof}, args...), Log: os.Getenv("OT_FLEET_AGENT_LOG"),
	})
	if err != nil {
		return err
	}
	return s.await(ctx, "the agent leads and has taken up CDI", func(ctx context.Context) (bool, error) {
		l := &v1alpha1.SyncLedger{}
		err := s.Client().Get(ctx, client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.LedgerName}, l)
		return err == nil && l.Status != nil && l.Status.Budget > 0, client.IgnoreNotFound(err)
	})
}

// stop ends everything that has been started.
func (s *stage) stop() error {
	var errs []error
	if s.agent != nil {
		errs = append(errs, s.agent.Stop(15*time.Second))
	}
	if s.source != nil {
		s.source.CloseClientConnections()
		s.source.Close()
	}
	if s.Member != nil {
		errs = append(errs, s.Member.Stop())
	}
	if s.audit != nil {
		errs = append(errs, s.audit.remove())
	}
	return errors.Join(errs...)
}

func (s *stage) await(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	return s.awaitEvery(ctx, tick, what, holds)
}

func (s *stage) awaitEvery(ctx context.Context, interval time.Duration, what string, holds func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
		if s.agent != nil {
			select {
			case <-s.agent.Done():
				return false, fmt.Errorf("the agent ended: %w (its log is %s)", s.agent.Wait(), s.agent.LogFile())
			default:
			}
		}
		return holds(ctx)
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}

// settle waits until the agent is done with what has happened.
func (s *stage) settle(ctx context.Context) error {
	size, since := s.audit.size(), time.Now()
	return s.await(ctx, "the agent has settled", func(context.Context) (bool, error) {
		if now := s.audit.size(); now != size {
			size, since = now, time.Now()
		}
		return time.Since(since) >= quiet, nil
	})
}

// httpImage takes a while to import on a simulated node, and none with an
// instant CDI.
func (s *stage) httpImage(path string) *v1alpha1.VMDiskImage {
	s.images++
	name := fmt.Sprintf("lab-%05d", s.images)
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: s.source.URL + path + name + ".qcow2",
			DiskSize: resource.MustParse("1Gi"), StorageClass: simulator.ClassCSI,
		},
	}
}

func (s *stage) blankImage() *v1alpha1.VMDiskImage {
	img := s.httpImage("")
	img.Spec.SourceType, img.Spec.URL = v1alpha1.SourceBlank, ""
	return img
}

// creators of images at a time.
const creators = 8

// enqueue creates n images and waits until all but the running ones wait for a
// slot, and the agent has nothing left to do.
func (s *stage) enqueue(ctx context.Context, n, queued int, image func() *v1alpha1.VMDiskImage) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for range n {
		img := image()
		group.Go(func() error { return s.Client().Create(groupCtx, img) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("creating %d images: %w", n, err)
	}
	err := s.await(ctx, fmt.Sprintf("%d images wait for a slot", queued), func(ctx context.Context) (bool, error) {
		ready, err := metric(ctx, s.agent, `ot_agent_queue_images{standing="ready"}`)
		return int(ready) == queued, err
	})
	if err != nil {
		return err
	}
	return s.settle(ctx)
}

// process lets n of the images that run end, one after another, and waits until
// the agent has settled.
func (s *stage) process(ctx context.Context, n int) error {
	before, err := s.Instant().Finished()
	if err != nil {
		return err
	}
	s.Instant().Allow(n)
	err = s.await(ctx, fmt.Sprintf("%d images are processed", n), func(context.Context) (bool, error) {
		finished, err := s.Instant().Finished()
		return finished == before+n, err
	})
	if err != nil {
		return err
	}
	return s.settle(ctx)
}
