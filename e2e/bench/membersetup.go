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
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

const (
	namespace = "vmdi-farm"
	// waitTimeout bounds each wait. It is long: a busy machine is no failure.
	waitTimeout  = 20 * time.Minute
	pollInterval = 50 * time.Millisecond
	// scrapeInterval is the interval of scrapes during a measurement: 20 per second would
	// cost the agent as much as the imports.
	scrapeInterval = time.Second
	// quietPeriod is how long an agent without requests is considered idle after.
	quietPeriod = 1500 * time.Millisecond
)

// memberSetup is a member with an agent and an audit log of the agent's requests.
type memberSetup struct {
	*member.Member
	agent  *program.Agent
	pprof  string
	audit  *auditLog
	source *httptest.Server
	images int
}

// startMemberSetup starts a member and an agent. With an InstantImporter no import ends before it is
// allowed to.
func startMemberSetup(ctx context.Context, o member.Options, concurrency int, agentArgs ...string) (_ *memberSetup, err error) {
	s := &memberSetup{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.audit, err = newAccountAudit(program.AgentNamespace + ":ot-agent"); err != nil {
		return nil, err
	}
	o.Scheme = runtime.NewScheme()
	if err := v1alpha1.AddToScheme(o.Scheme); err != nil {
		return nil, err
	}
	// A queue of thousands writes more between two compactions than the small etcd can hold.
	o.APIServerArgs = append(s.audit.apiServerArgs(), "--etcd-compaction-interval=20s")
	if s.Member, err = member.Start(ctx, o); err != nil {
		return nil, err
	}
	values := map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": fmt.Sprint(concurrency), "preflightAllow": "127.0.0.0/8"}}}
	if err := program.InstallAgent(ctx, s.ControlPlane, values); err != nil {
		return nil, err
	}
	if err := s.Client().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return nil, fmt.Errorf("creating namespace %s: %w", namespace, err)
	}
	// The source has every image; it serves no bytes.
	s.source = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return s, s.startAgent(ctx, agentArgs...)
}

// agentLease is the chart's.
const agentLease = 15 * time.Second

// startAgent starts an agent with the chart's lease duration and waits until it leads.
func (s *memberSetup) startAgent(ctx context.Context, args ...string) error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	s.pprof = fmt.Sprintf("127.0.0.1:%d", port)
	s.agent, err = program.StartAgent(ctx, s.ControlPlane, program.Options{
		LeaseDuration: agentLease, Args: append([]string{"--pprof-bind-address=" + s.pprof}, args...), Log: os.Getenv("OT_FLEET_AGENT_LOG"),
	})
	if err != nil {
		return err
	}
	return s.awaitCondition(ctx, "the agent leads and has taken up CDI", func(ctx context.Context) (bool, error) {
		l := &v1alpha1.SyncLedger{}
		err := s.Client().Get(ctx, client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, l)
		return err == nil && l.Status != nil && l.Status.Budget > 0, client.IgnoreNotFound(err)
	})
}

// stop stops agent, source and member.
func (s *memberSetup) stop() error {
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

func (s *memberSetup) awaitCondition(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	return s.awaitEvery(ctx, pollInterval, what, holds)
}

func (s *memberSetup) awaitEvery(ctx context.Context, interval time.Duration, what string, holds func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, interval, waitTimeout, true, func(ctx context.Context) (bool, error) {
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

// awaitIdle waits until the agent makes no more requests.
func (s *memberSetup) awaitIdle(ctx context.Context) error {
	size, since := s.audit.size(), time.Now()
	return s.awaitCondition(ctx, "the agent has settled", func(context.Context) (bool, error) {
		if now := s.audit.size(); now != size {
			size, since = now, time.Now()
		}
		return time.Since(since) >= quietPeriod, nil
	})
}

// newHTTPImage returns an image whose import takes time on a simulated node, and none with the
// InstantImporter.
func (s *memberSetup) newHTTPImage(path string) *v1alpha1.VMDiskImage {
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

func (s *memberSetup) newBlankImage() *v1alpha1.VMDiskImage {
	img := s.newHTTPImage("/")
	img.Spec.SourceType, img.Spec.URL = v1alpha1.SourceBlank, ""
	return img
}

// concurrentCreators is how many images are created at a time.
const concurrentCreators = 8

// enqueueImages creates n images and waits until all but the running ones wait for a slot and the
// agent is idle.
func (s *memberSetup) enqueueImages(ctx context.Context, n, queued int, image func() *v1alpha1.VMDiskImage) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentCreators)
	for range n {
		img := image()
		group.Go(func() error { return s.Client().Create(groupCtx, img) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("creating %d images: %w", n, err)
	}
	err := s.awaitEvery(ctx, scrapeInterval, fmt.Sprintf("%d images wait for a slot", queued), func(ctx context.Context) (bool, error) {
		ready, err := readMetric(ctx, s.agent, `ot_agent_queue_images{standing="ready"}`)
		return int(ready) == queued, err
	})
	if err != nil {
		return err
	}
	return s.awaitIdle(ctx)
}

// processImages lets n running imports end, one after another, and waits until the agent is idle.
func (s *memberSetup) processImages(ctx context.Context, n int) error {
	before, err := s.InstantImporter().CountFinished()
	if err != nil {
		return err
	}
	s.InstantImporter().AllowFinishes(n)
	err = s.awaitCondition(ctx, fmt.Sprintf("%d images are processed", n), func(context.Context) (bool, error) {
		finished, err := s.InstantImporter().CountFinished()
		return finished == before+n, err
	})
	if err != nil {
		return err
	}
	return s.awaitIdle(ctx)
}
