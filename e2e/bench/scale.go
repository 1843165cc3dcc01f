//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/light"
	"github.com/pelotech/ot-fleet/e2e/process"
)

const (
	// imagesEach, in pages of imagesPage, are what each member reports.
	imagesEach = 200
	imagesPage = 100
	// joining is how many members are made at a time.
	joining = 8
	// slowTick is for what is asked of a thousand members.
	slowTick = 2 * time.Second
)

// scaleAudit writes down what both hubs write, renewals of Leases too.
const scaleAudit = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {level: None, verbs: [get, list, watch]}
- {level: None, nonResourceURLs: ["*"]}
- {level: Metadata, users: ["system:serviceaccount:` + hub.Namespace + `:ot-hub", "system:serviceaccount:` + plainName + `:` + plainName + `"], omitManagedFields: true}
`

// replica of one of the two hubs.
type replica struct {
	name, pprof string
	running
}

type running interface {
	program
	Pid() int
	Kill()
	Done() <-chan struct{}
	Stop(time.Duration) error
}

// scaleStage is an API server for the hub, one for all members, and replicas.
type scaleStage struct {
	plane, home *controlplane.ControlPlane
	client      client.WithWatch
	audit       *audit
	light       []*light.Members
	members     []*light.Member
	replicas    []*replica
}

func newScaleStage(ctx context.Context) (_ *scaleStage, err error) {
	s := &scaleStage{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.audit, err = newAuditOf(scaleAudit); err != nil {
		return nil, err
	}
	compact := "--etcd-compaction-interval=20s"
	planes, err := controlplane.StartAll(ctx,
		controlplane.Options{Name: "hub", ControllerManager: true, APIServerMemory: "2GiB", APIServerArgs: append(s.audit.apiServerArgs(), compact)},
		controlplane.Options{Name: "members", APIServerMemory: "3GiB", APIServerArgs: []string{compact}})
	if err != nil {
		return nil, err
	}
	s.plane, s.home = planes[0], planes[1]
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	if s.client, err = client.NewWithWatch(s.plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if err := hub.Install(ctx, s.plane, map[string]any{"policy": map[string]any{"data": map[string]any{"concurrency": "1"}}}); err != nil {
		return nil, err
	}
	return s, agent.Install(ctx, s.home, nil) // for the kinds
}

func (s *scaleStage) stop() error {
	for _, l := range s.light {
		l.Stop()
	}
	errs := []error{s.stopReplicas()}
	for _, p := range []*controlplane.ControlPlane{s.home, s.plane} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	if s.audit != nil {
		errs = append(errs, s.audit.remove())
	}
	return errors.Join(errs...)
}

func (s *scaleStage) stopReplicas() error {
	var ending errgroup.Group
	for _, r := range s.replicas {
		ending.Go(func() error { return r.Stop(30 * time.Second) })
	}
	s.replicas = nil
	return ending.Wait()
}

// startHub starts replicas of the hub until there are so many.
func (s *scaleStage) startHub(ctx context.Context, count int) error {
	for n := len(s.replicas); n < count; n++ {
		port, err := process.FreePort()
		if err != nil {
			return err
		}
		r := &replica{name: fmt.Sprintf("ot-hub-%d", n), pprof: fmt.Sprintf("127.0.0.1:%d", port)}
		started, err := hub.Start(ctx, s.plane, hub.Options{
			Log:  s.logOf(r.name),
			Args: []string{"--replica-name=" + r.name, "--pprof-bind-address=" + r.pprof},
		})
		if err != nil {
			return err
		}
		r.running = started
		s.replicas = append(s.replicas, r)
		if _, err := started.Metrics(ctx); err != nil { // from when on they are served
			return err
		}
	}
	return nil
}

func (s *scaleStage) logOf(name string) string {
	dir := os.Getenv("OT_FLEET_SCALE_LOGS")
	if dir == "" {
		dir = s.plane.Dir()
	}
	return filepath.Join(dir, name+".log")
}

// kill ends a replica, which has no time to say so.
func (s *scaleStage) kill(r *replica) {
	r.Kill()
	<-r.Done()
	s.replicas = slices.DeleteFunc(s.replicas, func(x *replica) bool { return x == r })
}

// await waits for what is seldom asked.
func (s *scaleStage) await(ctx context.Context, every time.Duration, what string, holds func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, every, patience, true, func(ctx context.Context) (bool, error) {
		for _, r := range s.replicas {
			select {
			case <-r.Done():
				return false, fmt.Errorf("replica %s ended", r.name)
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

// join makes members and has the hub know them.
func (s *scaleStage) join(ctx context.Context, n int) error {
	made := make([]*light.Members, joining)
	var group errgroup.Group
	for i := range joining {
		group.Go(func() error {
			count := n / joining
			if i < n%joining {
				count++
			}
			all, err := light.Start(ctx, s.home, fmt.Sprintf("scale-%d", i), count)
			if err != nil {
				return err
			}
			made[i] = all
			h := &hubStage{client: s.client}
			for _, m := range all.List {
				cfg, err := m.Config(ctx)
				if err != nil {
					return err
				}
				if err := h.connect(ctx, m.Name, cfg, m.Name); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	for _, all := range made {
		if all != nil {
			s.light = append(s.light, all)
			s.members = append(s.members, all.List...)
		}
	}
	if err != nil {
		return err
	}
	return s.awaitMembers(ctx, "all members are healthy", func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
	})
}

func (s *scaleStage) awaitMembers(ctx context.Context, what string, holds func(*v1alpha1.MemberCluster) bool) error {
	return s.await(ctx, slowTick, what, func(ctx context.Context) (bool, error) {
		var list v1alpha1.MemberClusterList
		if err := s.client.List(ctx, &list); err != nil {
			return false, err
		}
		for i := range list.Items {
			if !holds(&list.Items[i]) {
				return false, nil
			}
		}
		return len(list.Items) == len(s.members), nil
	})
}

// report has every member report its images, and waits until the hub has counted them.
func (s *scaleStage) report(ctx context.Context) error {
	group, writing := errgroup.WithContext(ctx)
	group.SetLimit(joining)
	for _, m := range s.members {
		group.Go(func() error {
			for p := range imagesEach / imagesPage {
				if err := m.SetImages(writing, pageName(p), pageOf(p, "")); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return s.awaitMembers(ctx, "the hub has counted all images", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && int(m.Status.Images.Total) >= imagesEach
	})
}

func pageName(p int) string { return fmt.Sprintf("page-%d", p) }

func pageOf(p int, message string) []v1alpha1.ReportedImage {
	images := make([]v1alpha1.ReportedImage, imagesPage)
	for i := range images {
		images[i] = image(p*imagesPage+i, v1alpha1.PhaseSucceeded)
	}
	if message != "" {
		images[0].Message = message
	}
	return images
}

// links are the MemberLinks: who is to carry for whom, and who does.
func (s *scaleStage) links(ctx context.Context) (v1alpha1.MemberLinkList, error) {
	var list v1alpha1.MemberLinkList
	err := s.client.List(ctx, &list)
	return list, err
}

// carried waits until every member is carried for by the replica that it is assigned
// to, and that runs; assigned is when the last one was assigned to such a one.
func (s *scaleStage) carried(ctx context.Context, since time.Time) (assigned, carried time.Duration, err error) {
	names := map[string]bool{}
	for _, r := range s.replicas {
		names[r.name] = true
	}
	err = s.await(ctx, 500*time.Millisecond, "all members are carried for", func(ctx context.Context) (bool, error) {
		list, err := s.links(ctx)
		if err != nil || len(list.Items) != len(s.members) {
			return false, err
		}
		per := map[string]int{}
		done := true
		for i := range list.Items {
			l := &list.Items[i]
			if !names[l.Spec.Replica] {
				return false, nil
			}
			per[l.Spec.Replica]++
			done = done && l.Status.Reachable && l.Status.Carrier == l.Spec.Replica && l.Status.ObservedGeneration == l.Generation
		}
		if len(per) < len(names) {
			return false, nil
		}
		if assigned == 0 {
			assigned = time.Since(since)
		}
		return done, nil
	})
	return assigned, time.Since(since), err
}

// spread is the difference between the most and the fewest members of a replica.
func (s *scaleStage) spread(ctx context.Context) (int, string, error) {
	list, err := s.links(ctx)
	if err != nil {
		return 0, "", err
	}
	per := map[string]int{}
	for i := range list.Items {
		per[list.Items[i].Spec.Replica]++
	}
	counts := make([]int, 0, len(per))
	for _, n := range per {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	return counts[len(counts)-1] - counts[0], counted(counts), nil
}

func counted(counts []int) string {
	texts := make([]string, len(counts))
	for i, n := range counts {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, "/")
}

// memories of all replicas, in their order.
func (s *scaleStage) memories(ctx context.Context) ([]memory, error) {
	all := make([]memory, len(s.replicas))
	for i, r := range s.replicas {
		var err error
		if all[i], err = memoryOf(ctx, r, r.pprof); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// window is what all replicas did for a while.
type window struct {
	took, cpu time.Duration
	asked     requests
}

// during watches the replicas while something is done.
func (s *scaleStage) during(do func() error) (w window, err error) {
	spent := func() (all time.Duration, err error) {
		for _, r := range s.replicas {
			one, err := cpuTime(r.Pid())
			if err != nil {
				return 0, err
			}
			all += one
		}
		return all, nil
	}
	before, err := spent()
	if err != nil {
		return w, err
	}
	offset, start := s.audit.size(), time.Now()
	if err := do(); err != nil {
		return w, err
	}
	after, err := spent()
	if err != nil {
		return w, err
	}
	w.took, w.cpu = time.Since(start), after-before
	w.asked, err = s.audit.since(offset)
	return w, err
}

// rest watches them while nothing changes: members beat.
func (s *scaleStage) rest(ctx context.Context) (window, error) {
	return s.during(func() error {
		select {
		case <-time.After(idleFor):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (w window) cores() string {
	return fmt.Sprintf("%.0f %% of a core", 100*w.cpu.Seconds()/w.took.Seconds())
}

// perSecond counts the writes of some kinds; each is the beginning of "resource" or
// "resource/subresource".
func (w window) perSecond(of ...string) float64 {
	n := 0
	for _, r := range w.asked {
		_, what, _ := strings.Cut(r.what, " ")
		if slices.Contains(of, what) {
			n++
		}
	}
	return float64(n) / w.took.Seconds()
}
