//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

const (
	// idleDuration is how long idle replicas are measured.
	idleDuration = 20 * time.Second
	// concurrentWriters is how many objects are written at a time.
	concurrentWriters = 8
	// slowPollInterval is the interval of polls over many members.
	slowPollInterval = 2 * time.Second
	// joinBatchSize is how many members register and report at a time. A thousand at once
	// are unrealistic, and slow the API servers down until replicas lose their Leases.
	joinBatchSize = 50
)

// hubSetup is an API server for replicas of a hub, with an audit log of their requests, and one
// for fake members.
type hubSetup struct {
	plane        *controlplane.ControlPlane
	members      *controlplane.ControlPlane
	replicas     []*replica
	client       client.WithWatch
	audit        *auditLog
	lightMembers []*fakemember.Members
	heartbeat    time.Duration
	// restarts is how often a replica that had ended was started again, as a kubelet does; negative
	// where one that ends fails the benchmark.
	restarts int
}

// hubSetupOptions size a hubSetup. The zero value fits a hundred members.
type hubSetupOptions struct {
	// audit is the audit policy; by default it logs the requests of one hub.
	audit string
	// apiServerHeapMiB and etcdBytes are those of controlplane.Options.
	apiServerHeapMiB, etcdBytes int64
	// heartbeat of the members; by default that of agents.
	heartbeat time.Duration
}

// replica is a running replica of a hub.
type replica struct {
	name, pprof string
	running
}

type running interface {
	metricsServer
	Pid() int
	Kill()
	Done() <-chan struct{}
	Stop(time.Duration) error
}

// startHubPlanes starts the API servers without a hub.
func startHubPlanes(ctx context.Context, o hubSetupOptions) (_ *hubSetup, err error) {
	s := &hubSetup{restarts: -1, heartbeat: cmp.Or(o.heartbeat, fakemember.HeartbeatInterval)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.audit, err = newPolicyAudit(cmp.Or(o.audit, fmt.Sprintf(auditPolicy, program.HubNamespace+":ot-hub"))); err != nil {
		return nil, err
	}
	compact := []string{"--etcd-compaction-interval=20s"}
	of := controlplane.Options{Name: "members", APIServerHeapMiB: o.apiServerHeapMiB, EtcdBytes: o.etcdBytes, APIServerArgs: compact}
	ofHub := of
	ofHub.Name, ofHub.ControllerManager, ofHub.APIServerArgs = "hub", true, slices.Concat(compact, s.audit.apiServerArgs())
	planes, err := controlplane.StartAll(ctx, ofHub, of)
	if err != nil {
		return nil, err
	}
	s.plane, s.members = planes[0], planes[1]
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	if s.client, err = client.NewWithWatch(s.plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if err := program.InstallHub(ctx, s.plane, map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": "1"}}}); err != nil {
		return nil, err
	}
	return s, program.InstallAgent(ctx, s.members, nil) // for the CRDs
}

// startSingleHub starts the API servers and a hub with one replica.
func startSingleHub(ctx context.Context) (*hubSetup, error) {
	s, err := startHubPlanes(ctx, hubSetupOptions{})
	if err != nil {
		return nil, err
	}
	if err := s.startHub(ctx, 1); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *hubSetup) stop() error {
	for _, l := range s.lightMembers {
		l.Stop()
	}
	errs := []error{s.stopReplicas()}
	for _, p := range []*controlplane.ControlPlane{s.members, s.plane} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	if s.audit != nil {
		errs = append(errs, s.audit.remove())
	}
	return errors.Join(errs...)
}

func (s *hubSetup) stopReplicas() error {
	var ending errgroup.Group
	for _, r := range s.replicas {
		ending.Go(func() error { return r.Stop(30 * time.Second) })
	}
	s.replicas = nil
	return ending.Wait()
}

// startHub starts replicas of the hub until count of them run.
func (s *hubSetup) startHub(ctx context.Context, count int) error {
	for n := len(s.replicas); n < count; n++ {
		port, err := process.FreePort()
		if err != nil {
			return err
		}
		r := &replica{name: fmt.Sprintf("ot-hub-%d", n), pprof: fmt.Sprintf("127.0.0.1:%d", port)}
		if err := s.startReplica(ctx, r); err != nil {
			return err
		}
		s.replicas = append(s.replicas, r)
	}
	return nil
}

// startReplica starts the program of a replica, and waits until it serves metrics.
func (s *hubSetup) startReplica(ctx context.Context, r *replica) error {
	started, err := program.StartHub(ctx, s.plane, program.Options{
		Log:  s.logPath(r.name),
		Args: []string{"--replica-name=" + r.name, "--pprof-bind-address=" + r.pprof},
	})
	if err != nil {
		return err
	}
	r.running = started
	_, err = started.ReadMetrics(ctx)
	return err
}

// logsVariable names a directory for the logs and profiles of replicas.
const logsVariable = "OT_FLEET_BENCH_LOGS"

func (s *hubSetup) logPath(name string) string {
	dir := os.Getenv(logsVariable)
	if dir == "" {
		dir = s.plane.Dir()
	}
	return filepath.Join(dir, name+".log")
}

// killReplica kills a replica without a graceful shutdown.
func (s *hubSetup) killReplica(r *replica) {
	r.Kill()
	<-r.Done()
	s.replicas = slices.DeleteFunc(s.replicas, func(x *replica) bool { return x == r })
}

// joinMembers adds members and waits until the hub has the acknowledgement of each.
func (s *hubSetup) joinMembers(ctx context.Context, prefix string, n int) ([]*fakemember.Member, error) {
	all, err := fakemember.StartWithHeartbeat(ctx, s.members, prefix, n, s.heartbeat)
	if err != nil {
		return nil, err
	}
	s.lightMembers = append(s.lightMembers, all)
	return all.List, s.forEachInBatches(ctx, all.List, prefix+" are healthy", func(ctx context.Context, m *fakemember.Member) error {
		cfg, err := m.Config(ctx)
		if err != nil {
			return err
		}
		return s.createMemberCluster(ctx, m.Name, cfg, m.Name)
	}, func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
	})
}

// forEachInBatches calls a function for members, a batch at a time, and waits until their
// MemberClusters match.
func (s *hubSetup) forEachInBatches(ctx context.Context, members []*fakemember.Member, what string, do func(context.Context, *fakemember.Member) error, matches func(*v1alpha1.MemberCluster) bool) error {
	for some := range slices.Chunk(members, joinBatchSize) {
		group, doing := errgroup.WithContext(ctx)
		group.SetLimit(concurrentWriters)
		for _, m := range some {
			group.Go(func() error { return do(doing, m) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if err := s.awaitEach(ctx, what, some, matches); err != nil {
			return err
		}
	}
	return nil
}

// createMemberCluster registers a member at the hub.
func (s *hubSetup) createMemberCluster(ctx context.Context, name string, cfg *rest.Config, namespace string) error {
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	if err != nil {
		return err
	}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name}, Data: map[string][]byte{"kubeconfig": kubeconfig}},
		&v1alpha1.MemberCluster{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.MemberClusterSpec{
				Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name}},
				AgentNamespace: namespace,
			},
		},
	} {
		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("making member %s known to the hub: %w", name, err)
		}
	}
	return nil
}

// reportImages has members report pages of images and waits until the hub has counted them.
func (s *hubSetup) reportImages(ctx context.Context, members []*fakemember.Member, pages, imagesEach int) error {
	return s.forEachInBatches(ctx, members, "the hub has counted all images", func(ctx context.Context, m *fakemember.Member) error {
		for p := range pages {
			if err := m.SetImages(ctx, pageName(p), newPage(p, imagesEach, "")); err != nil {
				return err
			}
		}
		return nil
	}, func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && int(m.Status.Images.Total) >= pages*imagesEach
	})
}

func pageName(p int) string { return fmt.Sprintf("page-%03b", p) }

// newPage returns a page of images, with a message for the first one.
func newPage(p, imagesEach int, message string) []v1alpha1.ReportedImage {
	images := make([]v1alpha1.ReportedImage, imagesEach)
	for i := range images {
		images[i] = newReportedImage(p*imagesEach+i, v1alpha1.PhaseSucceeded)
	}
	if message != "" {
		images[0].Message = message
	}
	return images
}

func newReportedImage(n int, phase v1alpha1.Phase) v1alpha1.ReportedImage {
	name := fmt.Sprintf("image-%05d", n)
	return v1alpha1.ReportedImage{
		Namespace: namespace, Name: name, Source: "http https://images.example.com/" + name + ".qcow2", Revision: "1cu4lz8bfceqj",
		Phase: phase, Reason: v1alpha1.ReasonImporting, Message: "importing, attempt 1 of 4", Bytes: 24 << 30,
	}
}

// awaitCondition polls at an interval until a condition holds.
func (s *hubSetup) awaitCondition(ctx context.Context, every time.Duration, what string, holds func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, every, waitTimeout, true, func(ctx context.Context) (bool, error) {
		for _, r := range s.replicas {
			select {
			case <-r.Done():
				if s.restarts < 0 {
					return false, fmt.Errorf("replica %s ended", r.name)
				}
				s.restarts++
				if err := s.startReplica(ctx, r); err != nil {
					return false, err
				}
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

// awaitMembers waits until count members match.
func (s *hubSetup) awaitMembers(ctx context.Context, what string, count int, holds func(*v1alpha1.MemberCluster) bool) error {
	every := scrapeInterval
	if count > manyMembers {
		every = slowPollInterval
	}
	return s.awaitCondition(ctx, every, what, func(ctx context.Context) (bool, error) {
		var list v1alpha1.MemberClusterList
		if err := s.client.List(ctx, &list); err != nil {
			return false, err
		}
		held := 0
		for i := range list.Items {
			if holds(&list.Items[i]) {
				held++
			}
		}
		return held >= count, nil
	})
}

// awaitIdle waits until the hub makes no more requests.
func (s *hubSetup) awaitIdle(ctx context.Context) error {
	size, since := s.audit.size(), time.Now()
	return s.awaitCondition(ctx, pollInterval, "the hub has settled", func(context.Context) (bool, error) {
		if now := s.audit.size(); now != size {
			size, since = now, time.Now()
		}
		return time.Since(since) >= quietPeriod, nil
	})
}

// readMemories returns the memory use of all replicas, in order.
func (s *hubSetup) readMemories(ctx context.Context) ([]memoryUse, error) {
	all := make([]memoryUse, len(s.replicas))
	for i, r := range s.replicas {
		var err error
		if all[i], err = readMemory(ctx, r, r.pprof); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// usageWindow is what was used in a period: CPU time of all replicas, CPU time of the API servers
// with their etcd, and audited requests.
type usageWindow struct {
	duration             time.Duration
	cpu, onHub, inMember time.Duration
	requests             requestList
}

// measureDuring measures the use while a function runs.
func (s *hubSetup) measureDuring(do func() error) (w usageWindow, err error) {
	before, err := s.readSpent()
	if err != nil {
		return w, err
	}
	offset, start := s.audit.size(), time.Now()
	if err := do(); err != nil {
		return w, err
	}
	w, err = s.readSpent()
	if err != nil {
		return w, err
	}
	w.duration = time.Since(start)
	w.cpu, w.onHub, w.inMember = w.cpu-before.cpu, w.onHub-before.onHub, w.inMember-before.inMember
	w.requests, err = s.audit.requestsSince(offset)
	return w, err
}

// readSpent returns the CPU time used so far.
func (s *hubSetup) readSpent() (w usageWindow, err error) {
	for _, r := range s.replicas {
		one, err := readCPUTime(r.Pid())
		if err != nil {
			return w, err
		}
		w.cpu += one
	}
	if w.onHub, err = readPlaneCPUTime(s.plane); err != nil {
		return w, err
	}
	w.inMember, err = readPlaneCPUTime(s.members)
	return w, err
}

// measureIdle measures the use while only heartbeats arrive.
func (s *hubSetup) measureIdle(ctx context.Context) (usageWindow, error) {
	return s.measureDuring(func() error {
		select {
		case <-time.After(idleDuration):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// coresOf converts a CPU time into the number of busy cores.
func (w usageWindow) coresOf(of time.Duration) float64 { return of.Seconds() / w.duration.Seconds() }
